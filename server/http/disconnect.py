"""Work that is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from server.http.call import Call
from server.http.errors import ClientDisconnected

Result = TypeVar("Result")


async def while_connected(
    receive: Receive, work: Coroutine[Any, Any, Result], call: Call | None = None
) -> Result:
    """The result of `work`, which is cancelled as soon as the client closes its connection.

    The request's body must have been read. Raises ClientDisconnected, and what `work` raises.

    The work runs in this task. If the protocol tells the `call` of a disconnect, no other task waits for it: of a call whose
    answer takes a millisecond, tasks and the waits for them would be a tenth.
    """
    own = asyncio.current_task()
    assert own is not None
    cancelled_before, gone = own.cancelling(), False

    def hang_up() -> None:
        nonlocal gone
        gone = True
        own.cancel()

    stop_watching = _watch_call(call, hang_up) or _watch_messages(receive, hang_up)
    try:
        return await work
    except asyncio.CancelledError:
        if gone and own.uncancel() <= cancelled_before:
            gone = False
            raise ClientDisconnected from None
        raise
    finally:
        stop_watching()
        if gone and own.cancelling() > cancelled_before:
            own.uncancel()  # the work ended by itself in the meantime


def _watch_call(call: Call | None, hang_up: Callable[[], None]) -> Callable[[], None] | None:
    """Let the call's protocol call `hang_up` at a disconnect. Returns what ends that; None if the call has no such protocol, or
    other work of it is watched in this way."""
    if call is None or call.connection is None or call.hang_up is not None:
        return None
    connection = call.connection()
    if connection is None:
        return None
    if connection.disconnected:
        # In a later turn, as by every other way: a task that cancels itself is still cancelled after it has ended by itself.
        return asyncio.get_running_loop().call_soon(hang_up).cancel
    connection.flow.resume_reading()  # paused behind a large body, the connection would not hear of its end
    call.hang_up = hang_up
    return call.stay


def _watch_messages(receive: Receive, hang_up: Callable[[], None]) -> Callable[[], None]:
    """Call `hang_up` at the message of a disconnect, for which a task waits. Returns what ends that."""

    watching = True

    def end(watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled():
            watcher.exception()  # read, or it would be reported as never retrieved
            if watching:
                hang_up()

    def stop_watching() -> None:
        nonlocal watching
        watching = False  # `end` may be about to run, if the client goes in the turn in which the work ends
        watcher.cancel()

    watcher = asyncio.create_task(disconnected(receive))
    watcher.add_done_callback(end)
    return stop_watching


class Sending:
    """Progress of a stream, which is polled at intervals: a timer for each chunk would cost more than the chunk."""

    __slots__ = ("at", "busy", "gone", "telling")

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
