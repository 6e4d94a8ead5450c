// The timeline: time runs to the right, a row for each sequence, a rectangle for each item of a step; below, tokens per step.

import { fit } from "../lib/dom.js";
import { durationText, shortId } from "../lib/format.js";
import { colours } from "../lib/theme.js";
import { severalChoices } from "./history.js";

const KINDS = { d: "decode", v: "verify", p: "prefill", r: "recompute" };
const NAMES = { d: "decode", v: "decode with drafts", p: "prefill", r: "recomputed" };
const LATE = 0.45;
/** Seconds by which the picture is behind: the next frame arrives before its time is shown. */
const BARS = 46;
const AXIS = 18;
const MAX_LANE = 20;
const MAX_LANES = 64;
const MERGED = 1.6;
/** Steps narrower than so many pixels, with the same items, are drawn as one. */

export class Timeline {
  constructor(canvas, history) {
    this.canvas = canvas;
    this.history = history;
    this.span = 12;
    this.end = null;
    this.recolour();
  }

  recolour() {
    this.colour = colours(["decode", "verify", "prefill", "recompute", "waiting", "line", "muted", "text", "bad", "bad-soft", "surface"]);
  }

  /** The moments at the left and right edge. `end` is set while the picture stands still. */
  get window() {
    const to = this.end ?? this.history.now - LATE;
    return [to - this.span, to];
  }

  draw() {
    const { context, width, height } = fit(this.canvas);
    if (!width || !this.history.frame) return;
    const [from, to] = this.window;
    if (this.end === null) this.history.freeLanes(from);
    const lanes = Math.min(this.history.lanes.length, MAX_LANES);
    const gutter = width < 480 ? 56 : 74;
    const bottom = height - BARS - AXIS;
    this.layout = {
      gutter, width, bottom, from, to, lanes,
      lane: Math.min(MAX_LANE, bottom / Math.max(lanes, 1)),
      x: (time) => gutter + ((time - from) / (to - from)) * (width - gutter),
    };
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter, height);
    context.clip();
    this.drawGrid(context, height);
    this.drawRecoveries(context);
    this.drawWaits(context);
    const steps = this.visible();
    this.drawItems(context, steps);
    this.drawBars(context, steps, height);
    this.drawRecoveryTexts(context);
    context.restore();
    if (!this.history.lanes.length) this.drawNothing(context);
    this.drawLabels(context);
  }

  visible() {
    const { steps } = this.history;
    const { from, to } = this.layout;
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].ended < from) low = middle + 1;
      else high = middle;
    }
    let end = low;
    while (end < steps.length && steps[end].began <= to) end += 1;
    return steps.slice(low, end);
  }

  drawGrid(context, height) {
    const { x, from, to } = this.layout;
    const every = this.span <= 3 ? 0.5 : this.span <= 12 ? 2 : 5;
    context.fillStyle = this.colour.line;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (let back = every; back < this.span; back += every) {
      const at = Math.round(x(to - back));
      context.fillStyle = this.colour.line;
      context.fillRect(at, 0, 1, height - AXIS);
      context.fillStyle = this.colour.muted;
      context.fillText(`−${back} s`, at, height - 4);
    }
    context.fillStyle = this.colour.line;
    context.fillRect(x(from), height - AXIS - 0.5, x(to) - x(from), 1);
  }

  drawRecoveries(context) {
    const { x, bottom, to } = this.layout;
    for (const { began, ended } of this.history.recoveries) {
      const [left, right] = [x(began), x(Math.min(ended ?? to, to))];
      if (right < left) continue;
      context.fillStyle = this.colour["bad-soft"];
      context.fillRect(left, 0, right - left, bottom + BARS);
      context.fillStyle = this.colour.bad;
      context.fillRect(left - 1, 0, 2, bottom + BARS);
    }
  }

  drawRecoveryTexts(context) {
    const { x, bottom, from, to } = this.layout;
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "left";
    context.lineJoin = "round";
    for (const { began, ended, reason } of this.history.recoveries) {
      if (began > to || (ended ?? to) < from) continue;
      const at = x(Math.max(began, from)) + 8;
      const died = /SIGKILL/.test(reason) ? "executor killed" : "executor lost";
      const text = `${died}, ${durationText((ended ?? to) - began)}`;
      context.strokeStyle = this.colour["bad-soft"];
      context.lineWidth = 4;
      context.strokeText(text, at, bottom - 7);
      context.fillStyle = this.colour.bad;
      context.fillText(text, at, bottom - 7);
    }
  }

  drawNothing(context) {
    const { gutter, width, bottom } = this.layout;
    context.font = "14px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillStyle = this.colour.muted;
    context.fillText("Nothing runs: ask something, or add streams.", (gutter + width) / 2, bottom / 2 + 5);
  }

  y(seq) {
    return seq.lane * this.layout.lane;
  }

  drawWaits(context) {
    const { x, lane, to } = this.layout;
    for (const seq of this.history.sequences.values()) {
      if (seq.lane === null || seq.lane >= MAX_LANES) continue;
      const middle = this.y(seq) + lane / 2;
      const begun = Math.min(seq.firstStep ?? to, to);
      context.fillStyle = this.colour.waiting;
      if (begun > seq.arrived) context.fillRect(x(seq.arrived), middle - 1.5, x(begun) - x(seq.arrived), 3);
      const end = Math.min(seq.endedAt ?? to, to);
      context.fillStyle = this.colour.line;
      if (end > begun) context.fillRect(x(begun), middle - 0.5, x(end) - x(begun), 1);
    }
  }

  drawItems(context, steps) {
    const { x, lane } = this.layout;
    const boxes = { d: [], v: [], p: [], r: [] };
    const height = Math.max(1.5, lane - (lane > 7 ? 3 : 1));
    const inset = (lane - height) / 2;
    for (let i = 0; i < steps.length; i += 1) {
      const first = steps[i];
      const left = x(first.began);
      let last = first;
      while (i + 1 < steps.length && this.joins(last, steps[i + 1])) last = steps[(i += 1)];
      const right = x(last.ended);
      const gap = last === first ? Math.min(1, (right - left) / 4) : 0;
      this.addItems(boxes, first, left, Math.max(right - left - gap, 0.8), inset, height);
      if (first.error) this.markFailure(context, right);
    }
    for (const [kind, list] of Object.entries(boxes)) {
      context.fillStyle = this.colour[KINDS[kind]];
      context.beginPath();
      for (const [a, b, c, d] of list) context.rect(a, b, c, d);
      context.fill();
    }
  }

  joins(step, next) {
    const { x } = this.layout;
    return next.items === step.items && x(next.ended) - x(step.began) < MERGED + 40 && x(next.ended) - x(next.began) < MERGED
      && x(next.began) - x(step.ended) < 1;
  }

  addItems(boxes, step, left, width, inset, height) {
    const { ids, kinds } = step.items;
    for (let i = 0; i < ids.length; i += 1) {
      const seq = this.history.sequences.get(ids[i]);
      if (seq === undefined || seq.lane === null || seq.lane >= MAX_LANES) continue;
      boxes[kinds[i]].push([left, this.y(seq) + inset, width, height]);
    }
  }

  markFailure(context, at) {
    context.fillStyle = this.colour.bad;
    context.fillRect(at - 1, 0, 2, this.layout.bottom);
  }

  /** Tokens of each step, as columns on a scale of square roots: a prefill has hundreds of times the tokens of a decode. */
  drawBars(context, steps, height) {
    const { x, gutter, width } = this.layout;
    const column = () => new Float32Array(Math.ceil(width) + 1);
    const layers = { decode: column(), prefill: column(), recompute: column() };
    for (const { began, ended, items } of steps) {
      const sums = sumsOf(items);
      const [left, right] = [Math.max(gutter, Math.floor(x(began))), Math.min(width, Math.max(x(ended) - 1, x(began) + 1))];
      for (const [name, values] of Object.entries(layers)) {
        for (let at = left; at < right; at += 1) values[at] = Math.max(values[at], sums[name]);
      }
    }
    const most = Math.sqrt(Math.max(16, ...steps.map(({ items }) => sumsOf(items).all)));
    const floor = height - AXIS - 1;
    const scale = (tokens) => (Math.sqrt(tokens) / most) * (BARS - 10);
    const under = column();
    for (const [name, values] of Object.entries(layers)) {
      context.fillStyle = this.colour[name];
      context.beginPath();
      for (let at = gutter; at < width; at += 1) {
        if (!values[at]) continue;
        const [base, top] = [scale(under[at]), scale(under[at] + values[at])];
        context.rect(at, floor - top, 1, top - base);
        under[at] += values[at];
      }
      context.fill();
    }
  }

  drawLabels(context) {
    const { gutter, lane, bottom, lanes } = this.layout;
    const several = severalChoices(this.history);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.font = `${lane < 13 ? 10 : 11}px ui-monospace, monospace`;
    const every = Math.max(1, Math.ceil(11 / lane));
    for (let at = 0; at < lanes; at += every) {
      const seq = this.history.lanes[at];
      if (seq === null) continue;
      context.fillStyle = seq.status === "ended" ? this.colour.waiting : this.colour.muted;
      context.fillText(shortId(seq.requestId, seq.choice, several.has(seq.requestId)), 0, at * lane + lane / 2);
    }
    context.fillStyle = this.colour.muted;
    context.font = "11px system-ui, sans-serif";
    context.fillText(gutter < 70 ? "tokens" : "tokens/step", 0, bottom + BARS - 8);
    context.textBaseline = "alphabetic";
    const hidden = this.history.lanes.length - lanes;
    if (hidden > 0) context.fillText(`+${hidden} more`, 0, bottom + 12);
  }

  /** The sequence and the step under a point; either may be null. */
  at(px, py) {
    if (this.layout === undefined || px < this.layout.gutter - 80) return { seq: null, step: null };
    const { gutter, width, from, to, lane, bottom } = this.layout;
    const time = from + ((px - gutter) / (width - gutter)) * (to - from);
    const seq = py < bottom ? this.history.lanes[Math.floor(py / lane)] ?? null : null;
    const step = px < gutter ? null : this.visible().find((one) => one.began <= time && time <= one.ended) ?? null;
    return { seq, step };
  }

  /** What a pointer is told. */
  describe({ seq, step }) {
    const lines = [];
    if (step !== null) {
      lines.push(`Step ${step.id}, ${durationText(step.ended - step.began)}${step.error ? ", failed" : ""}`);
      const counts = {};
      step.items.ids.forEach((_, i) => {
        const kind = step.items.kinds[i];
        counts[kind] ??= [0, 0];
        counts[kind][0] += 1;
        counts[kind][1] += step.items.tokens[i];
      });
      for (const [kind, [items, tokens]] of Object.entries(counts)) lines.push(`${items} × ${NAMES[kind]}, ${tokens} tokens`);
    }
    if (seq !== null) {
      lines.push(`Request ${seq.requestId.slice(-6)}, choice ${seq.choice}: ${seq.status}`);
      lines.push(`prompt ${seq.prompt} (${seq.cached} cached), output ${seq.output}`);
    }
    return lines.join("\n");
  }
}

const sums = new WeakMap();

/** Tokens of a step by kind. Steps of the same streams share their items, so this is seldom computed. */
function sumsOf(items) {
  let found = sums.get(items);
  if (found === undefined) {
    found = { decode: 0, prefill: 0, recompute: 0, all: 0 };
    items.ids.forEach((_, i) => {
      found[items.kinds[i] === "v" ? "decode" : KINDS[items.kinds[i]]] += items.tokens[i];
      found.all += items.tokens[i];
    });
    sums.set(items, found);
  }
  return found;
}
