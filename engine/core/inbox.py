"""`Inbox`: commands of callers, and the executor's death, until the loop task handles them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from executors.contract import ExecutorDied

R = TypeVar("R")


class Inbox:
    """Commands in order of arrival. Any code on the event loop may add one; only the loop task applies them, between
    two steps."""

    def __init__(self) -> None:
        self._commands: deque[Callable[[], None]] = deque()
        self._filled = asyncio.Event()
        self.death: ExecutorDied | None = None
        """The executor's death, until `take_death`."""

    def put(self, command: Callable[[], None]) -> None:
        """Add a command and wake the loop task if it sleeps."""
        self._commands.append(command)
        self._filled.set()

    async def ask(self, command: Callable[[], R]) -> R:
        """Add a command, and return its result once it was applied. Raises what it raises."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(command())
            except Exception as error:
                future.set_exception(error)

        self.put(run)
        return await future

    def wake(self) -> None:
        """Wake the loop task after a change that is not a command."""
        self._filled.set()

    def report_death(self, death: ExecutorDied) -> None:
        """The executor died, maybe with no step in flight: wake the loop task, which recovers at once."""
        self.death = death
        self._filled.set()

    def take_death(self) -> ExecutorDied | None:
        """Return the death that was reported last, if any, and forget it: one reported from here on is another one."""
        death, self.death = self.death, None
        return death

    def apply(self) -> None:
        """Apply all queued commands."""
        while self._commands:
            self._commands.popleft()()

    @property
    def pending(self) -> bool:
        """Whether commands wait to be applied."""
        return bool(self._commands)

    def read(self) -> None:
        """Mark the current commands as applied; only later ones count as new."""
        self._filled.clear()

    @property
    def has_news(self) -> bool:
        """Whether a command or a wake-up came since `read`."""
        return self._filled.is_set()

    async def news(self) -> None:
        """Wait for a command or a wake-up after `read`."""
        await self._filled.wait()
