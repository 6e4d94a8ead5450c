// The view of steps: reads the feed while the page is visible, and draws what it tells.

import { stream } from "../lib/api.js";
import { byId } from "../lib/dom.js";
import { needsAdmin } from "../lib/keys_dialog.js";
import { onTheme } from "../lib/theme.js";
import { Figures } from "./figures.js";
import { History } from "./history.js";
import { Kill } from "./kill.js";
import { startLoad } from "./load.js";
import { Memory } from "./memory.js";
import { Requests } from "./requests.js";
import { showStory } from "./story.js";
import { Timeline } from "./timeline.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

/** `model()`: the model that is chosen; `askForKeys(why)` opens the dialog for keys; `onFrame(history)` is called after each frame,
 * `onServer()` when the feed has told about the server: it was reached (again), or has its model now. */
export function startLive({ model, askForKeys, onFrame, onServer }) {
  const history = new History();
  const timeline = new Timeline(byId("timeline"), history);
  const memory = new Memory(byId("memory"), byId("memory-legend"), byId("memory-note"), history);
  const figures = new Figures(byId("figures"), history);
  const openStory = (requestId) =>
    showStory(requestId, [...history.sequences.values()].filter((seq) => seq.requestId === requestId));
  const requests = new Requests(byId("requests"), byId("no-requests"), history, openStory, light);
  const kill = new Kill(history, say, askForKeys);
  startLoad(model, say);

  function say(text, tone = "") {
    const notice = byId("live-notice");
    notice.textContent = text;
    notice.dataset.tone = tone;
    notice.hidden = !text;
  }

  function showStage(stage, detail = "") {
    byId("stage").dataset.stage = stage;
    byId("stage").title = detail;
    byId("stage-text").textContent = stage;
  }

  /** Shows in all views which sequence is pointed at; null for none. */
  function light(id) {
    if (history.lit === id) return;
    history.lit = id;
    requests.showLit();
    memory.draw();
    if (CALM.matches) timeline.draw();
  }

  const visible = () => byId("live").offsetParent !== null && !document.hidden;

  function drawFrame() {
    if (!visible()) return;
    figures.draw();
    requests.draw();
    memory.draw();
    if (CALM.matches) timeline.draw();
  }

  function animate() {
    if (visible() && !CALM.matches) timeline.draw();
    requestAnimationFrame(animate);
  }

  let abort = null;
  let timer = null;
  let pause = FIRST_PAUSE;

  async function connect() {
    clearTimeout(timer);
    if (abort !== null || document.hidden) return;
    const mine = (abort = new AbortController());
    let again = true;
    try {
      const chosen = model();
      const path = chosen ? `/v1/steps?model=${encodeURIComponent(chosen)}` : "/v1/steps";
      const { events } = await stream(path, { admin: true, ask: false, signal: mine.signal });
      if (byId("live-notice").dataset.tone === "wait") say("");
      for await (const { event, data } of events) {
        if (event !== "frame") continue;
        pause = FIRST_PAUSE;
        const frame = JSON.parse(data);
        history.take(frame);
        onFrame(history);
        if (frame.server) onServer();
        showStage(frame.stage, frame.detail);
        kill.look(frame);
        drawFrame();
      }
      showStage("disconnected");
    } catch (error) {
      again = !mine.signal.aborted && error.status !== 401;
      if (!mine.signal.aborted) refused(error);
    }
    if (abort === mine) abort = null;
    if (again) {
      timer = setTimeout(connect, pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }

  function refused(error) {
    showStage(error.status === 401 ? "locked" : "disconnected");
    if (error.status === 401) {
      say("-", "wait");
      byId("live-notice").replaceChildren(...needsAdmin("The steps show the requests of everybody, so watching them needs the admin key."));
    } else say(`${error.message} Trying again.`, "wait");
  }

  function reconnect() {
    abort?.abort();
    abort = null;
    pause = FIRST_PAUSE;
    connect();
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) abort?.abort(); // not visible: the server need not tell
    else reconnect();
  });
  byId("span").addEventListener("change", (event) => {
    timeline.span = Number(event.target.value);
  });
  byId("pause").addEventListener("click", (event) => {
    timeline.end = timeline.end === null ? timeline.window[1] : null;
    event.target.setAttribute("aria-pressed", String(timeline.end !== null));
    event.target.textContent = timeline.end === null ? "Pause" : "Go on";
  });
  watchPointer(timeline, byId("tip"), (found) => found.seq, openStory, light);
  watchPointer(memory, byId("memory-tip"), (cell) => cell?.seq ?? null, openStory, light);
  onTheme(() => {
    for (const part of [timeline, memory, figures]) part.recolour();
    drawFrame();
  });
  requestAnimationFrame(animate);
  connect();
  return { reconnect, openStory, draw: drawFrame, sequences: () => [...history.sequences.values()] };
}

/** Tells a pointer over a picture what is there: its `at` finds it, `describe` has the words, `seqOf` the sequence, if it is one. */
function watchPointer(picture, tip, seqOf, openStory, light) {
  const { canvas } = picture;
  canvas.addEventListener("pointermove", (event) => {
    const found = picture.at(event.offsetX, event.offsetY);
    const seq = seqOf(found);
    tip.textContent = picture.describe(found);
    tip.hidden = !tip.textContent;
    tip.style.left = `${Math.max(0, Math.min(event.offsetX + 14, canvas.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${event.offsetY + 14}px`;
    canvas.style.cursor = seq === null ? "default" : "pointer";
    light(seq?.id ?? null);
  });
  canvas.addEventListener("pointerleave", () => {
    tip.hidden = true;
    light(null);
  });
  canvas.addEventListener("click", (event) => {
    const seq = seqOf(picture.at(event.offsetX, event.offsetY));
    if (seq !== null) openStory(seq.requestId);
  });
}
