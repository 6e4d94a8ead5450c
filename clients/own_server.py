"""A server that a command starts for itself: `cohort serve` on a free port of the loopback interface. It ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from clients.http import Broken, Client, Refused, reason
from cohort_server import run
from server.settings.foreign.keys import is_secret
from server.settings.foreign.variables import is_foreign

_CHILD = "clients.own_child"
_LISTENING = re.compile(rb"listening on (http://\S+)")
LOOK_EVERY = 0.05
"""Seconds between two looks at a server that is not ready."""
_GRACE = 5.0
"""Seconds that it gets to end by itself, twice; nothing runs in it then."""
_COMPLAINT = "cohort: error: "
_LINES = 20
"""Number of the last lines of its log that are kept, for the case that it ends."""

Loading = Callable[[str], None]


class OwnServerFault(Exception):
    """The server could not be started, or ended. One line."""


class OwnServer:
    """async with OwnServer(arguments) as server: ...  Entering waits until it is ready, leaving ends it.

    `arguments` are those of `cohort serve`. `loading` hears what it is doing. Raises OwnServerFault with its last words where it
    ends, and Unserved where it could not serve what it was asked to.
    """

    def __init__(self, arguments: Sequence[str], loading: Loading | None = None) -> None:
        self._arguments = arguments
        self._loading = loading
        self._log: deque[str] = deque(maxlen=_LINES)
        self._url: asyncio.Future[str]
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]
        self.url: str
        self.client: Client

    async def __aenter__(self) -> Self:
        self._url = asyncio.get_running_loop().create_future()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *run.command(_CHILD, str(os.getpid()), "serve", *self._arguments),
                "--host", "127.0.0.1", "--port", "0",
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is ours to answer
            )  # fmt: skip
        except OSError as error:
            raise OwnServerFault(f"the server cannot be started: {reason(error)}") from None
        self._reading = asyncio.create_task(self._read())
        try:
            self.url = await self._url
            self.client = Client(self.url, None)
            await self.until_ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def until_ready(self) -> None:
        """Wait until the server accepts requests. Raises OwnServerFault where the server ends instead."""
        while True:
            try:
                await self.client.ask("GET", "/ready")
                return
            except Refused as refused:
                if self._loading is not None and refused.message:
                    self._loading(refused.message)
            except (Broken, OSError):
                pass  # if it has ended, its exit code is there soon
            await self.check()
            await asyncio.sleep(LOOK_EVERY)

    async def ask(self, path: str) -> Any:
        """What a GET answers. Raises OwnServerFault where that is nothing."""
        try:
            return await self.client.ask("GET", path)
        except (Refused, Broken, OSError) as error:
            await self.check()
            raise OwnServerFault(f"the server does not answer {path}: {reason(error)}") from None

    async def check(self) -> None:
        """Raises OwnServerFault with its last words if it has ended."""
        if self._process.returncode is not None:
            await self._reading
            raise self._gone()

    def _gone(self) -> OwnServerFault:
        code = self._process.returncode or 0
        for line in reversed(self._log):
            if line.startswith(_COMPLAINT):
                return (
                    Unserved(line.removeprefix(_COMPLAINT))
                    if code == 2
                    else OwnServerFault(line[len(_COMPLAINT) :])
                )
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        last = f": {self._log[-1][:300]}" if self._log else ""
        return OwnServerFault(f"the server ended with {how}{last}")

    async def _read(self) -> None:
        """Its log, until it closes that: where it listens, and its last words."""
        assert self._process.stderr is not None
        rest = b""
        while data := await self._process.stderr.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if not self._url.done() and (match := _LISTENING.search(line)):
                    self._url.set_result(match[1].decode())
                self._log.append(line.decode("utf-8", "replace").strip())
        await self._process.wait()
        if not self._url.done():
            self._url.set_exception(self._gone())

    async def _end(self) -> None:
        """End it and wait for that. Whatever happens here, its process is gone afterwards."""
        try:
            for _ in range(2):  # the second SIGTERM means at once
                if self._process.returncode is not None:
                    break
                self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _GRACE)
        finally:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
            await self._reading
            if self._url.done():
                self._url.exception()  # asyncio warns of an exception that is never read


class Unserved(OwnServerFault):
    """The server refuses what it was started with (exit code 2)."""


def _environment() -> dict[str, str]:
    """This process's environment without settings, of other servers, too: all settings are in the server's arguments."""
    return {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith("COHORT_") or is_secret(name) or is_foreign(name, value))
    }
