"""`Observer`: receives the events of the engine core. Counters, stories and the feed of steps are observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from typing import NamedTuple

from engine.errors import EngineError, Overloaded
from engine.interruptions import Outage
from engine.request import RequestContext
from engine.sequence import Sequence
from engine.story import PrefixMatch, WaitReason
from executors.contract import UnifiedBatch, UnifiedOutput

Waits = dict[WaitReason, float]
"""Seconds that a sequence has waited, by reason."""


class PrefixLookup(NamedTuple):
    """The search for a prompt's prefix."""

    searched: bool
    """Whether the prefix cache was searched; False for a prompt that a sibling computes, say."""
    explain: Callable[[], PrefixMatch]
    """Returns what was found, and why not more. To be called before the event is over."""


class Observer:
    """Is called once for each event, by the loop task or by the caller that submits. The methods do nothing here.

    An observer reads sequences and changes none; it must be quick and not raise. `now` is seconds of the engine's clock.

        queued --- admitted --- output_started .. tokens_committed .. finished      a sequence
                      ^------- preempted, interrupted -------'
        step_submitted --- step_landed or step_failed                               a step
    """

    # -- sequences -----------------------------------------------------------------------------------------------------

    def refused(self, context: RequestContext, error: Overloaded) -> None:
        """A call was not queued, or was dropped from the queue: once for all its sequences."""

    def queued(self, seq: Sequence, now: float, waits: Callable[[], Waits] | None) -> None:
        """A sequence was submitted. `waits` returns what it has waited until now, {} once it waits no longer; None: its output
        was complete on arrival."""

    def admitted(self, seq: Sequence, now: float, waits: Waits, lookup: PrefixLookup | None) -> None:
        """A sequence begins to run. `lookup`: how its prompt was looked up; None if it ran before."""

    def left_queue(self, seq: Sequence, waits: Waits) -> None:
        """A sequence ends that was never admitted."""

    def preempted(self, seq: Sequence, now: float) -> None:
        """A running sequence is about to be rolled back because others need its KV blocks."""

    def interrupted(self, seq: Sequence, now: float, cause: str, outage: Outage | None) -> None:
        """A running sequence is about to be rolled back by a failure; `outage` None: the executor goes on."""

    def kv_adopted(self, seq: Sequence, num_tokens: int, now: float, num_stateless: int = 0) -> None:
        """A sequence runs again after a failure; the KV of its first `num_tokens` tokens need not be computed again. KV of
        `num_stateless` tokens behind them is there as well, and no snapshot of the states of layers to go on from."""

    def kv_fetched(self, seq: Sequence, num_tokens: int, num_bytes: int, seconds: float, now: float) -> None:
        """KV of `num_tokens` tokens of a waiting sequence was read from disk, `num_bytes` in `seconds`; 0 tokens: in vain."""

    def output_started(self, seq: Sequence, count: int, now: float) -> None:
        """The first `count` tokens of a sequence were committed."""

    def output_resumed(self, seq: Sequence, now: float) -> None:
        """A sequence that was rolled back has a new token."""

    def tokens_committed(self, gaps: Mapping[tuple[int, float], int]) -> None:
        """A step gave tokens to sequences that had some: how many sequences, by the number of their tokens and the seconds since
        their last ones."""

    def failed(self, seq: Sequence, error: EngineError) -> None:
        """A sequence has ended, or is about to end, in an error."""

    def finished(self, seq: Sequence, now: float) -> None:
        """A sequence has ended: no token of it comes or counts any more."""

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step_submitted(self, batch: UnifiedBatch) -> None:
        """A step was sent to the executor."""

    def step_landed(
        self,
        batch: UnifiedBatch,
        output: UnifiedOutput,
        seqs: SequenceOf[Sequence],
        seconds: float,
        now: float,
    ) -> None:
        """A step's result was taken in at `now`, after `seconds`; `seqs` are its items' sequences, with their new tokens."""

    def step_failed(
        self, batch: UnifiedBatch, seqs: SequenceOf[Sequence], seconds: float, now: float, error: str
    ) -> None:
        """A step failed, or died with its executor."""

    def step_cut(self) -> None:
        """There was no memory for a step: the following ones are smaller."""

    # -- the executor --------------------------------------------------------------------------------------------------

    def sequences_rewound(self, num_resumed: int) -> None:
        """A failure rolled all sequences back; `num_resumed` of those that ran go on."""

    def executor_restarted(self, cause: str) -> None:
        """The executor is restarted after a death of this cause."""

    def blocks_adopted(self, num_kept: int, num_damaged: int) -> None:
        """The executor's new life has adopted KV blocks of an earlier one, and refused those whose memory was damaged."""

    def adapter_loaded(self) -> None:
        """The executor has loaded a LoRA adapter."""

    def adapter_evicted(self) -> None:
        """A LoRA adapter gives way to another one."""


class Observers(Observer):
    """Passes each event on to several observers, in their order. An event that one observer alone overrides costs one call."""

    def __init__(self, *observers: Observer) -> None:
        self._observers: tuple[Observer, ...] = ()
        self.add(*observers)

    def add(self, *observers: Observer) -> None:
        """Pass events on to these, too."""
        self._observers += observers
        for event in EVENTS:
            plain = getattr(Observer, event)
            methods = [
                getattr(one, event) for one in self._observers if getattr(type(one), event) is not plain
            ]
            if methods:
                vars(self)[event] = methods[0] if len(methods) == 1 else partial(_call_all, tuple(methods))


EVENTS = tuple(name for name in vars(Observer) if not name.startswith("_"))
"""Names of the methods of `Observer`."""


def _call_all(methods: tuple[Callable[..., None], ...], *arguments: object) -> None:
    for method in methods:
        method(*arguments)
