// A few streams at once, so that there is a batch to look at. One call with several prompts: a browser opens six connections
// to a server at most, and each prompt is a sequence of its own anyway.

import { stream } from "../lib/api.js";
import { byId } from "../lib/dom.js";

const PROMPTS = [
  "The lighthouse keeper wrote in his diary that night:",
  "Three reasons why bread rises are",
  "Once upon a time, in a city built on bridges,",
  "A recipe for a simple tomato soup begins with",
  "The history of the printing press, in short:",
  "Dear neighbour, I am writing to you because",
  "To learn the guitar, a beginner should first",
  "Of all the planets, Saturn is the one that",
];
const MAX_TOKENS = 240;

/** `say(text, tone)` shows a notice, `model()` is the model that is chosen. */
export function startLoad(model, say) {
  const button = byId("load");
  let abort = null;
  button.addEventListener("click", async () => {
    if (abort !== null) {
      abort.abort();
      return;
    }
    abort = new AbortController();
    button.textContent = "Stop the streams";
    const body = { model: model(), prompt: PROMPTS, max_tokens: MAX_TOKENS, ignore_eos: true, stream: true };
    try {
      const { events } = await stream("/v1/completions", { body, signal: abort.signal });
      for await (const { data } of events) {
        if (data.includes('"error"')) say(JSON.parse(data).error?.message ?? "", "bad");
      }
    } catch (error) {
      if (!abort.signal.aborted) say(error.message, "bad");
    }
    abort = null;
    button.textContent = `Add ${PROMPTS.length} streams`;
  });
}
