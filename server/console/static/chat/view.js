// Messages as elements.

import { copy } from "../lib/clipboard.js";
import { byId, el } from "../lib/dom.js";
import { durationText, plural } from "../lib/format.js";
import { render } from "../lib/markdown.js";
import { term } from "../lib/terms.js";
import { curl, python } from "./code.js";
import { settings } from "./settings.js";
import { waitOf, waitText } from "./waiting.js";

const SAMPLES = [
  "What is the capital of Peru?",
  "Write a short story about a lighthouse keeper.",
  "Explain what a KV cache is, in three sentences.",
];
const TICK = 100;
const QUIET = 4000;
/** Milliseconds between two announcements to a screen reader. */

/** `actions`: send(text), regenerate(), giveResult(message, call, text), story(requestId). */
export function makeView(conversation, actions) {
  const box = byId("messages");
  const nodes = new Map();
  let waiting = null;

  function drawAll() {
    const { messages } = conversation;
    for (const message of [...nodes.keys()]) if (!messages.includes(message)) nodes.delete(message);
    const shown = messages.filter((one) => one.role !== "tool");
    box.replaceChildren(...(shown.length ? shown.map(nodeOf) : [welcome(actions.send)]));
    box.scrollTop = box.scrollHeight;
  }

  function nodeOf(message) {
    let node = nodes.get(message);
    if (node === undefined) {
      node = el("article", { className: `message ${message.role}` });
      nodes.set(message, node);
    }
    fill(node, message);
    return node;
  }

  function fill(node, message) {
    node.className = `message ${message.role} ${message.state || ""}`;
    if (message.role === "user") node.replaceChildren(el("p", { className: "content" }, message.content));
    else node.replaceChildren(...answer(message, conversation, actions));
  }

  /** At most one redraw per frame: a fast stream has more chunks than a screen has frames. */
  function changed(message) {
    if (message === null) {
      drawAll();
      return;
    }
    if (waiting !== null) return;
    waiting = requestAnimationFrame(() => {
      waiting = null;
      const node = nodes.get(message);
      if (node === undefined) return;
      const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
      fill(node, message);
      if (atEnd) box.scrollTop = box.scrollHeight;
    });
  }

  const announce = announcer(byId("chat-status"));
  setInterval(() => {
    const now = performance.now();
    let wait = null;
    for (const [message, node] of nodes) {
      if (message.role !== "assistant") continue;
      wait = waitOf(message, now) ?? wait;
      showWait(node, waitOf(message, now));
    }
    announce(wait, now);
  }, TICK);
  return { changed, drawAll };
}

function showWait(node, wait) {
  node.classList.toggle("waits", wait !== null);
  const line = node.querySelector(".wait");
  if (line === null) return;
  line.hidden = wait === null;
  const text = wait === null ? "" : waitText(wait);
  if (line.lastChild.textContent !== text) line.lastChild.textContent = text;
}

/** Says what is waited for to a screen reader: once for each thing, not with every number. */
function announcer(status) {
  let kind = null;
  let at = -QUIET;
  return (wait, now) => {
    if ((wait?.kind ?? null) === kind || now - at < QUIET) return;
    kind = wait?.kind ?? null;
    status.textContent = kind === null ? "" : wait.text;
    if (kind !== null) at = now;
  };
}

function welcome(send) {
  return el("div", { className: "welcome" },
    el("h2", {}, "Ask the model something"),
    el("p", {}, "and watch its tokens being computed, step by step, beside those of everyone else."),
    el("ul", {}, SAMPLES.map((text) =>
      el("li", {}, el("button", { type: "button", className: "button", onclick: () => send(text) }, text)))));
}

function answer(message, conversation, actions) {
  const parts = [el("p", { className: "who" }, message.model || "assistant")];
  if (message.reasoning) {
    parts.push(el("details", { className: "reasoning", open: !message.content },
      el("summary", {}, "Reasoning"), el("p", {}, message.reasoning)));
  }
  parts.push(el("div", { className: "content" }, body(message)));
  parts.push(...message.calls.map((call) => callNode(message, call, actions)));
  if (message.error) {
    parts.push(el("p", { className: "fault", role: "alert" }, message.error,
      message.needsKey ? el("button", { type: "button", className: "button small", onclick: actions.regenerate }, "Give the key") : null));
  }
  if (message.state === "streaming") {
    // For the eye: a screen reader is told by the page's status line.
    parts.push(el("p", { className: "wait", "aria-hidden": "true", hidden: true }, el("span", { className: "dot" }), el("span", {})));
  } else parts.push(meta(message, conversation, actions));
  return parts;
}

function body(message) {
  if (settings.format !== "text" && message.state === "done" && message.content) {
    return [el("pre", { tabIndex: 0 }, el("code", {}, pretty(message.content)))];
  }
  return render(message.content);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function callNode(message, call, actions) {
  const parts = [
    el("header", {}, "calls", el("code", {}, call.name)),
    el("pre", { tabIndex: 0 }, el("code", {}, pretty(call.arguments))),
  ];
  if (call.result !== undefined) {
    parts.push(el("p", { className: "result" }, call.result));
  } else if (message.state === "done") {
    const input = el("input", { placeholder: "What the tool returns", "aria-label": `Result of ${call.name}` });
    const submit = (event) => {
      event.preventDefault();
      actions.giveResult(message, call, input.value);
    };
    parts.push(el("form", { onsubmit: submit }, input, el("button", { className: "button small" }, "Give")));
  }
  return el("div", { className: "call" }, parts);
}

const ENDS = { length: "cut off at the limit", tool_calls: "calls a tool", stop: "" };

function meta(message, conversation, actions) {
  const { first, last, usage } = message;
  const tokens = usage ? usage.completion_tokens : message.tokens;
  const facts = [];
  if (first !== null) facts.push([term("ttft", "first token"), ` ${durationText((first - message.begun) / 1000)}`]);
  if (tokens) facts.push(plural(tokens, "token"));
  if (tokens > 1 && last > first) facts.push(`${(((tokens - 1) * 1000) / (last - first)).toFixed(1)} tokens/s`);
  if (message.state === "stopped") facts.push("stopped");
  if (ENDS[message.finish]) facts.push(ENDS[message.finish]);
  const button = (label, act) => el("button", { type: "button", onclick: act }, label);
  const buttons = [];
  const copied = (label, text) => button(label, (event) => copy(text(), event.currentTarget));
  if (message.content) buttons.push(copied("Copy", () => message.content));
  if (message === conversation.messages[conversation.messages.length - 1] && !conversation.busy) {
    buttons.push(button("Regenerate", actions.regenerate));
  }
  if (message.requestId) buttons.push(button("Story", () => actions.story(message.requestId)));
  if (message.body) buttons.push(copied("Copy as curl", () => curl(message.body)), copied("Copy as Python", () => python(message.body)));
  return el("div", { className: "meta" }, facts.map((fact) => el("span", {}, fact)), buttons);
}
