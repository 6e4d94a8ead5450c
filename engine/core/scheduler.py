"""The scheduler: which sequences compute how many tokens in the next step.

There is no prefill phase and no decode phase. Every sequence has `num_computed_tokens` catching up with its known tokens,
and a step grants each some of the difference within a token budget. Chunked prefill, decode and recompute after
preemption are the same grant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from engine.core.journal import Journal
from engine.core.sequence import Sequence, SequenceStatus
from engine.errors import InvalidRequest, SequenceFailed
from engine.kv.kv_cache_manager import KvCacheManager
from engine.policies.victim import youngest_not_granted
from engine.request import FinishReason, TokenDelta
from executors.contract import NOTHING_LEFT, SampledToken, SequenceStart, UnifiedBatch, UnifiedOutput


@dataclass(slots=True)
class StepPlan:
    """What one step grants; filled by `schedule`, then packed into a UnifiedBatch."""

    budget: int
    grants: dict[Sequence, int] = field(default_factory=dict)
    preempted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Owns the waiting and running sequences. Called by the loop task only; never waits, touches no executor.

    - `waiting`: sequences without KV: new ones at the back, preempted ones at the front.
    - `running`: sequences with a slot and KV, in order of admission.
    - `released`: ids whose executor state must go, taken by the loop after each commit.
    """

    def __init__(
        self, kv: KvCacheManager, journal: Journal, max_num_seqs: int, max_num_batched_tokens: int
    ) -> None:
        self.kv = kv
        self.journal = journal
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_steps = 0
        self._free_slots = deque(range(max_num_seqs))
        self._in_flight: dict[int, list[Sequence]] = {}
        self._released: list[int] = []
        self._rolled_back: list[Sequence] = []

    # -- sequences come and go ---------------------------------------------------------------------------------------

    def add(self, seq: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(seq)

    def finish(self, seq: Sequence, reason: FinishReason) -> None:
        """End a sequence now; what a step in flight still computes for it is dropped. Ending it twice is harmless."""
        if seq.finished:
            return
        if seq.status is SequenceStatus.RUNNING:
            self.running.remove(seq)
        else:
            self.waiting.remove(seq)
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
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
        self._grant_running(plan)
        if not plan.preempted:
            self._admit_waiting(plan)
        return self._pack(plan) if plan.grants else None

    def _grant_running(self, plan: StepPlan) -> None:
        # Decodes first: one token each, so that a long prompt's chunks take only what is left of the budget.
        for seq in sorted(self.running, key=lambda s: s.num_uncomputed_tokens > 1):
            if plan.budget <= 0:
                break
            if seq.status is not SequenceStatus.RUNNING:
                continue  # preempted a moment ago, to make room for one before it
            grant = min(seq.num_uncomputed_tokens, plan.budget)
            if self._make_room(seq, seq.num_computed_tokens + grant, plan):
                plan.grants[seq] = grant
                plan.budget -= grant

    def _make_room(self, seq: Sequence, num_tokens: int, plan: StepPlan) -> bool:
        """Grow the table, preempting others until it fits; False if the sequence itself had to give way."""
        while not self.kv.grow(seq, num_tokens):
            victim = youngest_not_granted(self.running, plan.grants)
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        """Roll back to nothing computed; it keeps its slot and is first in line for readmission."""
        self.kv.free(seq)
        seq.num_computed_tokens = 0
        seq.status = SequenceStatus.PREEMPTED
        self.running.remove(seq)
        self.waiting.appendleft(seq)
        if seq.started_epoch == self.journal.epoch:
            self._rolled_back.append(seq)
        self.num_preemptions += 1

    def _admit_waiting(self, plan: StepPlan) -> None:
        """Admit in order while slots, blocks and budget last: the prompts admitted together are this step's cohort.

        Room for all its known tokens is taken at once: admitted sequences never starve each other half way.
        """
        while self.waiting and plan.budget > 0:
            seq = self.waiting[0]
            if seq.slot is None and not self._free_slots:
                break
            fresh_slot = seq.slot is None
            if fresh_slot:
                seq.slot = self._free_slots.popleft()
            if not self.kv.grow(seq, seq.num_tokens):
                if fresh_slot and seq.slot is not None:
                    self._free_slots.appendleft(seq.slot)
                    seq.slot = None
                break
            self.waiting.popleft()
            self.running.append(seq)
            seq.status = SequenceStatus.RUNNING
            plan.grants[seq] = min(seq.num_uncomputed_tokens, plan.budget)
            plan.budget -= plan.grants[seq]

    def _pack(self, plan: StepPlan) -> UnifiedBatch:
        """Arrays for the executor; marks the sequences as in flight."""
        seqs = list(plan.grants)
        grants = np.fromiter(plan.grants.values(), np.int32, len(seqs))
        computed = np.fromiter((s.num_computed_tokens for s in seqs), np.int32, len(seqs))
        known = np.fromiter((s.num_tokens for s in seqs), np.int32, len(seqs))
        token_ids = np.empty(int(grants.sum()), np.int32)
        starts: list[SequenceStart] = []
        at = 0
        for seq, grant in plan.grants.items():
            begin = seq.num_computed_tokens
            token_ids[at : at + grant] = seq.token_ids(begin, begin + grant)
            at += grant
            seq.in_flight = True
            if seq.started_epoch != self.journal.epoch:
                starts.append(seq.start())
                seq.started_epoch = self.journal.epoch
        self.num_steps += 1
        self._in_flight[self.num_steps] = seqs
        return UnifiedBatch(
            epoch=self.journal.epoch,
            step_id=self.num_steps,
            seq_ids=np.fromiter((s.seq_id for s in seqs), np.int64, len(seqs)),
            slots=np.fromiter((s.slot for s in seqs), np.int32, len(seqs)),
            num_q_tokens=grants,
            pos_offsets=computed,
            is_final_chunk=computed + grants == known,
            num_draft_tokens=np.zeros(len(seqs), np.int32),
            token_ids=token_ids,
            starts=tuple(starts),
            tables=self.kv.take_updates(),
        )

    # -- results -----------------------------------------------------------------------------------------------------

    def commit(self, batch: UnifiedBatch, output: UnifiedOutput) -> list[tuple[Sequence, TokenDelta]]:
        """Take in a step's result; returns what each sequence gained. Output of an older epoch changes nothing."""
        seqs = self._in_flight.pop(batch.step_id, [])
        if not self.journal.accepts(batch.epoch):
            return []
        deltas: list[tuple[Sequence, TokenDelta]] = []
        sampled = iter(output.token_ids.tolist())
        counts, grants = output.num_tokens.tolist(), batch.num_q_tokens.tolist()
        for i, seq in enumerate(seqs):
            ids = [next(sampled) for _ in range(counts[i])]
            seq.in_flight = False
            if seq.finished:
                self._let_go(seq)
                continue
            seq.num_computed_tokens += grants[i]
            detail = output.details.get(i)
            if detail is not None and detail.error is not None:
                deltas.append((seq, self._fail(seq, detail.error)))
            elif ids:
                tokens = (
                    detail.tokens if detail is not None else tuple(SampledToken(token_id) for token_id in ids)
                )
                deltas.append((seq, self._append(seq, tokens)))
        return deltas

    def _append(self, seq: Sequence, tokens: tuple[SampledToken, ...]) -> TokenDelta:
        """Commit tokens up to the first that ends the sequence."""
        request = seq.request
        kept: list[SampledToken] = []
        reason: FinishReason | None = None
        for token in tokens:
            kept.append(token)
            if token.token_id in request.stop_token_ids:
                reason = FinishReason.STOP
            elif len(seq.output_token_ids) + len(kept) >= request.max_tokens:
                reason = FinishReason.LENGTH
            if reason is not None:
                break
        self.journal.commit(seq, kept)
        stop_token_id = kept[-1].token_id if reason is FinishReason.STOP else None
        if reason is not None:
            self.finish(seq, reason)
        return TokenDelta(kept, reason, stop_token_id)

    def _fail(self, seq: Sequence, message: str) -> TokenDelta:
        if message == NOTHING_LEFT:
            # What the client asked for cannot go on; it counts with the requests taken back, not with our failures.
            self.finish(seq, FinishReason.ABORT)
            culprit = "bad_words" if seq.request.sampling.bad_words else None
            said = f"{message} at position {len(seq.output_token_ids)} of the output"
            error = InvalidRequest(said, culprit, "invalid_value")
            return TokenDelta(finish_reason=FinishReason.ERROR, error=error)
        self.finish(seq, FinishReason.ERROR)
        return TokenDelta(finish_reason=FinishReason.ERROR, error=SequenceFailed(message))

    # -- after a failure -----------------------------------------------------------------------------------------------

    def abandon(self, batch: UnifiedBatch) -> list[Sequence]:
        """Forget a step that failed. Returns its live sequences; the caller fails them or lets them be recomputed."""
        seqs = self._in_flight.pop(batch.step_id, [])
        for seq in seqs:
            seq.in_flight = False
            if seq.finished:
                self._let_go(seq)
        return [seq for seq in seqs if not seq.finished]

    def rewind(self) -> None:
        """The executor lost everything it held: all running sequences go back to waiting, oldest first, to be recomputed
        from their prompt and committed tokens. Called after `Journal.open_epoch` with no step in flight."""
        for seq in reversed(list(self.running)):
            self._preempt(seq)
        self._rolled_back.clear()  # the new executor life holds nothing to roll back
        self._released.clear()  # nor anything to release

    def check_integrity(self) -> None:
        """Raises RuntimeError unless blocks and slots are all accounted for. Cheap enough for every idle moment."""
        live = [*self.running, *self.waiting]
        zombies = [s for seqs in self._in_flight.values() for s in seqs if s.finished]
        self.kv.check_integrity(_once([*live, *zombies]))
        slots = [s.slot for s in _once([*live, *zombies]) if s.slot is not None] + list(self._free_slots)
        if len(slots) != len(set(slots)):
            raise RuntimeError("a slot is held twice")


def _once(seqs: Iterable[Sequence]) -> list[Sequence]:
    return list(dict.fromkeys(seqs))
