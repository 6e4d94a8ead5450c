"""What is known of a call since its body came, and work on that body. Each call is a task with variables of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from engine.errors import InvalidRequest
from server.system.worker_threads import DeadlineExceeded, FencedThreads

Result = TypeVar("Result")

ARRIVED: ContextVar[float | None] = ContextVar("arrived", default=None)
"""When the body of the call was there, in seconds of the engine's clock."""
_SIZE: ContextVar[int] = ContextVar("size", default=0)
"""Bytes of that body."""

INLINE_BODY_BYTES = 16 * 1024
"""What is asked for in so few bytes is gone through in milliseconds."""
_DEADLINE = 5.0
"""Seconds. The largest bodies take less than one."""


def mark_received(body: bytes) -> None:
    """The body of this task's call is there."""
    ARRIVED.set(time.monotonic())
    _SIZE.set(len(body))


async def run_off_loop_if_large(threads: FencedThreads, work: Callable[[], Result]) -> Result:
    """What `work`, a pure function of this task's body, comes to: of a large body on a thread, so that others go on meanwhile.

    Raises what it raises, and InvalidRequest if it takes too long.
    """
    if _SIZE.get() <= INLINE_BODY_BYTES:
        return work()
    try:
        return await threads.run(work, _DEADLINE)
    except DeadlineExceeded:
        raise InvalidRequest("The request body took too long to parse.", code="invalid_value") from None
