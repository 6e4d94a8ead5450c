// Several models: their states in the picker, and how much of the memory for models each takes.

import { el } from "../lib/dom.js";
import { percent } from "../lib/format.js";

const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
const HOLDS = new Set(["loaded", "loading"]);
const NAMED_FROM = 0.15; // of the memory: a narrower part has no room for its name

/** The text of a model in the picker: its state too, where several are served. */
export const optionText = ({ id, status }) => (status ? `${id} (${status.value})` : id);

/** Shows in `box` what the models of `list`, the answer of GET /v1/models, take of the memory; hides it for one model. */
export function showMemory(box, { data, memory }) {
  const models = data.filter((one) => one.memory && !one.parent);
  box.hidden = !memory || !models.length;
  if (box.hidden) return;
  const held = models.filter((one) => HOLDS.has(one.status.value));
  const used = held.reduce((sum, one) => sum + one.memory, 0);
  const text = `${gib(used)} of ${gib(memory.budget)} for models`;
  const parts = held.map((one) =>
    el("span", {
      className: "part", title: `${one.id}: ${gib(one.memory)}, ${one.status.value}`,
      style: `flex-basis: ${percent(one.memory / memory.budget)}`, "data-state": one.status.value,
    }, one.memory < NAMED_FROM * memory.budget ? "" : one.id),
  );
  box.replaceChildren(
    el("div", { className: "parts", role: "img", "aria-label": `${text}: ${held.map((one) => one.id).join(", ") || "none is loaded"}` }, parts),
    el("span", { className: "sum" }, text),
  );
}
