// The table of sequences: what the timeline shows, for a keyboard and a screen reader too. A click anywhere in a row opens the
// story, as the row's button does for a keyboard. What does not fit is counted in a row of its own.

import { el } from "../lib/dom.js";
import { count, durationText, quantile, shortId } from "../lib/format.js";
import { rank, severalChoices, statesText, stateText } from "./history.js";
import { markNode } from "./marks.js";

const MAX_LIVE = 40;
const MAX_ENDED = 20;
const COLUMNS = ["State", "Prompt", "Cached", "Output", "TTFT", "ITL", "Blocks"];

export class Requests {
  /** `open(requestId)` shows a story, `light(id)` tells which sequence is pointed at. */
  constructor(body, empty, history, open, light) {
    Object.assign(this, { body, empty, history, open, light });
    this.rows = new Map();
    this.more = { live: this.makeMore(), ended: this.makeMore() };
    body.addEventListener("pointerleave", () => light(null));
  }

  draw() {
    const several = severalChoices(this.history);
    const all = [...this.history.sequences.values()]
      .sort((a, b) => rank(a) - rank(b) || (a.endedAt === null ? a.id - b.id : b.endedAt - a.endedAt));
    const live = all.filter((seq) => seq.endedAt === null);
    const ended = all.slice(live.length);
    const shown = [...live.slice(0, MAX_LIVE), ...ended.slice(0, MAX_ENDED)];
    const ids = new Set(shown.map((seq) => seq.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.node.remove();
      this.rows.delete(id);
    }
    const nodes = shown.map((seq) => this.rowOf(seq, several.has(seq.requestId)));
    this.group(nodes, this.more.ended, nodes.length, ended.slice(MAX_ENDED), 0);
    this.group(nodes, this.more.live, Math.min(live.length, MAX_LIVE), live.slice(MAX_LIVE), this.history.unknown);
    nodes.forEach((node, at) => {
      if (this.body.children[at] !== node) this.body.insertBefore(node, this.body.children[at] ?? null);
    });
    this.empty.hidden = nodes.length > 0;
    this.showLit();
  }

  /** Puts a row that counts `seqs` among the rows, if there are any. */
  group(nodes, { node, cell }, at, seqs, unknown) {
    if (!seqs.length && !unknown) {
      node.remove();
      return;
    }
    const text = `and ${count(seqs.length + unknown)} more: ${statesText(seqs, unknown)}`;
    if (cell.textContent !== text) cell.textContent = text;
    nodes.splice(at, 0, node);
  }

  makeMore() {
    const cell = el("td", { role: "cell", colSpan: COLUMNS.length + 1 });
    return { node: el("tr", { role: "row", className: "more" }, cell), cell };
  }

  rowOf(seq, several) {
    let row = this.rows.get(seq.id);
    if (row === undefined) {
      row = this.make(seq, several);
      this.rows.set(seq.id, row);
    }
    const itl = quantile(seq.gaps, 0.5);
    const texts = [stateText(seq), count(seq.prompt), count(seq.cached), `${count(seq.output)} / ${count(seq.max)}`,
      durationText(seq.ttft), durationText(itl), count(seq.blocks)];
    texts.forEach((text, i) => {
      if (row.cells[i].textContent !== text) row.cells[i].textContent = text;
    });
    row.cells[0].dataset.state = seq.status === "ended" && seq.reason === "error" ? "error" : seq.status;
    return row.node;
  }

  make(seq, several) {
    const name = shortId(seq.requestId, seq.choice, several);
    const button = el("button", { type: "button", title: "Open its story", onfocus: () => this.light(seq.id), onblur: () => this.light(null) },
      markNode(seq.mark), name);
    const cells = COLUMNS.map((label, i) => el("td", { role: "cell", className: i ? "" : "state", "data-label": label }));
    // The roles are those of the elements, which a narrow page's layout as cards would take from them.
    const node = el("tr", { role: "row", onclick: () => this.open(seq.requestId), onpointerenter: () => this.light(seq.id) },
      el("td", { role: "cell" }, button), cells);
    return { node, cells };
  }

  /** Shows which row is pointed at, here or elsewhere. */
  showLit() {
    for (const [id, { node }] of this.rows) node.classList.toggle("lit", id === this.history.lit);
  }
}
