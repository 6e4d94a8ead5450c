// The conversation: its messages, and the answer that is being streamed. Knows nothing of the page.

import { ready, stream } from "../lib/api.js";
import { requestBody } from "./settings.js";
import { progressInFeed, progressOf, progressOfServer } from "./waiting.js";

const LOOK = 500;
/** Milliseconds between two looks at the stage of a server that loads. */

/** What a message is sent as. */
function wire(message) {
  if (message.role === "assistant" && message.calls.length) {
    const calls = message.calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
    return { role: "assistant", content: message.content || null, tool_calls: calls };
  }
  if (message.role === "tool") return { role: "tool", tool_call_id: message.callId, content: message.content };
  return { role: message.role, content: message.content };
}

const newAnswer = (model) => ({
  role: "assistant", model, body: null, wait: null, needsKey: false, content: "", reasoning: "", calls: [], state: "streaming", error: "", finish: null,
  requestId: null, begun: performance.now(), first: null, last: null, ended: null, tokens: 0, usage: null,
});

function explained(error) {
  if (error.status === 401) return "This server requires an API key.";
  return error instanceof TypeError ? "The connection to the server broke off." : error.message;
}

/** Messages as they are sent; an answer without content, as of a failed call, is none. */
const sendable = (messages) => messages.filter((one) => one.role !== "assistant" || one.content || one.calls.length).map(wire);

export class Conversation {
  /** `changed(message)` is called when a message has changed, with null when messages came or went. `sequences()`: those that the
   * feed of steps tells, none where it may not be watched. */
  constructor(changed, sequences) {
    this.sequences = sequences;
    this.messages = [];
    this.model = null;
    this.changed = changed;
    this.abort = null;
  }

  get busy() {
    return this.abort !== null;
  }

  clear() {
    this.stop();
    this.messages = [];
    this.changed(null);
  }

  send(text) {
    this.messages.push({ role: "user", content: text });
    return this.answer();
  }

  /** The result of a call. The model goes on once every call of its message has one. */
  giveResult(message, call, result) {
    call.result = result;
    if (message.calls.some((one) => one.result === undefined)) {
      this.changed(message);
      return null;
    }
    for (const one of message.calls) this.messages.push({ role: "tool", callId: one.id, content: one.result });
    return this.answer();
  }

  /** Answers the last question anew. */
  regenerate() {
    while (this.messages.length && this.messages[this.messages.length - 1].role === "assistant") this.messages.pop();
    return this.messages.length ? this.answer() : null;
  }

  stop() {
    this.abort?.abort();
  }

  /** The body that would be sent now, with `draft` as the next message if there is one. */
  nextBody(draft) {
    const messages = [...this.messages];
    if (draft.trim()) messages.push({ role: "user", content: draft });
    else while (messages.length && messages[messages.length - 1].role === "assistant") messages.pop();
    return requestBody(this.model, sendable(messages));
  }

  async answer() {
    const sent = sendable(this.messages);
    const message = newAnswer(this.model);
    this.messages.push(message);
    const abort = (this.abort = new AbortController());
    this.changed(null);
    try {
      message.body = requestBody(this.model, sent);
      const { requestId, events } = await this.open(message, abort.signal);
      message.requestId = requestId;
      for await (const { data } of events) {
        if (data !== "[DONE]") this.take(message, JSON.parse(data));
      }
      message.state = message.error ? "failed" : "done";
    } catch (error) {
      message.state = abort.signal.aborted ? "stopped" : "failed";
      message.needsKey = error.status === 401;
      if (message.state === "failed") message.error = explained(error);
    } finally {
      message.ended = performance.now();
      if (this.abort === abort) this.abort = null;
      this.changed(message);
    }
  }

  /** Opens the stream of an answer. While the model loads, the server refuses it: then the answer waits, and asks again. */
  async open(message, signal) {
    const options = {
      body: message.body, signal, headers: { "X-Cohort-Progress": "1" }, onComment: (text) => this.hear(message, text),
    };
    for (let refusals = 0; ; refusals += 1) {
      try {
        return await stream("/v1/chat/completions", options);
      } catch (error) {
        if (error.status !== 503 || refusals > 1) throw error;
        await this.loaded(message, signal);
      }
    }
  }

  /** Waits while the server loads. */
  async loaded(message, signal) {
    for (;;) {
      const told = await ready();
      if (signal.aborted || told.status !== "loading") return;
      message.wait = progressOfServer(told);
      await new Promise((resolve) => setTimeout(resolve, LOOK));
    }
  }

  /** A comment: what the answer waits for. A process without the engine does not know; the stage and the feed can tell. */
  async hear(message, comment) {
    const progress = progressOf(comment);
    if (progress === null) return;
    const { last } = message;
    const wait = progress.state === "unknown" ? await this.lookUp(progress.id) : progress;
    if (message.last === last) message.wait = wait;
  }

  async lookUp(id) {
    const wait = progressOfServer(await ready().catch(() => ({})));
    return wait.state === "waiting" ? progressInFeed(this.sequences(), id) : wait;
  }

  /** One chunk of a stream. */
  take(message, chunk) {
    message.wait = null;
    if (chunk.error) message.error = chunk.error.message;
    message.requestId = chunk.id || message.requestId; // the answer's id, which the steps name it by
    if (chunk.usage) message.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice) {
      const { content, tool_calls: calls = [] } = choice.delta;
      const reasoning = choice.delta.reasoning ?? choice.delta.reasoning_content; // the server's --reasoning-field
      if (content || reasoning || calls.length) {
        message.last = performance.now();
        message.first ??= message.last;
        message.tokens += 1;
      }
      message.content += content || "";
      message.reasoning += reasoning || "";
      for (const call of calls || []) this.takeCall(message, call);
      message.finish = choice.finish_reason ?? message.finish;
    }
    this.changed(message);
  }

  takeCall(message, delta) {
    const call = (message.calls[delta.index] ??= { id: "", name: "", arguments: "" });
    call.id = delta.id || call.id;
    call.name += delta.function?.name || "";
    call.arguments += delta.function?.arguments || "";
  }
}
