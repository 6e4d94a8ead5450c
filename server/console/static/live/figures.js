// The figures above the timeline, each with its last half minute.

import { el, fit } from "../lib/dom.js";
import { count, duration, durationText, percent } from "../lib/format.js";
import { term } from "../lib/terms.js";
import { colours } from "../lib/theme.js";
import { statesText } from "./history.js";

const TILES = [
  // name, label, unit, the word that it explains
  ["rate", "Output", "tok/s", "step"],
  ["ttft", "First token", "", "ttft"],
  ["itl", "Between tokens", "", "itl"],
  ["queue", "Sequences", "", "batch"],
  ["kv", "KV in use", "", "kv"],
];

/** The sequences that do not run. Those that wait for the next executor are told apart. */
function queueText(waiting, sequences) {
  const recovering = sequences.filter(({ status }) => status === "recovering");
  return statesText(recovering, Math.max(0, waiting - recovering.length)) || "none waiting";
}

export class Figures {
  constructor(list, history) {
    this.history = history;
    this.tiles = TILES.map(([name, label, unit, word]) => {
      const tile = {
        name,
        value: el("span", {}, "–"),
        unit: el("span", { className: "unit" }, unit),
        detail: name === "kv" ? term("prefix", " ") : el("span", {}, " "),
        spark: el("canvas", { "aria-hidden": "true" }),
      };
      list.append(el("li", {}, el("p", { className: "name" }, term(word, label)),
        el("p", { className: "value" }, tile.value, tile.unit), el("p", { className: "detail" }, tile.detail), tile.spark));
      return tile;
    });
    this.recolour();
  }

  recolour() {
    this.colour = colours(["decode", "accent", "line"]);
  }

  draw() {
    const { frame, figures } = this.history;
    if (frame === null) return;
    const { running, waiting, sequences, kv_blocks: blocks, prefix_queries: queries, prefix_hits: hits } = frame;
    const told = {
      rate: [{ text: count(figures.rate), unit: "tok/s" }, `step ${count(frame.num_steps)}`],
      ttft: [duration(figures.ttft), figures.ttft === null ? "none for 30 s" : "median, 30 s"],
      itl: [duration(figures.itl), figures.itlHigh === null ? "none for 5 s" : `p95 ${durationText(figures.itlHigh)}`],
      queue: [{ text: count(running), unit: "running" }, queueText(waiting, sequences)],
      kv: [{ text: blocks.total ? percent(blocks.used / blocks.total) : "–", unit: "" },
        queries ? `prefix hits ${percent(hits / queries)}` : "no prompt yet"],
    };
    for (const tile of this.tiles) {
      const [{ text, unit }, detail] = told[tile.name];
      tile.value.textContent = text;
      tile.unit.textContent = unit;
      tile.detail.textContent = detail;
      this.drawSpark(tile.spark, this.history.sparks[tile.name]);
    }
  }

  drawSpark(canvas, values) {
    const { context, width, height } = fit(canvas);
    if (!width || values.length < 2) return;
    const most = Math.max(...values.map((value) => value ?? 0)) || 1;
    const x = (i) => width - ((values.length - 1 - i) * width) / 149;
    const y = (value) => height - 1.5 - ((value ?? 0) / most) * (height - 4);
    context.beginPath();
    values.forEach((value, i) => (i ? context.lineTo(x(i), y(value)) : context.moveTo(x(i), y(value))));
    context.strokeStyle = this.colour.decode;
    context.lineWidth = 1.5;
    context.lineJoin = "round";
    context.stroke();
    context.lineTo(x(values.length - 1), height);
    context.lineTo(x(0), height);
    context.globalAlpha = 0.12;
    context.fillStyle = this.colour.decode;
    context.fill();
    context.globalAlpha = 1;
  }
}
