// The timeline: time runs to the right, a row for each sequence, a rectangle for each item of a step; below, tokens per step.

import { fit } from "../lib/dom.js";
import { count, durationText, plural, shortId } from "../lib/format.js";
import { colours } from "../lib/theme.js";
import { Group } from "./group.js";
import { severalChoices, stateText } from "./history.js";
import { COLOURS, drawMark, markColours } from "./marks.js";

export const KINDS = { d: "decode", v: "verify", p: "prefill", r: "recompute" };
const NAMES = { d: "decode", v: "decode with drafts", p: "prefill", r: "recomputed" };
const LATE = 0.45;
/** Seconds by which the picture is behind: the next frame arrives before its time is shown. */
const BARS = 46;
const AXIS = 18;
const MAX_LANE = 20;
const MIN_LANE = 12;
/** A lower row cannot have its name. */
const GROUP = 26;
/** Height of the band that stands for the sequences without a row. */
const TALL_ROWS = 15;
/** From so many rows on, the picture is taller. */
const STRIPE = 2;
const MERGED = 1.6;
/** Steps narrower than so many pixels, with the same items, are drawn as one. */

export class Timeline {
  constructor(canvas, history) {
    this.canvas = canvas;
    this.history = history;
    this.span = 12;
    this.end = null;
    this.group = new Group(history);
    this.recolour();
  }

  recolour() {
    this.colour = colours(["decode", "verify", "prefill", "recompute", "waiting", "line", "muted", "text", "bad", "bad-soft", "surface", "accent-soft"]);
    this.palette = markColours();
  }

  /** The moments at the left and right edge. `end` is set while the picture stands still. */
  get window() {
    const to = this.end ?? this.history.now - LATE;
    return [to - this.span, to];
  }

  draw() {
    if (!this.history.frame) {
      fit(this.canvas);
      return;
    }
    const [from, to] = this.window;
    if (this.end === null) this.history.freeLanes(from);
    this.setHeight();
    const { context, width, height } = fit(this.canvas);
    if (!width) return;
    const gutter = width < 480 ? 76 : 88;
    const bottom = height - BARS - AXIS;
    const rows = this.rows(bottom);
    if (this.end === null) this.history.fillLanes(rows);
    const grouped = this.history.lanes.length > rows || this.history.unknown > 0;
    this.layout = {
      gutter, width, bottom, from, to, rows, grouped,
      lane: Math.min(MAX_LANE, (bottom - (grouped ? GROUP : 0)) / Math.max(Math.min(this.history.lanes.length, rows), 1)),
      x: (time) => gutter + ((time - from) / (to - from)) * (width - gutter),
    };
    context.save();
    context.beginPath();
    context.rect(gutter, 0, width - gutter, height);
    context.clip();
    this.drawGrid(context, height);
    this.drawOutages(context);
    this.drawLives(context);
    const steps = this.visible();
    this.drawItems(context, steps);
    if (grouped) this.group.draw(context, steps, this.layout, this.colour);
    this.drawBars(context, steps, height);
    context.restore();
    if (!this.history.lanes.length) this.drawNothing(context);
    this.drawLit(context);
    this.drawOutageTexts(context);
    this.drawLabels(context);
    this.tell();
  }

  /** Taller for many rows, and lower again only once few are left, lest it jump to and fro. */
  setHeight() {
    const { lanes, unknown } = this.history;
    const tall = this.canvas.classList.contains("tall");
    if (!tall && (lanes.length > TALL_ROWS || unknown)) this.canvas.classList.add("tall");
    if (tall && lanes.length < TALL_ROWS - 3 && !unknown) this.canvas.classList.remove("tall");
  }

  /** How many sequences have a row of their own in so many pixels. */
  rows(pixels) {
    const { lanes, unknown } = this.history;
    const fitting = Math.floor(pixels / MIN_LANE);
    return lanes.length <= fitting && !unknown ? fitting : Math.floor((pixels - GROUP) / MIN_LANE);
  }

  hasRow(seq) {
    return seq.lane !== null && seq.lane < this.layout.rows;
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

  drawOutages(context) {
    const { x, bottom, to } = this.layout;
    for (const { began, ended } of this.history.outages) {
      const [left, right] = [x(began), x(Math.min(ended ?? to, to))];
      if (right < left) continue;
      context.fillStyle = this.colour["bad-soft"];
      context.fillRect(left, 0, right - left, bottom + BARS);
      context.fillStyle = this.colour.bad;
      context.fillRect(left - 1, 0, 2, bottom + BARS);
    }
  }

  drawOutageTexts(context) {
    const { x, bottom, from, to, gutter, width } = this.layout;
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "left";
    context.lineJoin = "round";
    let room = width; // the words of the earlier one of two outages stand left of the later one's, not under them
    for (const outage of [...this.history.outages].reverse()) {
      if (outage.began > to || (outage.ended ?? to) < from) continue;
      const text = outageText(outage, to);
      const size = context.measureText(text).width;
      const at = Math.max(gutter + 4, Math.min(x(Math.max(outage.began, from)) + 8, room - size - 4));
      if (at + size > room) continue; // the pointer is told
      room = at - 4;
      context.strokeStyle = this.colour["bad-soft"];
      context.lineWidth = 4;
      context.strokeText(text, at, bottom + 10);
      context.fillStyle = this.colour.bad;
      context.fillText(text, at, bottom + 10);
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

  /** Under each row runs a stripe in its sequence's own colour while it lives; a thin bar is the time before its first step. */
  drawLives(context) {
    const { x, lane, to } = this.layout;
    for (const seq of this.history.sequences.values()) {
      if (!this.hasRow(seq)) continue;
      const top = this.y(seq);
      const [arrived, end] = [x(seq.arrived), x(Math.min(seq.endedAt ?? to, to))];
      const begun = x(Math.min(seq.firstStep ?? to, to));
      context.fillStyle = this.colour.waiting;
      if (begun > arrived) context.fillRect(arrived, top + (lane - STRIPE) / 2 - 1.5, begun - arrived, 3);
      context.fillStyle = this.colour.line;
      if (end > begun) context.fillRect(begun, top + (lane - STRIPE) / 2 - 0.5, end - begun, 1);
      context.fillStyle = this.palette[seq.mark % COLOURS];
      if (end > arrived) context.fillRect(arrived, top + lane - STRIPE - 1, end - arrived, STRIPE);
    }
  }

  drawItems(context, steps) {
    const { x, lane } = this.layout;
    const boxes = { d: [], v: [], p: [], r: [] };
    const height = lane - STRIPE - 3;
    for (let i = 0; i < steps.length; i += 1) {
      const first = steps[i];
      const left = x(first.began);
      let last = first;
      while (i + 1 < steps.length && this.joins(last, steps[i + 1])) last = steps[(i += 1)];
      const right = x(last.ended);
      const gap = last === first ? Math.min(1, (right - left) / 4) : 0;
      this.addItems(boxes, first, left, Math.max(right - left - gap, 0.8), height);
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

  addItems(boxes, step, left, width, height) {
    const { ids, kinds } = step.items;
    for (let i = 0; i < ids.length; i += 1) {
      const seq = this.history.sequences.get(ids[i]);
      if (seq !== undefined && this.hasRow(seq)) boxes[kinds[i]].push([left, this.y(seq) + 1, width, height]);
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

  /** The row of the sequence that is pointed at stands out: the others fade. */
  drawLit(context) {
    const seq = this.history.sequences.get(this.history.lit);
    if (seq === undefined || seq.lane === null) return;
    const { gutter, width, lane, bottom, rows } = this.layout;
    const [top, low] = this.hasRow(seq) ? [this.y(seq), this.y(seq) + lane] : [rows * lane, bottom];
    context.fillStyle = this.colour.surface;
    context.globalAlpha = 0.62;
    context.fillRect(gutter, 0, width - gutter, top);
    context.fillRect(gutter, low, width - gutter, bottom - low);
    context.globalAlpha = 1;
    context.fillStyle = this.colour["accent-soft"];
    context.fillRect(0, top, gutter - 4, low - top);
  }

  drawLabels(context) {
    const { gutter, lane, bottom, rows, grouped } = this.layout;
    const several = severalChoices(this.history);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.font = `${lane < 14 ? 10 : 11}px ui-monospace, monospace`;
    for (const seq of this.history.lanes.slice(0, rows)) {
      if (seq === null) continue;
      const middle = this.y(seq) + lane / 2;
      drawMark(context, seq.mark, this.palette, 6, middle, 8);
      context.fillStyle = this.colour[seq.id === this.history.lit ? "text" : "muted"];
      context.fillText(shortId(seq.requestId, seq.choice, several.has(seq.requestId)), 14, middle);
    }
    context.fillStyle = this.colour.muted;
    context.font = "11px system-ui, sans-serif";
    if (grouped) context.fillText(`${gutter < 80 ? "" : "and "}${count(this.group.size(rows))} more`, 2, bottom - GROUP / 2);
    context.fillText(gutter < 80 ? "tokens" : "tokens/step", 2, bottom + BARS - 8);
    context.textBaseline = "alphabetic";
  }

  /** In words, for those who do not see it. */
  tell() {
    const { rows, grouped } = this.layout;
    const listed = this.history.lanes.slice(0, rows).filter((seq) => seq !== null).length;
    const more = grouped ? `, and ${plural(this.group.size(rows), "more", "more")}: ${this.group.text(rows)}` : "";
    const label = `Timeline of the last ${this.span} seconds: ${plural(listed, "sequence")}${more}. The table below has the numbers.`;
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
  }

  /** What is under a point: a sequence, the step that computes it there, an outage, the band of those without a row. */
  at(px, py) {
    const nothing = { seq: null, step: null, outage: null, grouped: false };
    if (this.layout === undefined || !this.history.frame || px < 0 || py < 0) return nothing;
    const { gutter, width, from, to, lane, bottom, rows, grouped } = this.layout;
    const inRows = py < bottom;
    const seq = py < rows * lane && inRows ? this.history.lanes[Math.floor(py / lane)] ?? null : null;
    if (px < gutter) return { ...nothing, seq, grouped: grouped && inRows && py >= bottom - GROUP };
    const time = from + ((px - gutter) / (width - gutter)) * (to - from);
    if (time > to || py > bottom + BARS) return nothing;
    const step = this.visible().find((one) => one.began <= time && time <= one.ended) ?? null;
    if (!inRows) return { ...nothing, step, outage: step === null ? this.outageAt(time) : null };
    if (grouped && py >= bottom - GROUP) return { ...nothing, step, grouped: true };
    const outage = this.outageAt(time);
    if (seq === null || time < seq.arrived || time > (seq.endedAt ?? to)) return { ...nothing, outage };
    return { ...nothing, seq, step: step !== null && step.items.ids.includes(seq.id) ? step : null, outage };
  }

  outageAt(time) {
    return this.history.outages.find((one) => one.began <= time && (one.ended === null || time <= one.ended)) ?? null;
  }

  /** What a pointer is told; "" over empty space. */
  describe({ seq, step, outage, grouped }) {
    const lines = [];
    if (seq !== null) {
      lines.push(`Request ${shortId(seq.requestId, seq.choice, severalChoices(this.history).has(seq.requestId))}: ${stateText(seq)}`);
      lines.push(`prompt ${plural(seq.prompt, "token")} (${count(seq.cached)} cached), output ${count(seq.output)} of at most ${count(seq.max)}`);
    }
    if (grouped) lines.push(`${plural(this.group.size(this.layout.rows), "more", "more")}: ${this.group.text(this.layout.rows)}`);
    if (outage !== null) lines.push(outageText(outage, this.layout.to));
    if (step !== null) {
      lines.push(`Step ${count(step.id)}, ${durationText(step.ended - step.began)}${step.error ? ", failed" : ""}`);
      if (seq !== null) {
        const i = step.items.ids.indexOf(seq.id);
        lines.push(`here ${NAMES[step.items.kinds[i]]}, ${plural(step.items.tokens[i], "token")}`);
      }
      lines.push(`in all ${itemsText(step.items)}`);
    }
    return lines.join("\n");
  }
}

/** What a step computed: "8 sequences: decode, 8 tokens". */
function itemsText(items) {
  const counts = {};
  items.ids.forEach((_, i) => {
    const [seqs, tokens] = counts[items.kinds[i]] ?? [0, 0];
    counts[items.kinds[i]] = [seqs + 1, tokens + items.tokens[i]];
  });
  return Object.entries(counts)
    .map(([kind, [seqs, tokens]]) => `${plural(seqs, "sequence")} ${NAMES[kind]}, ${plural(tokens, "token")}`).join("; ");
}

/** An outage and its one duration: from the loss of the executor until the next one is ready, so far if it is not. */
export function outageText({ began, ended, cause }, now) {
  const what = cause === "executor_died:signal" ? "executor killed" : cause.startsWith("executor_died") ? "executor lost" : "step failed";
  return ended === null ? `${what}, ${durationText(now - began)} so far` : `${what}, ready after ${durationText(ended - began)}`;
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
