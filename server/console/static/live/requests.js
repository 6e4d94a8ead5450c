// The table of sequences: what the timeline shows, for a keyboard and a screen reader too. A row's button opens the story.

import { dot, el } from "../lib/dom.js";
import { count, durationText, quantile, shortId } from "../lib/format.js";
import { colourOf, severalChoices } from "./history.js";

const MAX_ROWS = 40;
const ORDER = { running: 0, preempted: 1, waiting: 2, finished: 3, ended: 3 };

export class Requests {
  /** `open(requestId)` shows a story. */
  constructor(body, empty, history, open) {
    Object.assign(this, { body, empty, history, open });
    this.rows = new Map();
  }

  draw() {
    const several = severalChoices(this.history);
    const shown = [...this.history.sequences.values()]
      .sort((a, b) => ORDER[a.status] - ORDER[b.status] || (a.endedAt === null ? a.id - b.id : b.endedAt - a.endedAt))
      .slice(0, MAX_ROWS);
    const ids = new Set(shown.map((seq) => seq.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.node.remove();
      this.rows.delete(id);
    }
    shown.forEach((seq, at) => this.place(seq, at, several.has(seq.requestId)));
    this.empty.hidden = shown.length > 0;
  }

  place(seq, at, several) {
    let row = this.rows.get(seq.id);
    if (row === undefined) {
      row = this.make(seq, several);
      this.rows.set(seq.id, row);
    }
    if (this.body.children[at] !== row.node) this.body.insertBefore(row.node, this.body.children[at] ?? null);
    const itl = quantile(seq.gaps, 0.5);
    const texts = [seq.status, count(seq.prompt), count(seq.cached), `${count(seq.output)} / ${count(seq.max)}`,
      durationText(seq.ttft), durationText(itl), count(seq.blocks)];
    texts.forEach((text, i) => {
      if (row.cells[i].textContent !== text) row.cells[i].textContent = text;
    });
    row.cells[0].dataset.state = seq.status;
  }

  make(seq, several) {
    const button = el("button", { type: "button", title: "Open its story", onclick: () => this.open(seq.requestId, seq) },
      dot(colourOf(seq.id)), shortId(seq.requestId, seq.choice, several));
    const cells = Array.from({ length: 7 }, (_, i) => el("td", i ? {} : { className: "state" }));
    return { node: el("tr", {}, el("td", {}, button), cells), cells };
  }
}
