"""The engine's part in the life of the process, from before it exists: a model that is still being fetched has no engine."""

from __future__ import annotations

import asyncio

from engine.core.loop import EngineCore


class LateCore:
    """What `server.lifecycle` drains and stops. Written once, by `arrives`."""

    def __init__(self) -> None:
        self._core: EngineCore | None = None
        self._never = asyncio.Event()

    def arrives(self, core: EngineCore) -> None:
        """From now on it is this one."""
        self._core = core

    @property
    def core(self) -> EngineCore:
        """The engine; only after it has arrived."""
        assert self._core is not None
        return self._core

    @property
    def failed(self) -> asyncio.Event:
        """Set once it has given up for good; what is not there has not."""
        return self._never if self._core is None else self._core.failed

    async def drain(self, timeout: float) -> bool:
        """Admit nothing more, wait for what runs."""
        return True if self._core is None else await self._core.drain(timeout)

    async def stop(self) -> None:
        """End everything."""
        if self._core is not None:
            await self._core.stop()
