"""`Sequences`: which sequences exist, and what they hold of slots and blocks.

They come, are admitted, give way, end and start over after a failure; `scheduler.py` decides when.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

from engine.config import FAILED_STEPS_BEFORE_ALONE
from engine.core.journal import Journal
from engine.interruptions import Outage
from engine.kv.adoption import Adopted, Holdings, NewLife, hold_over, settle
from engine.kv.hit import Hit
from engine.kv.kv_cache_manager import KvCacheManager
from engine.observer import Observer, PrefixLookup
from engine.request import FinishReason
from engine.sequence import Sequence, SequenceStatus
from engine.story import PrefixMatch, WaitReason
from engine.waiting.queue import WaitingQueue
from executors.contract import UnifiedBatch


class Tier(Protocol):
    """What the scheduler and `Sequences` know of `DiskTier`."""

    def ended(self, seq: Sequence) -> None:
        """A sequence ends, which has its tables still."""

    def preempted(self, seq: Sequence) -> None:
        """A sequence has lost its tables to others, and is to be computed again."""

    def waits(self, seq: Sequence) -> bool:
        """Whether a waiting sequence waits for the disk."""

    def explain(self, seq: Sequence, hit: Hit, match: PrefixMatch) -> PrefixMatch:
        """Complete what memory says of a prompt of which it had no more than `hit`."""

    def begins(self, seq: Sequence, hit: Hit) -> bool:
        """Whether it does from now on, for what `hit` lacks."""


class Sequences:
    """Owns the waiting and running sequences. Called by the loop task only; never waits, touches no executor.

    - `waiting`: sequences without KV, new or preempted.
    - `running`: sequences with a slot and KV, in order of admission; a dict, for its O(1) removal.
    - `by_step`: for each step in flight, by id, the sequences that it computes.
    - `returning`: sequences that ran when the executor failed and whose KV may be adopted: they are admitted before all others,
      in this order, so that no other sequence takes their blocks.
    - `suspects`: sequences that took part in two consecutive failed steps, in the order in which they are computed alone.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        journal: Journal,
        num_slots: int,
        waiting: WaitingQueue,
        observer: Observer,
    ) -> None:
        self.kv = kv
        self.journal = journal
        self.num_slots = num_slots
        self.waiting = waiting
        self.observer = observer
        self.running: dict[Sequence, None] = {}
        self.by_step: dict[int, list[Sequence]] = {}
        self.returning: dict[Sequence, None] = {}
        self.suspects: dict[Sequence, None] = {}
        paged = kv.layout.paged
        waiting.open(num_slots, paged, kv.capacity_tokens if paged else math.inf)
        self._free_slots = deque(range(num_slots))
        self._num_spared = 0
        """Prompt tokens found in the cache by sequences that were started since the last step."""
        self._spared: dict[int, int] = {}
        """The same by the step for which they were started, of steps in flight."""
        self._released: list[int] = []
        self._rolled_back: list[Sequence] = []
        self.tier: Tier | None = None
        """Takes the KV of ended sequences, and has that of waiting ones; None: there is no disk. Set by EngineCore."""
        self.holdings = Holdings()
        """What could be found or was sealed when the executor failed last."""

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
        seq.finish(reason)
        self.suspects.pop(seq, None)
        self._has_returned(seq)
        waits = self.waiting.end(seq)
        if waits and not seq.was_started:
            self.observer.left_queue(seq, waits)
        if not seq.in_flight:
            self.let_go(seq)

    def let_go(self, seq: Sequence) -> None:
        """Give back all a finished sequence holds, once no step in flight uses it."""
        if self.tier is not None:
            self.tier.ended(seq)
        self.kv.free(seq)
        if seq.started_epoch == self.journal.epoch:
            self._released.append(seq.seq_id)
        slot = seq.release()
        if slot is not None:
            self._free_slots.append(slot)

    def take_released(self) -> list[int]:
        """Ids of sequences the executor must release, each exactly once."""
        released, self._released = self._released, []
        return released

    def take_rolled_back(self) -> list[Sequence]:
        """Sequences preempted by the last `schedule`, whose KV in the executor must be truncated to 0."""
        rolled_back, self._rolled_back = self._rolled_back, []
        return rolled_back

    def can_admit(self, seq: Sequence) -> bool:
        """Whether a waiting sequence may be admitted now, if there are blocks for it. One preempted with a step in flight waits
        for its result. One without a slot waits until those with slots have gone."""
        return not seq.in_flight and (seq.slot is not None or bool(self._free_slots))

    def admit(self, seq: Sequence, hit: Hit) -> None:
        """Let a waiting sequence run. The caller takes it out of the order of `waiting` afterwards."""
        if seq.slot is None:
            seq.take_slot(self._free_slots.popleft())
            self.waiting.policy.took_slot(seq)
        self.kv.begin(seq, hit)
        first = seq.status is SequenceStatus.WAITING
        seq.admit(hit.num_tokens)
        now, waits = self.waiting.admitted(seq)
        lookup = PrefixLookup(hit.looked_up, partial(self._explain, seq, hit)) if first else None
        self.observer.admitted(seq, now, waits, lookup)
        if first:
            self.waiting.start(seq)
            self._num_spared += min(seq.num_cached_tokens, self.waiting.prompt_tokens(seq))
        self.running[seq] = None
        if seq in self.returning:
            unused = (hit.num_in_full_groups - hit.num_blocks) * self.kv.layout.block_size
            self.observer.kv_adopted(seq, hit.num_tokens, now, unused if hit.missed_state else 0)
        self._has_returned(seq)

    def _explain(self, seq: Sequence, hit: Hit) -> PrefixMatch:
        match = self.kv.explain(seq, hit)
        return match if self.tier is None else self.tier.explain(seq, hit, match)

    def _has_returned(self, seq: Sequence) -> None:
        if seq in self.returning:
            del self.returning[seq]
            if not (self.returning or self.kv.prefix_caching):
                self.kv.forget_blocks()  # KV was found after the failure only, by the sequences that had computed it

    def preempt(self, seq: Sequence, fault: str | None = None, outage: Outage | None = None) -> None:
        """Roll back to nothing computed; it keeps its slot and its place in the queue. `fault`: the failure that is the reason;
        None: others need its blocks. `outage`: None if the executor goes on."""
        now = self.waiting.clock()
        if fault is None:
            self.observer.preempted(seq, now)
        else:
            self.observer.interrupted(seq, now, fault, outage)
        self.kv.free(seq)
        seq.roll_back()
        del self.running[seq]
        self.waiting.add(seq)
        if fault is None:
            self.waiting.reasons.hold(seq, WaitReason.KV_BLOCKS)
            if self.tier is not None:
                self.tier.preempted(seq)
        if seq.started_epoch == self.journal.epoch:
            self._rolled_back.append(seq)

    def started(self) -> Iterator[Sequence]:
        """Sequences that the executor may know: running, preempted, or ended with a step in flight. Some come twice."""
        yield from self.running
        yield from (seq for seq in self.waiting if seq.slot is not None)
        yield from self._computed()

    def has_slot_to_run_in(self) -> bool:
        """Whether a waiting sequence could run: in a free slot, or in one held by a preempted sequence (or for a moment by a
        finished one)."""
        return len(self.running) < self.num_slots

    def no_room(self) -> None:
        """No sequence can be admitted beside those that run."""
        self.waiting.estimate.stuck(len(self.running))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def submitted(self, step_id: int, seqs: list[Sequence]) -> None:
        """A step was put together that computes these sequences."""
        self.by_step[step_id] = seqs
        if self._num_spared:
            self._spared[step_id], self._num_spared = self._num_spared, 0

    def done(self, step_id: int) -> list[Sequence]:
        """Remove a step that is no longer in flight, and return its sequences."""
        return self.by_step.pop(step_id)

    def spared_by(self, step_id: int) -> int:
        """Prompt tokens that the sequences started for a step found in the cache; 0 at a second call."""
        return self._spared.pop(step_id, 0)

    def went_well(self, seq: Sequence) -> None:
        """A step with this sequence in it went well: no failure is its fault."""
        if seq.num_failed_steps:
            seq.clear_failed_steps()
            self.suspects.pop(seq, None)

    # -- after a failure -----------------------------------------------------------------------------------------------

    def abandon(self, batch: UnifiedBatch) -> None:
        """Forget a step of an older epoch that gave no result."""
        self.done(batch.step_id)
        self._spared.pop(batch.step_id, None)

    def rewind(
        self,
        failed: UnifiedBatch | None = None,
        at_fault: bool = False,
        blameless: bool = False,
        cause: str = "failure",
        outage: Outage | None = None,
        keep: bool = False,
    ) -> list[Sequence]:
        """The executor lost everything it held: all sequences go back to what is committed, to be recomputed from there.

        Called after `Journal.open_epoch`. `failed` is the step that did it, whose live sequences are returned. `at_fault`:
        the step itself is wrong, and would fail again; its sequences are computed alone at once. `blameless`: it was too
        large, which no sequence is to blame for: no failed step is counted, and no sequence returned. Steps in flight belong
        to the older epoch; their results are dropped. `cause`: a word for the failure, for stories. `outage`: the time without
        an executor that begins with it. `keep`: sealed blocks keep their keys, for the next life may adopt them; not those of
        suspects, whose KV may be the cause. The sequences that ran are `returning` then.
        """
        self.waiting.reasons.wait_for(WaitReason.RECOVERY)
        for seq in _once([*self.running, *self.waiting, *self._computed()]):
            seq.drop_in_flight()
            if seq.finished:
                self.let_go(seq)
        rolled_back = list(self.running)
        if keep:
            rolled_back = self._hold_over(rolled_back)
        for seq in rolled_back:
            self.preempt(seq, cause, outage)
        for seq in self.waiting:
            seq.lose_executor()
        if keep:
            self.kv.changes.clear()
        else:
            self.returning.clear()
            self.kv.reset()
        self._rolled_back.clear()  # the new executor life holds nothing to roll back
        self._released.clear()  # nor anything to release
        self._spared.clear()
        self.waiting.estimate.stopped()
        involved = self.done(failed.step_id) if failed is not None else []
        live = [seq for seq in involved if not (seq.finished or blameless)]
        for seq in live:
            seq.count_failed_step(least=FAILED_STEPS_BEFORE_ALONE if at_fault else 0)
            if seq.num_failed_steps >= FAILED_STEPS_BEFORE_ALONE:
                # Behind the others: if the next death is by chance, it meets another one.
                self.suspects.pop(seq, None)
                self.suspects[seq] = None
                self.returning.pop(seq, None)
                self.kv.withdraw(seq)
        return live

    def _hold_over(self, running: list[Sequence]) -> list[Sequence]:
        """Keep what can be adopted. Returns the running sequences with those last that come back first: blocks are reused in
        the order in which they were freed."""
        self.holdings = hold_over(self.kv, running)
        returning = [*running, *self.returning]
        self.returning = dict.fromkeys(self.waiting.policy.ordered(returning))
        return [seq for seq in reversed(self.returning) if seq.status is SequenceStatus.RUNNING]

    def settle(self, life: NewLife) -> Adopted:
        """The executor's next life has begun. What it did not adopt is forgotten."""
        outcome = settle(self.kv, life, self.holdings)
        if not outcome.num_kept:
            self.returning.clear()
        return outcome

    def check_integrity(self) -> None:
        """Raises RuntimeError unless blocks and slots are all accounted for."""
        for _ in self.integrity():
            pass

    def integrity(self) -> Iterator[None]:
        """`check_integrity` a slice of about a millisecond at a time: nothing may change before it is exhausted."""
        holders = _once([*self.running, *self.waiting, *self._computed()])
        slots = [seq.slot for seq in holders if seq.slot is not None] + list(self._free_slots)
        if len(slots) != len(set(slots)) or len(slots) != self.num_slots:
            raise RuntimeError("a slot is held twice, or lost")
        yield from self.kv.integrity(holders)

    def _computed(self) -> list[Sequence]:
        """Sequences in steps in flight."""
        return [seq for seqs in self.by_step.values() for seq in seqs]


def _once(seqs: Iterable[Sequence]) -> list[Sequence]:
    return list(dict.fromkeys(seqs))
