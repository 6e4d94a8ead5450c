"""Work on a call's body."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from engine.errors import InvalidRequest
from server.http.call import Call
from server.system.worker_threads import DeadlineExceeded, FencedThreads

Result = TypeVar("Result")

INLINE_BODY_BYTES = 16 * 1024
"""Size in bytes up to which a body is processed on the event loop: it takes milliseconds."""
_DEADLINE = 5.0
"""Time limit for the work on a body, in seconds. The largest bodies take less than one."""


async def run_off_loop_if_large(call: Call, threads: FencedThreads, work: Callable[[], Result]) -> Result:
    """The result of `work`, a pure function of the call's body. For a large body it runs on a thread, so as not to block others.

    Raises what `work` raises, and InvalidRequest if it takes too long.
    """
    if call.size <= INLINE_BODY_BYTES:
        return work()
    try:
        return await threads.run(work, _DEADLINE)
    except DeadlineExceeded:
        raise InvalidRequest("The request body took too long to parse.", code="invalid_value") from None
