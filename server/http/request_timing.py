"""Arrival time and size of a call's body, and work on that body. Each call is a task with context variables of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from engine.errors import InvalidRequest
from server.system.worker_threads import DeadlineExceeded, FencedThreads

Result = TypeVar("Result")

_ARRIVED: ContextVar[float | None] = ContextVar("arrived", default=None)
"""Time when the body of the call was complete, in seconds of the engine's clock."""
_SIZE: ContextVar[int] = ContextVar("size", default=0)
"""Size of that body in bytes."""

INLINE_BODY_BYTES = 16 * 1024
"""Size in bytes up to which a body is processed on the event loop: it takes milliseconds."""
_DEADLINE = 5.0
"""Time limit for the work on a body, in seconds. The largest bodies take less than one."""


def mark_received(body: bytes) -> None:
    """Record that the body of this task's call is complete."""
    _ARRIVED.set(time.monotonic())
    _SIZE.set(len(body))


def arrival_time() -> float:
    """Time when the body of this task's call was complete, in seconds of the engine's clock; the present time for a call
    that did not come by HTTP."""
    arrived = _ARRIVED.get()
    return time.monotonic() if arrived is None else arrived


def count_stored(size: int) -> None:
    """Count bytes that this task's request refers to as bytes of its body."""
    _SIZE.set(_SIZE.get() + size)


async def run_off_loop_if_large(threads: FencedThreads, work: Callable[[], Result]) -> Result:
    """The result of `work`, a pure function of this task's body. For a large body it runs on a thread, so as not to block others.

    Raises what `work` raises, and InvalidRequest if it takes too long.
    """
    if _SIZE.get() <= INLINE_BODY_BYTES:
        return work()
    try:
        return await threads.run(work, _DEADLINE)
    except DeadlineExceeded:
        raise InvalidRequest("The request body took too long to parse.", code="invalid_value") from None
