// What an answer waits for, in words.

import { count } from "../lib/format.js";

const AT_ONCE = 600;
/** Milliseconds without a token after which a chat says what it waits for: the server has told it by then. */
const PAUSE = 1000;
/** The same in the middle of an answer. */

/** `wait` of a message from a comment of its stream; null if the comment says nothing of it. */
export function progressOf(comment) {
  if (!comment.startsWith("progress ")) return null;
  try {
    return JSON.parse(comment.slice("progress ".length));
  } catch {
    return null;
  }
}

/** `wait` of a message from what /ready tells. */
export function progressOfServer({ status, detail, phase, done, total }) {
  if (status === "loading") return { state: "loading", detail: detail || phase || "", done, total };
  return { state: status === "recovering" ? "recovering" : "waiting" };
}

/** `wait` of a message from what the feed of steps told of the sequences, if it did: that of the answer with this id. */
export function progressInFeed(sequences, id) {
  const waiting = sequences.filter((seq) => seq.endedAt === null && seq.status !== "running").sort((a, b) => a.id - b.id);
  const at = waiting.findIndex((seq) => seq.requestId === id);
  return at < 0 ? { state: "waiting" } : { state: "waiting", place: at + 1 };
}

/** "loading the model: 40%"; other work than reading the weights is named, and a single piece of it has no percentage. */
function loading({ done, total, detail }) {
  const what = ["", "weights", "loading"].includes(detail) ? "loading the model" : `loading the model (${detail})`;
  return total > 1 ? `${what}: ${Math.min(99, Math.floor((100 * done) / total))}%` : what;
}

const WORDS = {
  waiting: ({ place }) => (place ? `waiting in the queue, place ${count(place)}` : "waiting for the first token"),
  prefill: ({ computed, total }) => `computing the prompt: ${count(computed)} of ${count(total)} tokens`,
  recompute: ({ computed, total }) => `computing the answer so far again: ${count(computed)} of ${count(total)} tokens`,
  recovering: () => "the executor is restarting",
  loading,
};
const GOING_ON = {
  waiting: ({ place }) => (place ? `paused; in the queue, place ${count(place)}` : "waiting for the next token"),
  recovering: () => "the executor was lost; your answer goes on in a moment",
  decode: () => "computing the next token",
};

/** What the message waits for at the time `now`, as { kind, text, seconds }; null while tokens come. `kind` changes with the
 * thing that is waited for, not with numbers: each is told to a screen reader. It is null before the server has told anything. */
export function waitOf(message, now) {
  if (message.state !== "streaming") return null;
  const since = message.last ?? message.begun;
  const begun = message.last !== null;
  if (now - since < (begun ? PAUSE : AT_ONCE) && message.wait?.state !== "recovering") return null;
  const wait = message.wait ?? { state: "waiting" };
  const words = (begun && GOING_ON[wait.state]) || WORDS[wait.state] || WORDS.waiting;
  const seconds = Math.floor((now - since) / 1000);
  return { kind: message.wait === null && seconds < 2 ? null : `${begun}-${wait.state}`, text: words(wait), seconds };
}

export const waitText = ({ text, seconds }) => (seconds ? `${text}, ${seconds} s` : text);
