"""A stand-in for the engine in the life of the process until it exists: while the model is downloaded there is no engine."""

from __future__ import annotations

import asyncio

from engine.core.engine import EngineCore


class PendingCore:
    """The engine that `server.startup.lifecycle` drains and stops, once there is one. Written once, by `arrives`."""

    def __init__(self) -> None:
        self._core: EngineCore | None = None
        self._never = asyncio.Event()

    def arrives(self, core: EngineCore) -> None:
        """Use this engine from now on."""
        self._core = core

    @property
    def core(self) -> EngineCore:
        """The engine; valid only after `arrives`."""
        assert self._core is not None
        return self._core

    @property
    def known(self) -> EngineCore | None:
        """The engine, None before `arrives`."""
        return self._core

    @property
    def failed(self) -> asyncio.Event:
        """Event that is set once the engine has given up for good; unset while there is no engine."""
        return self._never if self._core is None else self._core.failed

    async def drain(self, timeout: float) -> bool:
        """Admit no more requests, and wait for the running ones."""
        return True if self._core is None else await self._core.drain(timeout)

    async def stop(self) -> None:
        """End everything."""
        if self._core is not None:
            await self._core.stop()
