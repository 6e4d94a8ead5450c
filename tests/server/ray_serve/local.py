"""Replicas in the test's own process: real engines on the echo executor, over a transport that can lose them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from server.ray_serve.replica import ReplicaEngine
from server.settings.table import Settings


class Lost(Exception):
    """The replica is gone."""


class LocalTransport:
    """See `server.remote.replicas.fleet.Transport`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engines: dict[str, ReplicaEngine] = {}
        self.gone: dict[str, asyncio.Event] = {}
        self._stopping: list[asyncio.Task[None]] = []
        self.listed: set[str] | None = None
        """What Ray is said to list; None: all. Others hear nothing: Serve's router looks for them for ever."""
        self._changed: Callable[[], None] = lambda: None
        self.ingress_hangs = False
        """Whether the ingress neither reads nor says anything, and its calls do not end."""

    async def start(self, name: str, **different: object) -> None:
        engine = ReplicaEngine(replace(self.settings, **different))  # type: ignore[arg-type]
        await engine.start()
        self.gone[name] = asyncio.Event()
        self.engines[name] = engine
        self._changed()

    async def kill(self, name: str, *, wait: bool = True) -> None:
        """From one moment to the next nothing more is heard of it. `wait`: until its executor has ended its step."""
        engine = self.engines.pop(name)
        self.gone[name].set()
        self._changed()
        await asyncio.sleep(0)
        stopping = asyncio.create_task(engine.stop())
        self._stopping.append(stopping)
        if wait:
            await stopping

    async def close(self) -> None:
        for name in list(self.engines):
            await self.kill(name)
        await asyncio.gather(*self._stopping)

    # -- Transport -----------------------------------------------------------------------------------------------------

    def names(self) -> set[str]:
        return set(self.engines) if self.listed is None else self.listed

    def on_change(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    async def open_session(self, replica: str, session: str) -> AsyncGenerator[bytes, None]:
        engine, gone = self._of(replica), asyncio.create_task(self.gone[replica].wait())
        pieces = engine.open_session(session)
        try:
            while True:
                piece = asyncio.ensure_future(anext(pieces, b""))
                await asyncio.wait((piece, gone), return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    piece.cancel()
                    await asyncio.gather(piece, return_exceptions=True)
                    raise Lost(replica)
                if not (data := piece.result()):
                    return
                while self.ingress_hangs:  # noqa: ASYNC110  # it has no end
                    await asyncio.sleep(0.02)
                yield data
        finally:
            gone.cancel()
            await pieces.aclose()  # type: ignore[attr-defined]

    async def send(self, replica: str, session: str, data: bytes) -> None:
        await asyncio.sleep(0)
        while self.ingress_hangs or (replica in self.engines and replica not in self.names()):  # noqa: ASYNC110  # as Serve's router does
            await asyncio.sleep(0.02)
        self._of(replica).receive(session, data)

    def _of(self, replica: str) -> ReplicaEngine:
        if replica not in self.engines:
            raise Lost(replica)
        return self.engines[replica]
