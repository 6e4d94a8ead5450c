// A request's story: what the server kept of it, or, where it keeps none, what this page saw.

import { story } from "../lib/api.js";
import { byId, el, fit } from "../lib/dom.js";
import { head, open } from "../lib/dialogs.js";
import { count, durationText, plural } from "../lib/format.js";
import { showKeys } from "../lib/keys_dialog.js";
import { term } from "../lib/terms.js";
import { colours } from "../lib/theme.js";
import { stateText } from "./history.js";

const PARTS = [
  // field, name, colour
  ["prepare_seconds", "prepared", "line"],
  ["queue_seconds", "waited", "waiting"],
  ["prefill_seconds", "prefill", "prefill"],
  ["decode_seconds", "decode", "decode"],
];
const WAITED = {
  step: "for the step before", slots: "for a place among --max-num-seqs", kv_blocks: "for KV blocks", fair_share: "for slots kept for other keys", tokens: "for room in a step",
  adapter: "for its adapter", prefix: "for a prefix being computed", tier: "for its KV from disk", recovery: "for the executor to restart",
};
const MISSED = {
  differs: "the prompt differs from earlier ones from there on", evicted: "what follows was evicted",
  on_disk: "what follows is on disk and was computed", new: "no earlier prompt begins so", short: "less than a block is left", off: "the prefix cache is turned off",
};
const EVENTS = {
  received: "received", queued: "queued", admitted: "admitted", first_token: "first token", preempted: "preempted for want of KV blocks",
  restart: "the executor was lost", resumed: "went on", finished: "finished", answered: "answered",
};

/** `seen`: the page's own records of the request's sequences. */
export async function showStory(requestId, seen) {
  const dialog = byId("story");
  const title = () => head(dialog, "story-title", `Request ${requestId.slice(-6)}`);
  open(dialog, title(), el("p", { className: "note" }, "Asking the server…"));
  let told = null;
  let why = [];
  try {
    told = await story(requestId);
  } catch (error) {
    why = [reason(error)];
    if (error.status === 401) why.push(adminButton(() => showStory(requestId, seen)));
  }
  if (!dialog.open) return;
  const content = el("div", { className: "story body-part" });
  content.append(...(told === null ? ownAccount(requestId, seen, why) : account(told)));
  open(dialog, title(), content);
  for (const canvas of content.querySelectorAll("canvas")) drawParts(canvas, told);
}

function reason(error) {
  if (error.status === 401) return "The server tells stories to its admin. This is what the page saw itself.";
  if (error.status === 404) return "The server keeps no story of this request. This is what the page saw itself.";
  return `${error.message} This is what the page saw itself.`;
}

const adminButton = (again) => el("button", { type: "button", className: "button small", onclick: async () => {
  if (await showKeys("Stories need the admin key. The text that the server prints when it starts has a link with it.", "admin")) again();
} }, "Give the admin key");

const facts = (rows) => el("dl", {}, rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
  .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));

const list = (waited) => Object.entries(waited || {}).filter(([, seconds]) => seconds > 0)
  .map(([why, seconds]) => `${durationText(seconds)} ${WAITED[why] || why}`).join(", ");

function account(told) {
  const ended = told.outcome ? `${told.outcome}${told.status ? `, status ${told.status}` : ""}${told.code ? `, ${told.code}` : ""}` : told.state;
  const parts = [
    el("canvas", { role: "img", "aria-label": PARTS.map(([field, name]) => `${name} ${durationText(told[field])}`).join(", ") }),
    el("ul", { className: "legend" }, PARTS.slice(1).map(([field, name, kind]) =>
      el("li", { "data-kind": kind }, term(kind, name), ` ${durationText(told[field])}`))),
    facts([
      ["Answer", told.id], ["Request", told.request_id], ["Client's id", told.client_request_id], ["Trace", told.trace_id],
      ["Route", told.route], ["Model", told.model], ["Key", told.key],
      ["Received", new Date(told.received * 1000).toLocaleString()], [told.outcome ? "Ended" : "State", ended],
      [term("ttft", "First token after"), durationText(told.ttft_seconds)], ["In all", durationText(told.e2e_seconds)],
      ["Waited", list(told.waited_for)], ["Paused", list({ ...told.paused_for, recovery: 0 })],
      ["Refused", refused(told.refused)], ["Interrupted", interruptions(told.interruptions)],
      ["Prompt", `${plural(told.prompt_tokens, "token")}, ${count(told.cached_tokens)} from the cache`],
      [term("prefix", "Prefix cache"), prefix(told.prefix)],
      ["Output", `${plural(told.output_tokens, "token")}${told.choices > 1 ? ` in ${told.choices} choices` : ""}`],
      [term("preempted", "Preempted"), told.preempted || null], ["Restarts survived", told.resumed || null],
    ]),
  ];
  if (told.events?.length) parts.push(el("h3", {}, "Events"), el("ol", {}, told.events.map((event) => eventNode(event, told.interruptions))));
  if (told.events_dropped) parts.push(el("p", { className: "note" }, `and ${count(told.events_dropped)} more`));
  return parts;
}

function refused(told) {
  if (!told) return null;
  const numbers = Object.entries(told).filter(([name, value]) => name !== "because" && value !== null)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(", ");
  return `${told.because.replaceAll("_", " ")}: ${numbers}`;
}

function interruptions(told) {
  if (!told) return null;
  const causes = Object.entries(told.causes).map(([cause, times]) => `${count(times)} × ${cause}`).join(", ");
  return `${causes}; the executor was ready after ${durationText(told.outage_seconds)}, computed again in ${durationText(told.recompute_seconds)}`;
}

function prefix(told) {
  if (!told) return null;
  const where = told.first_difference === null || told.first_difference === undefined ? "" : ` (token ${count(told.first_difference)})`;
  const missed = told.missed ? `; ${MISSED[told.missed] || told.missed}${where}` : "";
  return `${plural(told.matched_tokens, "token")} matched${missed}`;
}

function eventNode(event, interruptions) {
  const details = [];
  const waited = list({ ...event.waited, ...(interruptions ? { recovery: 0 } : {}) }); // `Interrupted` has that, in one number
  if (event.choice) details.push(`choice ${event.choice}`);
  if (event.cached_tokens) details.push(`${plural(event.cached_tokens, "token")} cached`);
  if (waited) details.push(`waited ${waited}`);
  if (event.output_tokens !== undefined) details.push(`${plural(event.output_tokens, "token")} out`);
  for (const name of ["cause", "reason", "status", "code"]) if (event[name]) details.push(String(event[name]));
  return el("li", {}, el("time", {}, durationText(event.at)),
    el("span", {}, [EVENTS[event.event] || event.event, ...details].join(", ")));
}

function drawParts(canvas, told) {
  const { context, width, height } = fit(canvas);
  const total = PARTS.reduce((sum, [field]) => sum + (told[field] || 0), 0);
  if (!width || !total) return;
  const palette = colours(PARTS.map(([, , colour]) => colour));
  let x = 0;
  for (const [field, , colour] of PARTS) {
    const part = ((told[field] || 0) / total) * width;
    context.fillStyle = palette[colour];
    context.beginPath();
    context.roundRect(x, 6, Math.max(part - 2, 1), height - 12, 4);
    context.fill();
    x += part;
  }
}

function ownAccount(requestId, seen, why) {
  const parts = [el("p", { className: "note needs" }, why)];
  for (const seq of seen) {
    if (seen.length > 1) parts.push(el("h3", {}, `Choice ${seq.choice}`));
    const waited = seq.firstStep === null ? (seq.endedAt === null ? "it waits" : "it was not started") : `waited ${durationText(seq.firstStep - seq.arrived)}`;
    const first = seq.ttft === null ? "" : `, first token after ${durationText(seq.ttft)}`;
    parts.push(facts([
      ["Request", seen.length > 1 ? null : requestId], ["State", `${stateText(seq)}; ${waited}${first}`],
      ["Prompt", `${plural(seq.prompt, "token")}, ${count(seq.cached)} from the cache`],
      ["Output", `${count(seq.output)} of at most ${plural(seq.max, "token")}${seq.blocks ? `, in ${plural(seq.blocks, "KV block")}` : ""}`],
    ]));
  }
  if (!seen.length) parts.push(el("p", {}, "It ended before this page was opened."));
  return parts;
}
