// KV blocks: a cell for one block, or for several of a large pool. Blocks of a sequence have its colour.

import { el, fit } from "../lib/dom.js";
import { count, percent } from "../lib/format.js";
import { colours } from "../lib/theme.js";
import { colourOf } from "./history.js";

const CELL = 13;
const GAP = 2;

export class Memory {
  constructor(canvas, legend, note, history) {
    Object.assign(this, { canvas, legend, note, history });
    this.recolour();
  }

  recolour() {
    this.colour = colours(["decode", "accent-soft", "accent", "raised", "line"]);
  }

  draw() {
    const { context, width, height } = fit(this.canvas);
    const blocks = this.history.frame?.kv_blocks;
    if (!width || !blocks) return;
    if (!blocks.total) {
      this.note.textContent = "held by the executor, without blocks";
      this.legend.replaceChildren();
      return;
    }
    const columns = Math.floor((width + GAP) / CELL);
    const cells = columns * Math.floor((height + GAP) / CELL);
    // Of a pool that is hardly touched, only the beginning is shown.
    const shown = Math.min(blocks.total, Math.max(cells, Math.ceil(blocks.touched * 1.1)));
    const runs = this.runs(blocks, shown);
    let at = 0;
    let passed = runs[0].blocks;
    for (let cell = 0; cell < Math.min(cells, shown); cell += 1) {
      const block = ((cell + 0.5) * shown) / Math.min(cells, shown);
      while (block > passed && at + 1 < runs.length) passed += runs[(at += 1)].blocks;
      this.drawCell(context, (cell % columns) * CELL, Math.floor(cell / columns) * CELL, runs[at]);
    }
    this.tell(blocks, shown, cells);
  }

  /** What the blocks are, in the order in which they are drawn. */
  runs(blocks, shown) {
    const runs = [];
    let own = 0;
    for (const seq of this.history.sequences.values()) {
      const mine = Math.max(0, seq.blocks - seq.shared);
      if (!mine || seq.endedAt !== null) continue;
      runs.push({ blocks: mine, fill: colourOf(seq.id) });
      own += mine;
    }
    if (blocks.used > own) runs.push({ blocks: blocks.used - own, fill: this.colour.decode });
    const free = Math.max(0, blocks.touched - blocks.used - blocks.cached);
    runs.push({ blocks: blocks.cached, fill: this.colour["accent-soft"], edge: this.colour.accent });
    runs.push({ blocks: free, fill: this.colour.raised, edge: this.colour.line });
    runs.push({ blocks: Math.max(0, shown - blocks.touched), edge: this.colour.line });
    return runs;
  }

  drawCell(context, x, y, { fill, edge }) {
    const size = CELL - GAP;
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, size - 1, size - 1, 2.5);
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (edge) {
      context.strokeStyle = edge;
      context.lineWidth = 1;
      context.stroke();
    }
  }

  tell(blocks, shown, cells) {
    const per = shown > cells ? `, a cell is ${Math.round(shown / cells)} blocks` : "";
    const part = shown < blocks.total ? `the first ${count(shown)} of ${count(blocks.total)}` : `${count(blocks.total)} blocks`;
    this.note.textContent = `${part}${per}`;
    const { used, cached, touched, total } = blocks;
    const numbers = [["used", used], ["cached", cached], ["free", Math.max(0, touched - used - cached)], ["untouched", total - touched]];
    const said = numbers.map(([kind, number]) => `${kind} ${count(number)}`);
    if (this.said === said.join()) return;
    this.said = said.join();
    this.legend.replaceChildren(...numbers.map(([kind], i) => el("li", { "data-kind": kind }, said[i])));
    this.canvas.setAttribute("aria-label", `KV blocks: ${said.join(", ")}; ${percent(used / total)} in use`);
  }
}
