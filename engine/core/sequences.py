"""The roster: which sequences are here, and what they hold of slots and blocks.

Coming, being admitted, giving way, ending and starting over after a failure, whoever decides it (`scheduler.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from engine.config import FAILED_STEPS_BEFORE_ALONE
from engine.core.journal import Journal
from engine.kv.kv_cache_manager import Hit, KvCacheManager
from engine.request import FinishReason
from engine.sequence import Sequence, SequenceStatus
from engine.waiting.order import QueuePolicy
from engine.waiting.wait_estimate import Backlog
from executors.contract import UnifiedBatch


class Roster:
    """Owns the waiting and running sequences. Called by the loop task only; never waits, touches no executor.

    - `waiting`: sequences without KV, new or preempted, in the order of the queue policy.
    - `running`: sequences with a slot and KV, in order of admission; a dict, for its O(1) removal.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        journal: Journal,
        num_slots: int,
        queue: QueuePolicy,
        backlog: Backlog | None,
    ) -> None:
        """A sequence in `backlog` leaves it when it is admitted, or ends before."""
        self.kv = kv
        self.journal = journal
        self.waiting = queue
        self.running: dict[Sequence, None] = {}
        self.num_preemptions = 0
        self.num_resumed = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._backlog = backlog
        if backlog is not None:
            backlog.opens(num_slots, shares_prompts=kv.layout.num_blocks > 0)
        self._num_slots = num_slots
        self._free_slots = deque(range(num_slots))
        self._in_flight: dict[int, list[Sequence]] = {}
        """Who is computed by each step that is out."""
        self._num_spared = 0
        """Tokens of prompts that were found in the cache, by those admitted since the last step."""
        self._spared: dict[int, int] = {}
        """The same by the step in which they were admitted, of steps that are out."""
        self._released: list[int] = []
        self._rolled_back: list[Sequence] = []
        self._suspects: dict[Sequence, None] = {}
        """Who was in two failed steps in a row."""

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
        if self._backlog is not None:
            self._backlog.end(seq)
        seq.finish(reason)
        self._suspects.pop(seq, None)
        self.waiting.gone(seq)
        if not seq.in_flight:
            self._let_go(seq)

    def _let_go(self, seq: Sequence) -> None:
        """Give back all a finished sequence holds, once no step in flight uses it."""
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

    def _admit(self, seq: Sequence, hit: Hit) -> None:
        if seq.slot is None:
            seq.take_slot(self._free_slots.popleft())
            self.waiting.took_slot(seq)
        self.kv.begin(seq, hit)
        first = seq.status is SequenceStatus.WAITING
        seq.admit(hit.num_tokens)
        if first:
            if self._backlog is not None:
                self._backlog.begin(seq)
                self._num_spared += min(seq.num_cached_tokens, self._backlog.tokens_of(seq))
            if hit.looked_up:
                self.prefix_queries += seq.prompt_len
                self.prefix_hits += seq.num_cached_tokens
        self.running[seq] = None

    def _preempt(self, seq: Sequence) -> None:
        """Roll back to nothing computed; it keeps its slot and its place in the queue."""
        self.kv.free(seq)
        seq.roll_back()
        del self.running[seq]
        self.waiting.add(seq)
        if seq.started_epoch == self.journal.epoch:
            self._rolled_back.append(seq)
        self.num_preemptions += 1

    def _slots_to_run_in(self) -> bool:
        """Whether anybody who waits could run: in a free slot, or in one held by a preempted sequence (or for a moment by a
        finished one)."""
        return len(self.running) < self._num_slots

    def _no_room(self) -> None:
        """Nobody else can be admitted beside those who run."""
        if self._backlog is not None:
            self._backlog.stuck(len(self.running))

    # -- after a failure -----------------------------------------------------------------------------------------------

    def abandon(self, batch: UnifiedBatch) -> None:
        """Forget a step of an older epoch that gave no result."""
        self._in_flight.pop(batch.step_id)
        self._spared.pop(batch.step_id, None)

    def rewind(
        self, failed: UnifiedBatch | None = None, at_fault: bool = False, blameless: bool = False
    ) -> list[Sequence]:
        """The executor lost everything it held: all sequences go back to what is committed, to be recomputed from there.

        Called after `Journal.open_epoch`. `failed` is the step that did it, whose live sequences are returned. `at_fault`:
        the step itself is wrong, and would fail again; its sequences are computed alone at once. `blameless`: it was too
        large, which is nobody's fault and no death survived: nothing is counted, nobody returned. Steps still out belong
        to the older epoch; their results are dropped.
        """
        for seq in _once([*self.running, *self.waiting, *self._flying()]):
            seq.drop_in_flight()
            if seq.finished:
                self._let_go(seq)
        self.num_resumed += 0 if blameless else len(self.running)
        for seq in list(self.running):
            self._preempt(seq)
        self.kv.reset()
        self._rolled_back.clear()  # the new executor life holds nothing to roll back
        self._released.clear()  # nor anything to release
        self._spared.clear()
        if self._backlog is not None:
            self._backlog.stopped()
        involved = self._in_flight.pop(failed.step_id) if failed is not None else []
        live = [seq for seq in involved if not (seq.finished or blameless)]
        for seq in live:
            seq.count_failed_step(least=FAILED_STEPS_BEFORE_ALONE if at_fault else 0)
            if seq.num_failed_steps >= FAILED_STEPS_BEFORE_ALONE:
                # Behind the others: if the next death is by chance, it meets another one.
                self._suspects.pop(seq, None)
                self._suspects[seq] = None
        return live

    def check_integrity(self) -> None:
        """Raises RuntimeError unless blocks and slots are all accounted for."""
        for _ in self.integrity():
            pass

    def integrity(self) -> Iterator[None]:
        """`check_integrity` a slice of about a millisecond at a time: nothing may change before it is exhausted."""
        holders = _once([*self.running, *self.waiting, *self._flying()])
        slots = [seq.slot for seq in holders if seq.slot is not None] + list(self._free_slots)
        if len(slots) != len(set(slots)) or len(slots) != self._num_slots:
            raise RuntimeError("a slot is held twice, or lost")
        yield from self.kv.integrity(holders)

    def _flying(self) -> list[Sequence]:
        return [seq for seqs in self._in_flight.values() for seq in seqs]


def _once(seqs: Iterable[Sequence]) -> list[Sequence]:
    return list(dict.fromkeys(seqs))
