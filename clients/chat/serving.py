"""A server for one conversation. It runs beside the prompt, and its log is kept from the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from clients.chat.keyboard import typed_ahead
from clients.own_server import Loading, OwnServer
from server.commands.common import console


@contextlib.contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """The address of a `cohort serve` with these arguments. The server ends when the block is left.

    A terminal on stderr shows what the server is doing until it is ready. Raises OwnServerFault where it ends instead.
    """
    with typed_ahead(), _progress() as loading:
        thread = _ServingThread(arguments, loading)
        thread.start()
        try:
            url = thread.address.result()
        except BaseException:
            thread.end()
            raise
    try:
        yield url
    finally:
        thread.end()


class _ServingThread(threading.Thread):
    """Starts the server, reads its log, and ends it. The kernel ends the server should this thread, or its process, be gone."""

    def __init__(self, arguments: Sequence[str], loading: Loading | None) -> None:
        super().__init__(name="own server", daemon=True)
        self.address: Future[str] = Future()
        """Set once the server is ready, or to why it never will be."""
        self._server = OwnServer(arguments, loading)
        self._loop = asyncio.new_event_loop()
        self._leave = asyncio.Event()

    def run(self) -> None:
        """Until `end`."""
        with contextlib.closing(self._loop):
            self._serving = self._loop.create_task(self._serve())
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._serving)

    async def _serve(self) -> None:
        try:
            async with self._server as server:
                self.address.set_result(server.url)
                await self._leave.wait()
        except Exception as error:
            if self.address.done():
                raise
            self.address.set_exception(error)

    def end(self) -> None:
        """End the server, also while it starts, and wait for that."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
            self._loop.call_soon_threadsafe(self._end)
        self.join()

    def _end(self) -> None:
        if self.address.done():
            self._leave.set()
        else:
            self._serving.cancel()


@contextlib.contextmanager
def _progress() -> Iterator[Loading | None]:
    """What hears of the loading: a line on stderr that changes, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with console(stderr=True).status("starting the server") as status:
        yield lambda text: status.update(text)
