"""`StepWatch`: tells subscribers what each step computed, and how each sequence ended.

Without a subscriber the loop tests one attribute per step and makes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import TypeVar

from engine.observer import Observer
from engine.request import FinishReason
from engine.sequence import Sequence, SequenceStatus
from executors.contract import UnifiedBatch, UnifiedOutput

logger = logging.getLogger("cohort.engine")

RECOVERING = "recovering"
DECODE, VERIFY, PREFILL, RECOMPUTE = "d", "v", "p", "r"
"""Kinds of items. A recompute is a chunk of tokens that were computed before: after a preemption or a restart."""


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A sequence at one moment."""

    seq_id: int
    request_id: str
    choice: int
    """Number of the sequence within its call."""
    status: str
    """As `SequenceStatus`, or RECOVERING: it was running, and waits for the next executor."""
    arrived: float
    """Time of arrival, in seconds of the engine's clock."""
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    blocks: int
    """KV blocks that it holds, those shared with others included."""
    shared_blocks: int
    ttft: float | None = None
    """Seconds from its arrival to its first token; None before that."""


def view_of(seq: Sequence) -> SequenceView:
    """The sequence as it is now."""
    arrived, first = seq.context.arrival_time, seq.first_token_time
    return SequenceView(
        seq.seq_id,
        seq.context.request_id,
        seq.mailbox_key,
        RECOVERING if seq.lost_executor and not seq.finished else seq.status.value,
        arrived,
        seq.prompt_len,
        seq.num_cached_tokens,
        seq.num_computed_tokens,
        len(seq.output_token_ids),
        seq.request.max_tokens,
        seq.num_blocks,
        seq.num_held_shared_blocks,
        None if first is None else first - arrived,
    )


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """A sequence at its end. It holds no blocks then."""

    view: SequenceView
    at: float
    """Seconds of the engine's clock."""
    reason: str
    """As `FinishReason`."""


@dataclass(frozen=True, slots=True)
class StepItems:
    """The items of a step as columns of one length."""

    seq_ids: tuple[int, ...]
    kinds: str
    """One letter for each item."""
    num_q_tokens: tuple[int, ...]
    """Tokens computed, drafts included."""
    num_sampled: tuple[int, ...]
    """Tokens that came of it."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that is over. Times are seconds of the engine's clock."""

    step_id: int
    epoch: int
    began: float
    ended: float
    items: StepItems
    """The same object as in the record before if the same sequences decoded one token each in both."""
    started: tuple[SequenceView, ...] = ()
    """Sequences that the executor met with this step."""
    first_tokens: tuple[tuple[int, float], ...] = ()
    """Sequences that got their first token, and the time since their arrival."""
    error: str = ""
    """Why the step failed; "" if it did not."""


Record = TypeVar("Record", StepRecord, SequenceEnd)


class StepWatch(Observer):
    """Subscribers to steps and to the ends of sequences, and the records made for them. Called by the loop task only, but for
    `subscribe`."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[StepRecord], None]] = []
        self._end_listeners: list[Callable[[SequenceEnd], None]] = []
        self._last: StepItems | None = None
        self._last_ids: object = None
        """The array of ids of the last record, which the packer uses again while the same sequences are in a step."""

    @property
    def active(self) -> bool:
        """Whether there is a subscriber."""
        return bool(self._listeners)

    def subscribe(
        self, listener: Callable[[StepRecord], None], on_end: Callable[[SequenceEnd], None] | None = None
    ) -> Callable[[], None]:
        """Call `listener` with each step's record, and `on_end` with each sequence's end, which follows the record of its last
        step. Both are called from the loop task: they must be quick and not raise. Returns what ends that."""
        self._listeners.append(listener)
        if on_end is not None:
            self._end_listeners.append(on_end)

        def unsubscribe() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
            if on_end in self._end_listeners:
                self._end_listeners.remove(on_end)
            if not self._listeners:
                self._last = self._last_ids = None

        return unsubscribe

    def step_landed(
        self,
        batch: UnifiedBatch,
        output: UnifiedOutput,
        seqs: SequenceOf[Sequence],
        seconds: float,
        now: float,
    ) -> None:
        """A step's result was taken in at `now`, after `seconds`; `seqs` are its items' sequences, with their new tokens."""
        if not self._listeners:
            return
        items, first_tokens = self._items(batch, output, seqs, now)
        self._tell(_record(batch, seqs, seconds, now, items, first_tokens))

    def step_failed(
        self, batch: UnifiedBatch, seqs: SequenceOf[Sequence], seconds: float, now: float, error: str
    ) -> None:
        """A step failed, or died with its executor."""
        if not self._listeners:
            return
        items = _all_items(batch, [0] * len(batch), seqs)
        self._last = self._last_ids = None
        self._tell(_record(batch, seqs, seconds, now, items, error=error or "failed"))

    def finished(self, seq: Sequence, now: float) -> None:
        """A sequence has ended: no token of it comes or counts any more."""
        if not self._end_listeners:
            return
        view = replace(view_of(seq), status=SequenceStatus.FINISHED.value, blocks=0, shared_blocks=0)
        _tell_all(self._end_listeners, SequenceEnd(view, now, str(seq.finish_reason or FinishReason.ERROR)))

    def _tell(self, record: StepRecord) -> None:
        _tell_all(self._listeners, record)

    def _items(
        self, batch: UnifiedBatch, output: UnifiedOutput, seqs: SequenceOf[Sequence], now: float
    ) -> tuple[StepItems, tuple[tuple[int, float], ...]]:
        """The items, and the first tokens among what was sampled."""
        n, last = len(batch), self._last
        same = last is not None and self._last_ids is batch.seq_ids
        if last is not None and same and len(batch.token_ids) == len(output.token_ids) == n:
            return last, ()
        sampled = output.num_tokens.tolist()
        items = _all_items(batch, sampled, seqs)
        plain = items.kinds == DECODE * n and sampled == [1] * n
        self._last, self._last_ids = (items, batch.seq_ids) if plain else (None, None)
        first = tuple(
            (seq.seq_id, now - seq.context.arrival_time)
            for seq, count in zip(seqs, sampled, strict=True)
            if count and len(seq.output_token_ids) == count
        )
        return items, first


def _tell_all(listeners: list[Callable[[Record], None]], record: Record) -> None:
    for listener in tuple(listeners):
        try:
            listener(record)
        except Exception:
            logger.exception("a listener to steps failed")


def _all_items(batch: UnifiedBatch, sampled: list[int], seqs: SequenceOf[Sequence]) -> StepItems:
    columns = (batch.num_q_tokens.tolist(), batch.num_draft_tokens.tolist(), batch.pos_offsets.tolist())
    kinds = [
        _kind(seq, count, drafts, begin, new)
        for seq, count, drafts, begin, new in zip(seqs, *columns, sampled, strict=True)
    ]
    return StepItems(tuple(batch.seq_ids.tolist()), "".join(kinds), tuple(columns[0]), tuple(sampled))


def _kind(seq: Sequence, count: int, drafts: int, begin: int, new: int) -> str:
    """`new`: how many of its output tokens came of this very step."""
    if begin >= seq.prompt_len and count == 1 + drafts:
        return VERIFY if drafts else DECODE
    return RECOMPUTE if len(seq.output_token_ids) > new else PREFILL


def _record(
    batch: UnifiedBatch,
    seqs: SequenceOf[Sequence],
    seconds: float,
    now: float,
    items: StepItems,
    first_tokens: tuple[tuple[int, float], ...] = (),
    error: str = "",
) -> StepRecord:
    """The record of a step whose result came at `now`, after `seconds`."""
    started = _started(batch, seqs)
    return StepRecord(batch.step_id, batch.epoch, now - seconds, now, items, started, first_tokens, error)


def _started(batch: UnifiedBatch, seqs: SequenceOf[Sequence]) -> tuple[SequenceView, ...]:
    if not batch.starts:
        return ()
    ids = {start.seq_id for start in batch.starts}
    return tuple(view_of(seq) for seq in seqs if seq.seq_id in ids)
