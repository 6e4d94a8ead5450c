"""What steps compute for the second time, as the server's feed of steps tells it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

import httpx

_RECOMPUTE = "r"
"""The letter of an item whose tokens were computed before (`engine/core/step_watch.py`)."""


class Feed:
    """Counts while it is entered. Raises RuntimeError at the end if the server left out steps."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client, self.recomputed = client, 0
        self._skipped = 0
        self._connected = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._read())
        async with asyncio.timeout(30):
            await self._connected.wait()
        return self

    async def __aexit__(self, kind: object, *exc: object) -> None:
        assert self._task is not None
        await asyncio.sleep(0.5)  # frames come a few times a second
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if kind is None and self._skipped:
            raise RuntimeError(
                f"the feed left out {self._skipped} steps: what was computed again is not known"
            )

    async def _read(self) -> None:
        async with self._client.stream("GET", "/v1/steps") as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, frame: dict[str, Any]) -> None:
        self._connected.set()
        self._skipped += frame.get("skipped", 0)
        for step in frame.get("steps", ()):
            items = zip(step.get("kinds", ""), step.get("tokens", ()), strict=True)
            self.recomputed += sum(tokens for kind, tokens in items if kind == _RECOMPUTE)
