"""Work that is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from server.http.errors import ClientDisconnected

Result = TypeVar("Result")


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled as soon as the client closes its connection.

    The request's body must have been read. Raises ClientDisconnected, and what `work` raises.

    The work runs in this task, and one other waits for the disconnect: of a call whose answer takes a millisecond, a task for
    each and the waits for both would be a tenth.
    """
    own = asyncio.current_task()
    assert own is not None
    cancelled_before, gone = own.cancelling(), False

    def hang_up(watcher: asyncio.Task[None]) -> None:
        nonlocal gone
        if not watcher.cancelled():
            watcher.exception()  # read, or it would be reported as never retrieved
            gone = True
            own.cancel()

    watcher = asyncio.create_task(disconnected(receive))
    watcher.add_done_callback(hang_up)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and own.uncancel() <= cancelled_before:
            gone = False
            raise ClientDisconnected from None
        raise
    finally:
        watcher.remove_done_callback(hang_up)
        watcher.cancel()
        if gone and own.cancelling() > cancelled_before:
            own.uncancel()  # the work ended by itself in the meantime


class Sending:
    """Progress of a stream, which is polled at intervals: a timer for each chunk would cost more than the chunk."""

    def __init__(self) -> None:
        self.busy = False
        """Whether a chunk is being sent, and may wait for its reader. One writer: the streaming task."""
        self.at = time.monotonic()
        """Time when the last chunk was sent. The same writer, and `DirectWriter` while that task waits."""
        self.telling = False
        """Whether a sign of life is being sent, and may wait for its reader. One writer: `Alive`."""
        self.gone = False
        """Whether the client has closed its connection. One writer: the watcher."""


class Alive:
    """Keeps a silent stream alive, `interval` seconds after the last chunk or sign of life."""

    def __init__(self, interval: float, tell: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._interval = interval
        self._tell = tell
        self._last_report = 0.0

    def rest(self, sending: Sending) -> float:
        """Seconds until a sign of life may be due."""
        return max(0.0, max(sending.at, self._last_report) + self._interval - time.monotonic())

    async def look(self, sending: Sending) -> None:
        """Called when that time may be over. Nothing is sent while another send waits for its reader."""
        if self.rest(sending) == 0.0:
            self._last_report = time.monotonic()
            if not sending.busy:
                sending.telling = True
                try:
                    await self._tell()
                finally:
                    sending.telling = False


async def race(
    receive: Receive, work: Coroutine[Any, Any, Result], sending: Sending, alive: Alive | None
) -> Result:
    """The result of `work`, as of `while_connected`, in a task of its own; meanwhile `alive` sends its signs of life."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_watch(receive, sending))
    try:
        while not task.done():
            rest = None if alive is None else alive.rest(sending)
            await asyncio.wait((task, watcher), timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and watcher.done():
                raise ClientDisconnected
            if not task.done() and alive is not None:
                await alive.look(sending)
        return task.result()
    finally:
        watcher.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        await asyncio.wait((watcher,))
        if not task.cancelled():
            task.exception()  # read, so that a failure while being cancelled is not reported as never retrieved


async def _watch(receive: Receive, sending: Sending) -> None:
    await disconnected(receive)
    sending.gone = True


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
