// KV blocks: a bar of the whole pool, and below it a cell for each block that is used or cached, or for several of a large pool.
// The cells of a sequence have its mark's colour.

import { el, fit } from "../lib/dom.js";
import { count, percent, plural, shortId } from "../lib/format.js";
import { colours } from "../lib/theme.js";
import { severalChoices } from "./history.js";
import { drawCell, markColours } from "./marks.js";

const CELL = 13;
const GAP = 2;
const BAR = 10;
const TOP = BAR + 10;
const SCALE = [1, 2, 3, 4, 5, 6, 8];
const CACHED_SHARE = 0.25;
/** Of the cells, cached blocks get this share at least, if there are so many. */

export class Memory {
  constructor(canvas, legend, note, history) {
    Object.assign(this, { canvas, legend, note, history });
    this.cells = [];
    this.recolour();
  }

  recolour() {
    this.colour = colours(["decode", "accent-soft", "accent", "raised", "line", "surface", "muted", "text"]);
    this.palette = markColours();
  }

  draw() {
    const { context, width, height } = fit(this.canvas);
    const blocks = this.history.frame?.kv_blocks;
    if (!width || !blocks) return;
    this.cells = [];
    if (!blocks.total) {
      this.note.textContent = "held by the executor, without blocks";
      this.legend.replaceChildren();
      return;
    }
    this.columns = Math.floor((width + GAP) / CELL);
    const room = this.columns * Math.floor((height - TOP + GAP) / CELL);
    const owners = this.owners(blocks);
    const { per, cached } = scaleOf(owners.map((one) => one.blocks), blocks.cached, room);
    for (const owner of owners) {
      for (let left = owner.blocks; left > 0; left -= per) this.cells.push(owner);
    }
    const cachedCells = Math.ceil(cached / per);
    for (let i = 0; i < cachedCells; i += 1) this.cells.push({ seq: null, kind: "cached", blocks: blocks.cached });
    this.drawBar(context, width, blocks);
    this.cells.forEach((cell, at) => this.drawCell(context, cell, (at % this.columns) * CELL, TOP + Math.floor(at / this.columns) * CELL));
    if (!this.cells.length) {
      context.fillStyle = this.colour.muted;
      context.font = "13px system-ui, sans-serif";
      context.fillText("No block is used or cached.", 0, TOP + 14);
    }
    this.tell(blocks, per, blocks.cached - cached);
  }

  /** Who holds used blocks: each sequence its own ones, then what several share or sequences that are not listed hold. */
  owners(blocks) {
    const owners = [];
    let own = 0;
    for (const seq of this.history.sequences.values()) {
      const mine = Math.max(0, seq.blocks - seq.shared);
      if (!mine || seq.endedAt !== null) continue;
      owners.push({ seq, kind: "own", blocks: mine });
      own += mine;
    }
    if (blocks.used > own) owners.push({ seq: null, kind: "shared", blocks: blocks.used - own });
    return owners;
  }

  drawBar(context, width, { total, used, cached, touched }) {
    const { decode, raised, line } = this.colour;
    const edge = this.colour.accent;
    const parts = [
      { blocks: used, fill: decode }, { blocks: cached, fill: this.colour["accent-soft"], edge },
      { blocks: Math.max(0, touched - used - cached), fill: raised, edge: line }, { blocks: total - touched, edge: line },
    ].filter((part) => part.blocks > 0);
    const least = 4; // pixels: a share that is there is seen
    const spare = width - least * parts.length;
    let x = 0;
    for (const { blocks, fill, edge: stroke } of parts) {
      const size = least + (spare * blocks) / total;
      context.beginPath();
      context.roundRect(x + 0.5, 0.5, Math.max(1, size - 2), BAR - 1, 2.5);
      this.paint(context, fill, stroke);
      x += size;
    }
  }

  drawCell(context, { seq, kind }, x, y) {
    const size = CELL - GAP;
    const { lit } = this.history;
    context.globalAlpha = lit === null || (seq !== null && seq.id === lit) ? 1 : 0.3;
    if (seq !== null) {
      drawCell(context, seq.mark, this.palette, this.colour.surface, x, y, size);
    } else {
      context.beginPath();
      context.roundRect(x + 0.5, y + 0.5, size - 1, size - 1, 2.5);
      if (kind === "cached") this.paint(context, this.colour["accent-soft"], this.colour.accent);
      else this.paint(context, this.colour.raised, this.colour.text);
    }
    context.globalAlpha = 1;
  }

  paint(context, fill, edge) {
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

  /** The cell under a point; null over none. */
  at(px, py) {
    const [column, row] = [Math.floor(px / CELL), Math.floor((py - TOP) / CELL)];
    if (px < 0 || row < 0 || column >= this.columns) return null;
    return this.cells[row * this.columns + column] ?? null;
  }

  /** What a pointer over a cell is told. */
  describe(cell) {
    if (cell === null) return "";
    if (cell.kind === "cached") return `${plural(cell.blocks, "cached block")}: free, with content that may be found again`;
    if (cell.kind === "shared") return `${plural(cell.blocks, "block")} that several sequences share, or that are not in the list`;
    const { seq } = cell;
    const name = shortId(seq.requestId, seq.choice, severalChoices(this.history).has(seq.requestId));
    return `Request ${name}\n${plural(cell.blocks, "block")} of its own${seq.shared ? `, ${count(seq.shared)} shared` : ""}`;
  }

  tell({ used, cached, touched, total }, per, unseen) {
    const { block_size: size } = this.history.server ?? {};
    const tokens = size ? ` of ${plural(size, "token")}` : "";
    const more = unseen > 0 ? `; ${count(unseen)} more are cached` : "";
    const states = this.history.frame?.states;
    const slots = states?.total ? `; states: ${count(states.used)} of ${count(states.total)} in use, ${plural(states.snapshots, "snapshot")}` : "";
    const note = `a cell is ${plural(per, "block")}${per === 1 ? tokens : ""}${more}${slots}`;
    if (this.note.textContent !== note) this.note.textContent = note;
    const numbers = [["used", used], ["cached", cached], ["free", Math.max(0, touched - used - cached)], ["untouched", total - touched]];
    const words = numbers.map(([kind, number]) => `${kind} ${count(number)}`);
    if (this.words === words.join()) return;
    this.words = words.join();
    this.legend.replaceChildren(...numbers.map(([kind], i) => el("li", { "data-kind": kind }, words[i])),
      el("li", { className: "sum" }, `of ${plural(total, "block")}`));
    this.canvas.setAttribute("aria-label", `KV blocks: ${words.join(", ")}; ${percent(used / total)} in use`);
  }
}

/** Blocks in a cell, a round number, so that `room` cells hold what is used, and of the cached blocks how many get cells. */
export function scaleOf(used, cached, room) {
  const cellsOf = (per) => used.reduce((sum, blocks) => sum + Math.ceil(blocks / per), 0);
  const all = used.reduce((sum, blocks) => sum + blocks, 0) + cached;
  const most = room - Math.min(Math.ceil(room * CACHED_SHARE), cached);
  let per = 1;
  for (let at = 1; per < all && cellsOf(per) > most; at += 1) per = SCALE[at % SCALE.length] * 10 ** Math.floor(at / SCALE.length);
  return { per, cached: Math.max(0, Math.min(cached, (room - cellsOf(per)) * per)) };
}
