"""The scheduler: which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase. Every sequence has `num_computed_tokens` catching up with its tokens, and a
step grants each some of the difference within a token budget. Chunked prefill, decode, verification of drafts, prefix hits
and recompute after preemption or a crash are the same grant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from engine.core.backlog import Backlog
from engine.core.config import FAILED_STEPS_BEFORE_ALONE
from engine.core.drafter import Drafter
from engine.core.journal import Journal
from engine.core.plan import StepPlan, pack
from engine.core.policies import Policies
from engine.core.sequence import Sequence, SequenceStatus
from engine.errors import InvalidRequest, SequenceFailed
from engine.kv.kv_cache_manager import Hit, KvCacheManager
from engine.policies.budget import MIN_CHUNK
from engine.request import FinishReason, TokenDelta
from executors.contract import GRAMMAR_TOO_LARGE, NOTHING_LEFT, SampledToken, UnifiedBatch, UnifiedOutput


class Scheduler:
    """Owns the waiting and running sequences. Called by the loop task only; never waits, touches no executor.

    - `waiting`: sequences without KV, new or preempted, in the order of the queue policy.
    - `running`: sequences with a slot and KV, in order of admission; a dict, for its O(1) removal.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        journal: Journal,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        policies: Policies | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        """A sequence in `backlog` leaves it when it is admitted, or ends before."""
        self.kv = kv
        self.journal = journal
        self.max_num_batched_tokens = max_num_batched_tokens
        self.policies = policies or Policies()
        self._backlog = backlog
        self.waiting = self.policies.queue
        self.running: dict[Sequence, None] = {}
        self.num_preemptions = 0
        self.num_steps = 0
        self.num_resumed = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._num_slots = max_num_seqs
        self._free_slots = deque(range(max_num_seqs))
        self._in_flight: dict[int, list[Sequence]] = {}
        self._released: list[int] = []
        self._rolled_back: list[Sequence] = []
        self._suspects: dict[Sequence, None] = {}
        self._plain = _PlainTokens()

    # -- sequences come and go ---------------------------------------------------------------------------------------

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.add(seq)

    def finish(self, seq: Sequence, reason: FinishReason) -> None:
        """End a sequence now; what steps in flight still compute for it is dropped. Ending it twice is harmless."""
        if seq.finished:
            return
        if seq.status is SequenceStatus.RUNNING:
            del self.running[seq]
        else:
            self.waiting.remove(seq)
        if seq.status is SequenceStatus.WAITING and self._backlog is not None:
            self._backlog.leave(seq)
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
        self._suspects.pop(seq, None)
        self.policies.queue.gone(seq)
        if not seq.in_flight:
            self._let_go(seq)

    def _let_go(self, seq: Sequence) -> None:
        """Give back all a finished sequence holds, once no step in flight uses it."""
        self.kv.free(seq)
        if seq.slot is not None:
            self._free_slots.append(seq.slot)
            seq.slot = None
        if seq.started_epoch == self.journal.epoch:
            self._released.append(seq.seq_id)
        seq.started_epoch = None

    def take_released(self) -> list[int]:
        """Ids of sequences the executor must release, each exactly once."""
        released, self._released = self._released, []
        return released

    def take_rolled_back(self) -> list[Sequence]:
        """Sequences preempted by the last `schedule`, whose KV in the executor must be truncated to 0."""
        rolled_back, self._rolled_back = self._rolled_back, []
        return rolled_back

    # -- a step ------------------------------------------------------------------------------------------------------

    def schedule(self) -> UnifiedBatch | None:
        """The next step, or None if nothing can be computed. Modifies sequences and KV tables, touches no executor."""
        plan = StepPlan(self.max_num_batched_tokens)
        self.kv.begin_step()
        if self._suspects:
            self._grant_suspect(plan)
            return self._pack(plan) if plan.grants else None
        chunks = self._grant_decodes(plan)
        # What follows are prompts: how much of them the running streams can bear beside them, with or without a token in
        # this very step.
        streams = len(self.running) - len(chunks)
        if not self._stream_waits(chunks):
            plan.budget = min(plan.budget, self.policies.budget.prompt_tokens(streams, plan.budget))
        for seq in chunks:
            if seq.status is SequenceStatus.RUNNING:
                self._grant(seq, min(seq.num_uncomputed_tokens, plan.budget), plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        return self._pack(plan) if plan.grants else None

    def _stream_waits(self, chunks: SequenceOf[Sequence]) -> bool:
        """Whether somebody's stream stands still until it is computed anew: after a restart, or preempted. Small chunks would
        spare those who run already at its cost."""
        first = next(iter(self.waiting), None)
        return any(seq.output_token_ids for seq in ((*chunks, first) if first is not None else chunks))

    def _grant_suspect(self, plan: StepPlan) -> None:
        """After two failed steps in a row: who was in both is computed alone, with nothing else out, until it gives a token
        or fails the third step, by itself."""
        if any(seq.in_flight for seq in self.running):
            return
        seq = next(iter(self._suspects))
        if seq.status is not SequenceStatus.RUNNING:
            hit = self.kv.find(seq)
            while not self.kv.fits(seq, hit):
                self._preempt(self.policies.victim(self.running))
                hit = self.kv.find(seq)
            self._admit(seq, hit)
            self.waiting.remove(seq)
        self._grant(seq, min(seq.num_uncomputed_tokens, plan.budget), plan)

    def _grant_decodes(self, plan: StepPlan) -> list[Sequence]:
        """A token (and drafts) for each sequence with only its last token to compute; returns those with more."""
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for seq in self.policies.queue.ordered(self.running):
            uncomputed = seq.num_uncomputed_tokens
            if uncomputed > 1:
                chunks.append(seq)
            elif uncomputed and not seq.drafting and seq.num_to_generate > 0:
                decodes.append(seq)
        drafter = self.policies.drafter
        # Guesses take what is left when every stream has its token and prompts get on.
        kept = MIN_CHUNK if chunks or len(self.waiting) else 0
        for number, seq in enumerate(decodes, 1):
            if seq.status is not SequenceStatus.RUNNING:
                continue  # preempted a moment ago
            if drafter is None:
                self._grant(seq, 1, plan)
            elif not seq.num_pending_tokens:
                self._draft(seq, drafter, plan.budget - 1 - (len(decodes) - number) - kept, plan)
        return chunks

    def _draft(self, seq: Sequence, drafter: Drafter, most: int, plan: StepPlan) -> None:
        """Grant the last token and at most so many guesses of what follows it, never past the sequence's end."""
        drafts = drafter.propose(seq)[: max(0, min(seq.num_to_generate - 1, most))]
        if self._grant(seq, 1 + len(drafts), plan) and drafts:
            plan.drafts[seq] = drafts
            seq.drafting = True

    def _grant(self, seq: Sequence, count: int, plan: StepPlan) -> bool:
        """Let the step compute the next `count` tokens of a running sequence, if there is budget and room."""
        if not 0 < count <= plan.budget:
            return False
        end = seq.num_computed_tokens + count
        while not self.kv.grow(seq, end):
            victim = self.policies.victim(s for s in self.running if s not in plan.grants)
            self._preempt(victim)
            plan.preempted = True
            if victim is seq:
                return False
        self.kv.register(seq, end)
        self.policies.queue.charge(seq, count)
        plan.grants[seq] = count
        plan.budget -= count
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Roll back to nothing computed; it keeps its slot and its place in the queue."""
        self.kv.free(seq)
        seq.num_computed_tokens = 0
        seq.status = SequenceStatus.PREEMPTED
        del self.running[seq]
        self.waiting.add(seq)
        if seq.started_epoch == self.journal.epoch:
            self._rolled_back.append(seq)
        self.num_preemptions += 1

    def _admit_waiting(self, plan: StepPlan) -> None:
        """Admit in order while slots, blocks and budget last: the prompts admitted together are this step's cohort.

        Room for all its known tokens is taken at once: admitted sequences never starve each other half way. One that would
        read what this very step computes is passed over, for this step only.
        """
        admitted: list[Sequence] = []
        for seq in self.waiting:
            if plan.budget <= 0 or not (self._free_slots or self._num_waiting_slots()):
                break
            if seq.in_flight or (seq.slot is None and not self._free_slots):
                continue  # preempted with a step out, whose result comes first; or those with slots must go before it
            if seq.slot is None and not self.waiting.may_take_slot(seq, self._num_slots):
                continue
            hit = self.kv.find(seq)
            if hit.pending:
                continue
            if not self.kv.fits(seq, hit):
                break
            self._admit(seq, hit)
            admitted.append(seq)
            self._grant(seq, min(seq.num_uncomputed_tokens, plan.budget), plan)
        for seq in admitted:
            self.waiting.remove(seq)

    def _num_waiting_slots(self) -> int:
        """Slots held by sequences that do not run: preempted ones, and for a moment finished ones."""
        return self._num_slots - len(self._free_slots) - len(self.running)

    def _admit(self, seq: Sequence, hit: Hit) -> None:
        if seq.slot is None:
            seq.slot = self._free_slots.popleft()
            self.policies.queue.took_slot(seq)
        self.kv.begin(seq, hit)
        if seq.status is SequenceStatus.WAITING:
            if self._backlog is not None:
                self._backlog.leave(seq)
            seq.num_cached_tokens = min(hit.num_tokens, seq.prompt_len)
            if hit.looked_up:
                self.prefix_queries += seq.prompt_len
                self.prefix_hits += seq.num_cached_tokens
        seq.status = SequenceStatus.RUNNING
        self.running[seq] = None

    def _pack(self, plan: StepPlan) -> UnifiedBatch:
        """The step for the executor; the grants count as computed from here on."""
        self.num_steps += 1
        self._in_flight[self.num_steps] = list(plan.grants)
        return pack(plan, self.num_steps, self.journal.epoch, self.kv)

    # -- results -----------------------------------------------------------------------------------------------------

    def observe(self, batch: UnifiedBatch, seconds: float) -> None:
        """A step took so long; the budget policy learns from it."""
        decodes = int(np.count_nonzero(batch.num_q_tokens == batch.num_draft_tokens + 1))
        prompt_tokens = batch.total_q_tokens() - decodes - int(batch.num_draft_tokens.sum())
        self.policies.budget.observe(decodes, prompt_tokens, seconds)

    def commit(self, batch: UnifiedBatch, output: UnifiedOutput) -> list[tuple[Sequence, TokenDelta]]:
        """Take in a step's result; returns what each sequence gained. Output of an older epoch changes nothing."""
        seqs = self._in_flight.pop(batch.step_id)
        if not self.journal.accepts(batch.epoch):
            return []
        deltas: list[tuple[Sequence, TokenDelta]] = []
        ids, counts, details = output.token_ids.tolist(), output.num_tokens.tolist(), output.details
        final, drafts = batch.is_final_chunk.tolist(), batch.num_draft_tokens.tolist()
        at = 0
        for i, seq in enumerate(seqs):
            begin, at = at, at + counts[i]
            seq.in_flight -= 1
            if seq.finished:
                if not seq.in_flight:
                    self._let_go(seq)
                continue
            if seq.num_void_results:
                seq.num_void_results -= 1
                continue
            if drafts[i]:
                self._settle(seq, int(batch.pos_offsets[i]) + counts[i])
            elif final[i]:
                seq.num_pending_tokens -= 1
            detail = details.get(i)
            if detail is not None and detail.prompt_logprobs:
                self.journal.commit_prompt(seq, int(batch.pos_offsets[i]), detail.prompt_logprobs)
            if detail is not None and detail.error is not None:
                if (failed := self._fail(seq, detail.error)) is not None:
                    deltas.append((seq, failed))
            elif at > begin:
                tokens = detail.tokens if detail is not None else [self._plain[id_] for id_ in ids[begin:at]]
                deltas.append((seq, self._append(seq, tokens)))
            elif detail is not None and detail.pooled is not None:
                deltas.append((seq, self._pooled(seq, detail.pooled)))
        return deltas

    def _settle(self, seq: Sequence, num_computed: int) -> None:
        """Drafts were verified: the KV of the rejected ones counts as not written."""
        seq.drafting = False
        if seq.status is SequenceStatus.RUNNING:
            seq.num_computed_tokens = num_computed

    def _append(self, seq: Sequence, tokens: SequenceOf[SampledToken]) -> TokenDelta:
        """Commit tokens up to the first that ends the sequence."""
        request, reason, stop_token_id = seq.request, None, None
        room = request.max_tokens - len(seq.output_token_ids)
        for n, token in enumerate(tokens, 1):
            if token.token_id in request.stop_token_ids:
                reason, stop_token_id = FinishReason.STOP, token.token_id
            elif n == room:
                reason = FinishReason.LENGTH
            if reason is not None:
                tokens = tokens[:n]
                break
        first = not seq.output_token_ids
        self.journal.commit(seq, tokens)
        self._clear(seq)
        if reason is not None:
            self.finish(seq, reason)
        delta = TokenDelta(list(tokens), reason, stop_token_id, seq.num_cached_tokens)
        if first and request.prompt_logprobs is not None:
            delta.prompt_logprobs = tuple(seq.prompt_logprobs)
        return delta

    def _pooled(self, seq: Sequence, pooled: NDArray[np.float32]) -> TokenDelta:
        """An embedding request ends with its prompt."""
        self._clear(seq)
        self.finish(seq, FinishReason.STOP)
        return TokenDelta(
            finish_reason=FinishReason.STOP, num_cached_tokens=seq.num_cached_tokens, pooled=pooled
        )

    def _clear(self, seq: Sequence) -> None:
        """A step with this sequence in it went well: no failure is its fault."""
        if seq.num_failed_steps:
            seq.num_failed_steps = 0
            self._suspects.pop(seq, None)

    def _fail(self, seq: Sequence, message: str) -> TokenDelta | None:
        """The sequence failed alone. None if it gets another try, with KV of its own in place of what it shares."""
        if seq.request.grammar is not None and message.startswith(GRAMMAR_TOO_LARGE):
            self.finish(seq, FinishReason.ABORT)
            refused = InvalidRequest(message, "structured_outputs", "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=refused)
        if message == NOTHING_LEFT:
            # What the client asked for cannot go on; it counts with the requests taken back, not with our failures.
            self.finish(seq, FinishReason.ABORT)
            culprit = seq.request.sampling.restricted_by()
            said = f"{message} at position {len(seq.output_token_ids)} of the output"
            error = InvalidRequest(said, culprit, "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=error)
        self.kv.withdraw(seq)
        if seq.num_shared_blocks:
            # Whoever wrote that may have failed itself, a moment too late for this one to know.
            seq.alone, seq.num_pending_tokens, seq.drafting = True, 0, False
            seq.num_void_results = seq.in_flight
            if seq.status is SequenceStatus.RUNNING:
                self._preempt(seq)
            return None
        self.finish(seq, FinishReason.ERROR)
        return TokenDelta(finish_reason=FinishReason.ERROR, error=SequenceFailed(message))

    # -- after a failure -----------------------------------------------------------------------------------------------

    def abandon(self, batch: UnifiedBatch) -> None:
        """Forget a step of an older epoch that gave no result."""
        self._in_flight.pop(batch.step_id)

    def rewind(self, failed: UnifiedBatch | None = None) -> list[Sequence]:
        """The executor lost everything it held: all sequences go back to what is committed, to be recomputed from there.

        Called after `Journal.open_epoch`. `failed` is the step that did it, whose live sequences are returned. Steps still
        out belong to the older epoch; their results are dropped.
        """
        for seq in _once([*self.running, *self.waiting, *self._flying()]):
            seq.in_flight, seq.num_pending_tokens, seq.num_void_results = 0, 0, 0
            seq.drafting = False
            if seq.finished:
                self._let_go(seq)
        self.num_resumed += len(self.running)
        for seq in list(self.running):
            self._preempt(seq)
        self.kv.reset()
        self._rolled_back.clear()  # the new executor life holds nothing to roll back
        self._released.clear()  # nor anything to release
        involved = self._in_flight.pop(failed.step_id) if failed is not None else []
        live = [seq for seq in involved if not seq.finished]
        for seq in live:
            seq.num_failed_steps += 1
            if seq.num_failed_steps >= FAILED_STEPS_BEFORE_ALONE:
                self._suspects[seq] = None
        return live

    def check_integrity(self) -> None:
        """Raises RuntimeError unless blocks and slots are all accounted for. Cheap enough for every idle moment."""
        holders = _once([*self.running, *self.waiting, *self._flying()])
        self.kv.check_integrity(holders)
        slots = [seq.slot for seq in holders if seq.slot is not None] + list(self._free_slots)
        if len(slots) != len(set(slots)) or len(slots) != self._num_slots:
            raise RuntimeError("a slot is held twice, or lost")

    def _flying(self) -> list[Sequence]:
        return [seq for seqs in self._in_flight.values() for seq in seqs]


class _PlainTokens(dict[int, SampledToken]):
    """Tokens without logprobs, one object for each id of the vocabulary: making thousands a second costs time, and the
    garbage collector more."""

    def __missing__(self, token_id: int) -> SampledToken:
        token = self[token_id] = SampledToken(token_id)
        return token


def _once(seqs: Iterable[Sequence]) -> list[Sequence]:
    return list(dict.fromkeys(seqs))
