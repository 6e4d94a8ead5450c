// What the feed told, kept for as long as it can be shown. Knows nothing of the page.
//
// A step has `items`: { ids, kinds, tokens, sampled } as columns; steps of the same streams share one object. Kinds: d decode,
// v decode with drafts, p prefill, r recomputed. Times are seconds of the server's clock.

import { count, quantile } from "../lib/format.js";

const KEEP = 45;
const RATE_SPAN = 2;
const ITL_SPAN = 5;
const TTFT_SPAN = 30;
const SPARK = 150;
const MAX_ENDED = 60;
const MAX_VIEWS = 128;
/** The feed tells at most so many sequences: of more, one that is missing need not have ended. */

export class History {
  constructor() {
    this.server = null;
    this.reset();
  }

  reset() {
    this.frame = null;
    this.steps = [];
    this.sequences = new Map();
    this.outages = [];
    /** Times without an executor: { epoch, began, ended, cause }. */
    this.lanes = [];
    this.lanesVersion = 0;
    /** Changes with `lanes`. */
    this.unknown = 0;
    /** Unfinished sequences of which the feed told nothing yet. */
    this.lit = null;
    /** Id of the sequence that is pointed at, in whichever view. */
    this.rates = [];
    this.gaps = [];
    this.ttfts = [];
    this.sparks = { rate: [], ttft: [], itl: [], queue: [], kv: [] };
    this.receivedAt = 0;
  }

  /** The server's clock now. */
  get now() {
    return this.frame === null ? 0 : this.frame.at + (performance.now() - this.receivedAt) / 1000;
  }

  get figures() {
    return {
      rate: this.rate(),
      ttft: quantile(this.ttfts.map(([, value]) => value), 0.5),
      itl: this.itl(0.5),
      itlHigh: this.itl(0.95),
    };
  }

  take(frame) {
    if (frame.server) this.server = frame.server;
    if (frame.at === undefined) {
      this.frame = null; // loading: there is no engine yet
      return;
    }
    if (this.frame !== null && (frame.at < this.frame.at || frame.server)) this.reset();
    this.frame = frame;
    this.receivedAt = performance.now();
    if (frame.skipped) for (const seq of this.sequences.values()) seq.lastToken = null;
    const told = new Set(frame.sequences.map((view) => view.id));
    for (const view of frame.sequences) this.see(view);
    let items = null;
    for (const step of frame.steps) {
      if (step.seq_ids) items = { ids: step.seq_ids, kinds: step.kinds, tokens: step.tokens, sampled: step.sampled };
      const started = (step.started || []).filter((view) => !told.has(view.id)); // the frame's own views are newer
      for (const view of started) this.see(view);
      this.takeStep(step, items);
      this.follow(items, told, new Set(started.map((view) => view.id)));
    }
    this.outages = frame.outages;
    this.noticeEnds(frame, told);
    this.rates.push([frame.at, frame.output_tokens]);
    this.forget(frame.at);
    this.keepSparks();
  }

  see(view) {
    let seq = this.sequences.get(view.id);
    if (seq === undefined) {
      seq = { id: view.id, lane: null, mark: this.freeMark(), firstStep: null, lastStep: null, lastToken: null, gaps: [], endedAt: null, reason: "" };
      this.sequences.set(view.id, seq);
      this.giveLane(seq);
    }
    Object.assign(seq, {
      requestId: view.request_id, choice: view.choice, status: view.status, arrived: view.arrived, prompt: view.prompt_tokens,
      cached: view.cached_tokens, max: view.max_tokens, blocks: view.blocks, shared: view.shared_blocks, output: view.output_tokens,
      ttft: view.ttft,
    });
  }

  /** Keeps up with sequences of which the frame has no view. The views of `started` count this step already. */
  follow(items, told, started) {
    items.ids.forEach((id, i) => {
      const seq = told.has(id) ? undefined : this.sequences.get(id);
      if (seq === undefined) return;
      if (!started.has(id)) seq.output += items.sampled[i];
      seq.status = "running";
    });
  }

  freeMark() {
    const taken = new Set([...this.sequences.values()].map((seq) => seq.mark));
    let mark = 0;
    while (taken.has(mark)) mark += 1;
    return mark;
  }

  giveLane(seq) {
    let lane = this.lanes.findIndex((holder) => holder === null);
    if (lane < 0) lane = this.lanes.length;
    this.lanes[lane] = seq;
    seq.lane = lane;
    this.lanesVersion += 1;
  }

  takeStep(told, items) {
    const step = { id: told.id, epoch: told.epoch, began: told.began, ended: told.ended, items, error: told.error || "" };
    this.steps.push(step);
    const weights = new Map();
    items.ids.forEach((id, i) => {
      const seq = this.sequences.get(id);
      if (seq === undefined) return;
      seq.firstStep ??= step.began;
      seq.lastStep = step.ended;
      const sampled = items.sampled[i];
      if (!sampled) return;
      if (seq.lastToken !== null) {
        const gap = (step.ended - seq.lastToken) / sampled;
        seq.gaps.push(gap);
        if (seq.gaps.length > 50) seq.gaps.shift();
        const rounded = Math.round(gap * 1e4) / 1e4;
        weights.set(rounded, (weights.get(rounded) || 0) + sampled);
      }
      seq.lastToken = step.ended;
    });
    for (const [gap, weight] of weights) this.gaps.push([step.ended, gap, weight]);
    for (const [id, ttft] of told.first_tokens || []) {
      this.ttfts.push([step.ended, ttft]);
      const seq = this.sequences.get(id);
      if (seq !== undefined) seq.ttft = ttft;
    }
  }

  noticeEnds(frame, told) {
    for (const end of frame.ended) {
      this.see(end);
      const seq = this.sequences.get(end.id);
      Object.assign(seq, { status: "ended", reason: end.finish_reason, endedAt: end.ended });
    }
    const complete = frame.sequences.length < MAX_VIEWS;
    let live = 0;
    for (const seq of this.sequences.values()) {
      if (seq.endedAt !== null) continue;
      if (told.has(seq.id) || !complete) live += 1;
      else Object.assign(seq, { status: "ended", endedAt: seq.lastStep ?? frame.at, blocks: 0, shared: 0 }); // its end was skipped
      if (!told.has(seq.id) && seq.status === "running" && frame.stage === "recovering") seq.status = "recovering";
    }
    this.unknown = Math.max(0, frame.running + frame.waiting - live);
  }

  forget(now) {
    const from = now - KEEP;
    let first = 0;
    while (first < this.steps.length && this.steps[first].ended < from) first += 1;
    if (first) this.steps.splice(0, first);
    const younger = (span) => ([at]) => at > now - span;
    this.rates = this.rates.filter(younger(RATE_SPAN + 0.1));
    this.gaps = this.gaps.filter(younger(ITL_SPAN));
    this.ttfts = this.ttfts.filter(younger(TTFT_SPAN));
    const ended = [...this.sequences.values()].filter((seq) => seq.endedAt !== null).sort((a, b) => b.endedAt - a.endedAt);
    ended.forEach((seq, i) => {
      if (seq.endedAt > from && i < MAX_ENDED) return;
      this.sequences.delete(seq.id);
      this.freeLane(seq);
    });
  }

  /** Frees lanes of sequences that ended before `from`: what is drawn there is out of sight. */
  freeLanes(from) {
    for (const seq of this.sequences.values()) if (seq.endedAt !== null && seq.endedAt < from) this.freeLane(seq);
  }

  freeLane(seq) {
    if (seq.lane === null) return;
    this.lanes[seq.lane] = null;
    seq.lane = null;
    this.lanesVersion += 1;
    while (this.lanes.length && this.lanes[this.lanes.length - 1] === null) this.lanes.pop();
  }

  /** Moves sequences that go on from beyond the first `rows` lanes to free ones among these. */
  fillLanes(rows) {
    for (let free = 0, from = rows; free < rows && this.lanes.length > rows; free += 1) {
      if (this.lanes[free] !== null) continue;
      while (from < this.lanes.length && (this.lanes[from] === null || this.lanes[from].endedAt !== null)) from += 1;
      const seq = this.lanes[from];
      if (seq === undefined) return;
      this.freeLane(seq);
      this.giveLane(seq);
    }
  }

  rate() {
    if (this.rates.length < 2) return 0;
    const [[from, before], [to, after]] = [this.rates[0], this.rates[this.rates.length - 1]];
    return to > from ? (after - before) / (to - from) : 0;
  }

  itl(share) {
    const sorted = [...this.gaps].sort((a, b) => a[1] - b[1]);
    const total = sorted.reduce((sum, [, , weight]) => sum + weight, 0);
    let passed = 0;
    for (const [, gap, weight] of sorted) {
      passed += weight;
      if (passed >= share * total) return gap;
    }
    return null;
  }

  keepSparks() {
    const { rate, ttft, itl } = this.figures;
    const { running, waiting, kv_blocks: blocks } = this.frame;
    const values = { rate, ttft, itl, queue: running + waiting, kv: blocks.total ? blocks.used / blocks.total : 0 };
    for (const [name, value] of Object.entries(values)) {
      this.sparks[name].push(value);
      if (this.sparks[name].length > SPARK) this.sparks[name].shift();
    }
  }
}

const ORDER = ["running", "recovering", "preempted", "waiting", "ended"];

/** The place of a state in lists: what computes comes first. */
export const rank = ({ status }) => ORDER.indexOf(status);

/** How many sequences are in which state, in words: "12 running, 76 waiting". `unknown` more wait. */
export function statesText(seqs, unknown = 0) {
  const counts = { waiting: unknown };
  for (const { status } of seqs) counts[status] = (counts[status] || 0) + 1;
  return ORDER.filter((state) => counts[state]).map((state) => `${count(counts[state])} ${state}`).join(", ");
}

/** The state of a sequence in a word: of one that ended, its finish reason. */
export const stateText = (seq) => (seq.status === "ended" ? seq.reason || "ended" : seq.status);

/** Whether a request has more than one sequence among those known. */
export function severalChoices(history) {
  const seen = new Set();
  const several = new Set();
  for (const { requestId } of history.sequences.values()) (seen.has(requestId) ? several : seen).add(requestId);
  return several;
}
