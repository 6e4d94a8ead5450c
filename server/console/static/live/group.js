// The band below the timeline's rows: all sequences without a row of their own. Its height is their number; from below it is filled
// by what the steps computed for how many of them, and the rest waits.

import { statesText } from "./history.js";

const LAYERS = { d: "decode", v: "verify", p: "prefill", r: "recompute" };

export class Group {
  constructor(history) {
    this.history = history;
    this.counts = new WeakMap();
  }

  hidden(rows) {
    return this.history.lanes.slice(rows).filter((seq) => seq !== null);
  }

  /** Sequences without a row. */
  size(rows) {
    return this.hidden(rows).length + this.history.unknown;
  }

  /** Their states in words. */
  text(rows) {
    return statesText(this.hidden(rows), this.history.unknown);
  }

  draw(context, steps, { x, gutter, width, rows, lane, bottom, to }, colour) {
    const hidden = this.hidden(rows);
    const top = Math.ceil(rows * lane) + 3;
    const room = bottom - 2 - top;
    const columns = Math.ceil(width) + 1;
    const alive = aliveIn(hidden, columns, x, gutter, to);
    const most = Math.max(1, ...alive);
    context.fillStyle = colour.line;
    context.fillRect(gutter, top - 3, width - gutter, 1);
    const layers = Object.fromEntries(Object.keys(LAYERS).map((kind) => [kind, new Float32Array(columns)]));
    for (const { began, ended, items } of steps) {
      const counts = this.countsOf(items, rows);
      const [left, right] = [Math.max(gutter, Math.floor(x(began))), Math.min(width, Math.max(x(ended) - 1, x(began) + 1))];
      for (const [kind, number] of Object.entries(counts)) {
        for (let at = left; at < right; at += 1) layers[kind][at] = Math.max(layers[kind][at], number);
      }
    }
    const under = new Float32Array(columns);
    const stack = (values, fill) => {
      context.fillStyle = fill;
      context.beginPath();
      for (let at = gutter; at < width; at += 1) {
        const size = (Math.min(values[at], most - under[at]) / most) * room;
        if (size <= 0) continue;
        context.rect(at, bottom - 2 - (under[at] / most) * room - size, 1, size);
        under[at] += values[at];
      }
      context.fill();
    };
    for (const [kind, name] of Object.entries(LAYERS)) stack(layers[kind], colour[name]);
    stack(alive.map((number, at) => Math.max(0, number - under[at])), colour.waiting);
  }

  /** How many of the hidden ones a step computed, by kind. Steps of the same streams share their items. */
  countsOf(items, rows) {
    const version = `${this.history.lanesVersion} ${rows}`;
    const known = this.counts.get(items);
    if (known?.version === version) return known.counts;
    const counts = {};
    items.ids.forEach((id, i) => {
      const seq = this.history.sequences.get(id);
      if (seq !== undefined && seq.lane !== null && seq.lane >= rows) counts[items.kinds[i]] = (counts[items.kinds[i]] || 0) + 1;
    });
    this.counts.set(items, { version, counts });
    return counts;
  }
}

/** How many of the sequences were there at each pixel column. */
function aliveIn(seqs, columns, x, gutter, to) {
  const changes = new Float32Array(columns + 1);
  const place = (time) => Math.max(gutter, Math.min(columns, Math.round(x(time))));
  for (const { arrived, endedAt } of seqs) {
    changes[place(arrived)] += 1;
    changes[place(Math.min(endedAt ?? to, to))] -= 1;
  }
  const alive = new Float32Array(columns);
  for (let at = gutter, number = 0; at < columns; at += 1) {
    number += changes[at];
    alive[at] = number;
  }
  return alive;
}
