// Requests that ended before, as the server keeps them for its admin. A row opens the story.

import { earlier } from "../lib/api.js";
import { el } from "../lib/dom.js";
import { count, durationText, shortId } from "../lib/format.js";
import { getKey } from "../lib/keys.js";
import { needsAdmin } from "../lib/keys_dialog.js";
import { term } from "../lib/terms.js";

const PAGE = 20;
const MOST = 1000;
/** The server tells no more at once. */
const REFRESH = 1500;
/** Milliseconds from the end of a request to the next look. */

const COLUMNS = [
  // name, the word that it explains, whether a narrow screen has it
  ["Request", null, true], ["Ended", null, true], ["At", null, false], ["Prompt", null, false], ["Cached", "prefix", false],
  ["Output", null, true], ["TTFT", "ttft", true], ["In all", null, true],
];
const roomy = (at) => (COLUMNS[at][2] ? "" : "roomy");

/** Fills `box`. `open(requestId)` shows a story. Returns { load, look }. */
export function startEarlier(box, open) {
  const note = el("p", { className: "empty needs", role: "status" });
  const body = el("tbody");
  const head = COLUMNS.map(([name, word], i) => el("th", { scope: "col", className: roomy(i) }, word ? term(word, name) : name));
  const table = el("div", { className: "table-box", tabIndex: 0, role: "region", "aria-labelledby": "earlier-title", hidden: true },
    el("table", {}, el("thead", {}, el("tr", {}, head)), body));
  const more = el("button", { type: "button", className: "button small", id: "earlier-more", hidden: true }, "Load more");
  box.append(el("h2", { className: "panel-title", id: "earlier-title" }, "Earlier requests"), note, table, more);
  let limit = PAGE;
  let shown = "";

  function say(...content) {
    note.replaceChildren(...content);
    note.hidden = !content.length;
  }

  async function load() {
    if (!getKey("admin")) {
      table.hidden = more.hidden = true;
      say(...needsAdmin("What became of earlier requests is for the admin."));
      return;
    }
    try {
      const { data, has_more: further } = await earlier(limit);
      const key = data.map((one) => one.request_id).join();
      if (key !== shown) body.replaceChildren(...data.map((one) => row(one, open)));
      shown = key;
      table.hidden = !data.length;
      more.hidden = !further || limit >= MOST;
      if (data.length) say();
      else say("None yet.");
    } catch (error) {
      table.hidden = more.hidden = true;
      shown = "";
      if (error.status === 401) say(...needsAdmin("The server does not know this admin key."));
      else say(error.message);
    }
  }

  more.addEventListener("click", () => {
    limit = Math.min(MOST, limit + PAGE);
    load();
  });
  let latest = null;
  let timer = null;

  /** Called with each frame of the feed: loads again after a request has ended, but not while the focus is in the table. */
  function look(history) {
    const ended = [...history.sequences.values()].reduce((most, seq) => Math.max(most, seq.endedAt ?? 0), 0);
    if (ended === latest || timer !== null || !getKey("admin") || box.offsetParent === null) return;
    latest = ended;
    timer = setTimeout(() => {
      timer = null;
      if (!body.contains(document.activeElement)) load();
    }, REFRESH);
  }

  load();
  return { load, look };
}

function row(one, open) {
  const id = one.id ?? one.request_id;
  const button = el("button", { type: "button", title: "Open its story", onclick: (event) => {
    event.stopPropagation();
    open(id);
  } }, shortId(id, 0, false));
  const failed = one.outcome === "error" || one.outcome === "refused";
  const cells = [
    el("td", { className: "state", "data-state": failed ? "preempted" : "" }, one.code ?? one.outcome),
    ...[new Date(one.received * 1000).toLocaleTimeString(), count(one.prompt_tokens), count(one.cached_tokens), count(one.output_tokens),
      durationText(one.ttft_seconds), durationText(one.e2e_seconds)].map((text, i) => el("td", { className: roomy(i + 2) }, text)),
  ];
  return el("tr", { className: "opens", onclick: () => open(id) }, el("td", {}, button), cells);
}
