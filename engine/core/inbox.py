"""`Inbox`: what callers want done, until the loop task comes round to it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Inbox:
    """Commands in the order in which they came. Anybody on the event loop leaves one; only the loop task applies them, between
    two steps."""

    def __init__(self) -> None:
        self._commands: deque[Callable[[], None]] = deque()
        self._filled = asyncio.Event()

    def put(self, command: Callable[[], None]) -> None:
        """Leave a command, and wake the loop task if it rests."""
        self._commands.append(command)
        self._filled.set()

    def wake(self) -> None:
        """Wake the loop task: something else has changed."""
        self._filled.set()

    def apply(self) -> None:
        """Do all there is."""
        while self._commands:
            self._commands.popleft()()

    @property
    def pending(self) -> bool:
        """Commands wait to be applied."""
        return bool(self._commands)

    def read(self) -> None:
        """All there is was applied: what comes from now on is news."""
        self._filled.clear()

    @property
    def has_news(self) -> bool:
        """Something came since `read`."""
        return self._filled.is_set()

    async def news(self) -> None:
        """Wait for what came since `read`."""
        await self._filled.wait()
