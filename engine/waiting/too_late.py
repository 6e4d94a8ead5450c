"""Sequences that have waited too long to be started, and the error that each one ends with."""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import DeadlinePassed, Overloaded
from engine.refusal import Because
from engine.sequence import Sequence
from engine.waiting.queue import WaitingQueue


def too_late(waiting: WaitingQueue, now: float, patience: float) -> Iterator[tuple[Sequence, Overloaded]]:
    """Yield sequences that wait beyond their call's deadline, or for `patience` seconds, or that have just come and will: each
    once, and to be dropped at once. `now` in seconds of the engine's clock."""
    for seq in waiting.not_started.past_deadline(now):
        message = "the deadline passed before this request was started"
        refusal = waiting.refusal(
            seq.request, Because.DEADLINE, _deadline_after(seq), waited=_waited(seq, now)
        )
        yield seq, DeadlinePassed(message, waiting.retry_after(seq.request), refusal=refusal)
    for seq in waiting.not_started.out_of_patience(now):
        message = f"this request was not started within the {patience:g} s that it may wait"
        refusal = waiting.refusal(seq.request, Because.WAITED, patience, waited=_waited(seq, now))
        yield seq, Overloaded(message, waiting.retry_after(seq.request), refusal=refusal)
    for seq, wait, waited in waiting.overdue(now):
        message = (
            f"the queue is about {wait:.0f} s long, too long for the {patience:g} s that a request may wait"
        )
        refusal = waiting.refusal(seq.request, Because.ESTIMATED_WAIT, patience, wait, waited)
        yield seq, Overloaded(message, waiting.retry_after(seq.request), refusal=refusal)


def _waited(seq: Sequence, now: float) -> float:
    queued = seq.context.story.queued
    return 0.0 if queued is None else now - queued


def _deadline_after(seq: Sequence) -> float | None:
    """Seconds from the call's arrival to its deadline."""
    deadline = seq.context.deadline
    return None if deadline is None else max(0.0, deadline - seq.context.arrival_time)
