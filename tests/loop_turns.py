"""How often the event loop came around while something ran: what holds it up leaves everybody else waiting."""

from __future__ import annotations

import asyncio


class LoopTurns:
    """Counts in `count` from `async with` to its end."""

    def __init__(self) -> None:
        self.count = 0

    async def __aenter__(self) -> LoopTurns:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)
