"""The server of `cohort demo`: one whose executor can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

from clients.http import Broken, Refused
from clients.own_server import LOOK_EVERY, OwnServer, OwnServerFault


class DemoFault(OwnServerFault):
    """There is nothing to show. One line."""


class DemoServer(OwnServer):
    """`OwnServer` with an executor in a process of its own."""

    async def executor(self) -> dict[str, Any]:
        """What GET /v1/executors says of its one executor. Raises DemoFault where that is no process of its own."""
        card: dict[str, Any] = (await self.ask("/v1/executors"))["data"][0]
        if card["mode"] != "process" or not card["pid"] or card["pid"] == self.pid:
            raise DemoFault("the executor is no process of its own: there is nothing to kill")
        return card

    def kill_executor(self, pid: int) -> None:
        """SIGKILL, as the kernel's OOM killer sends it. Raises DemoFault where it is gone already."""
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError as error:
            raise DemoFault(f"the executor, process {pid}, cannot be killed: {error.strerror}") from None

    async def next_executor(self, old: int) -> int:
        """The process id of the executor that took over from `old`, once it is ready. Raises DemoFault where none does."""
        while True:
            with contextlib.suppress(Refused, Broken, OSError):
                card = (await self.client.ask("GET", "/v1/executors"))["data"][0]
                if card["pid"] not in (old, None):
                    await self.until_ready()
                    return int(card["pid"])
            await self.check()
            await asyncio.sleep(LOOK_EVERY)
