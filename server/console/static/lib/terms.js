// Words of the trade, each with a sentence that is shown on hover, on focus and on a tap.

import { el } from "./dom.js";

const SENTENCES = {
  step: "A step is one run of the model for all sequences together: each gets its next token, or a part of its prompt read.",
  prefill: "Prefill reads the prompt, many tokens at once, and keeps their keys and values; the first token of the answer comes at its end.",
  decode: "Decode computes the answer, one token of a sequence in each step, from the tokens before it.",
  verify: "Drafts are tokens that a cheap guess proposes; one step checks several of them, and keeps those that the model would have written.",
  recompute: "Recomputed: tokens whose keys and values were lost with the executor, or given up for want of memory, are read again. None is written twice.",
  waiting: "Waiting: the sequence is in the queue for a place in the batch, or for memory, and nothing of it is computed.",
  kv: "A KV block is a piece of memory with the keys and values of a few tokens (16, say), so that no token is ever read twice.",
  prefix: "A prefix hit: the beginning of a prompt was read before, for anybody, so its KV blocks are used again and not computed.",
  itl: "ITL, the inter-token latency, is the time between two tokens of one answer; it says how fluently text appears.",
  ttft: "TTFT, the time to first token, runs from a request's arrival to its first token: the queue and the prefill.",
  batch: "The sequences that run share each step: one reading of the weights serves them all.",
  preempted: "Preempted: the sequence gave its memory to others for a while and goes on where it stood.",
};
const GAP = 8;
const LINGER = 160;
/** Milliseconds that a sentence stays after the pointer left, so that the pointer can reach it. */

let shown = null;
let shownFor = null;
let timer = null;

/** The hidden element with a word's sentence, which assistive technology reads with the word. */
function tooltipOf(name) {
  const id = `term-${name}`;
  let tip = document.getElementById(id);
  if (tip === null) {
    tip = el("div", { id, className: "tooltip", role: "tooltip", popover: "manual" }, SENTENCES[name]);
    tip.addEventListener("pointerenter", () => clearTimeout(timer));
    tip.addEventListener("pointerleave", linger);
    document.body.append(tip);
  }
  return tip;
}

/** A word that explains itself. */
export function term(name, ...label) {
  const word = el("button", { type: "button", className: "term", "aria-describedby": tooltipOf(name).id }, ...label);
  word.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && show(word, name));
  word.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && linger());
  word.addEventListener("focus", () => word.matches(":focus-visible") && show(word, name));
  word.addEventListener("blur", hide);
  word.addEventListener("click", (event) => {
    event.stopPropagation(); // a row around it may open something
    show(word, name);
  });
  return word;
}

function show(word, name) {
  clearTimeout(timer);
  const tip = tooltipOf(name);
  if (shown !== tip) hide();
  [shown, shownFor] = [tip, word];
  if (!tip.matches(":popover-open")) tip.showPopover();
  const at = word.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const below = at.bottom + GAP + height < innerHeight;
  tip.style.left = `${Math.max(GAP, Math.min(at.left, innerWidth - width - GAP))}px`;
  tip.style.top = `${below ? at.bottom + GAP : Math.max(GAP, at.top - GAP - height)}px`;
}

function hide() {
  clearTimeout(timer);
  if (shown?.matches(":popover-open")) shown.hidePopover();
  shown = null;
}

function linger() {
  clearTimeout(timer);
  timer = setTimeout(hide, LINGER);
}

/** Makes words of the page explain themselves: `marks` are pairs of a selector and a word's name. */
export function teach(marks) {
  for (const [selector, name] of marks) {
    for (const node of document.querySelectorAll(selector)) {
      if (node.querySelector(".term") === null) node.replaceChildren(term(name, ...node.childNodes));
    }
  }
}

// Esc closes the sentence and nothing else; a tap beside it closes it, too.
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || shown === null) return;
  hide();
  event.preventDefault();
  event.stopPropagation();
}, { capture: true });
document.addEventListener("pointerdown", (event) => {
  if (shown !== null && !shown.contains(event.target) && !event.target.closest?.(".term")) hide();
});
document.addEventListener("scroll", (event) => {
  if (shown !== null && event.target.contains(shownFor)) hide(); // the word moved, and not only an answer that grows elsewhere
}, { capture: true, passive: true });
