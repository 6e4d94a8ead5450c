"""The life cycle of a serving process: the port opens, the model loads, requests run, a signal drains, everything ends.

listen -> [ serve HTTP ......................................................... ]
              load model -> ready ... SIGTERM -> drain -> engine stops -> HTTP stops -> exit 0
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol

import structlog
import uvicorn
from fastapi import FastAPI

from engine.request import Stage
from engine.stop_limits import STOP_SECONDS
from server.http.certificates import Certificates
from server.http.listener import Listener, most_connections
from server.http.protocol import BoundedHttpProtocol, bounded
from server.startup.loading import waiting_line
from server.state.server_state import ServerState
from server.system.reaper import Reaper, inherits_orphans
from server.system.signals import Signals
from server.telemetry.stats_line import StatsLine

log = structlog.get_logger("server")

_STAGE_INTERVAL = 0.5
_RECOVERY_LINES = 1.5
"""Seconds between log lines while the executor comes back."""
_LAST_BYTES_TIMEOUT = 3
"""Time for responses that the engine has ended early to reach their clients, in seconds."""
_READING_INTERVAL = 0.05
_KEEP_ALIVE = 75
"""Keep-alive time of idle connections in seconds, longer than that of load balancers and client pools: if the server closed
the connection first, a request sent at the same moment would be lost."""


class EngineGone(Exception):
    """The engine gave up for good: the process ends, so that its supervisor can restart it."""


class Stoppable(Protocol):
    """The part of EngineCore that drains and stops it."""

    @property
    def failed(self) -> asyncio.Event:
        """Event that is set once the engine has given up for good."""

    async def drain(self, timeout: float) -> bool:
        """Admit no more requests, and wait for the running ones."""

    async def stop(self) -> None:
        """End everything."""


class _HttpServer(uvicorn.Server):
    """Uvicorn without its signal handlers: a signal drains the engine first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


class FrontEnd(Protocol):
    """What answers HTTP: the server of this process, or API workers."""

    async def run(self) -> None:
        """Serve until `stop`. Raises if it cannot go on."""

    async def answered(self) -> None:
        """Wait until no client waits for the rest of an answer."""

    def stop(self) -> None:
        """Take no more requests; `run` returns once the last bytes of answers have had time to reach their clients."""

    def hurry(self) -> None:
        """Do not wait for those."""


class HttpFrontEnd:
    """The HTTP server of this process."""

    def __init__(
        self, app: FastAPI, state: ServerState, listener: Listener, tls: Certificates | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=bounded(state.write_timeout, most_connections(), app.state.answered, app.state.forms),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ssl_context_factory=None if tls is None else lambda *_: tls.context,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_LAST_BYTES_TIMEOUT,
        )
        self._http = _HttpServer(config)
        self._listener = listener
        self._tls = tls

    async def run(self) -> None:
        """Serve until `stop`."""
        watch = None if self._tls is None else asyncio.create_task(self._tls.run(), name="certificates")
        try:
            await self._http.serve(sockets=list(self._listener.sockets))
        finally:
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)

    async def answered(self) -> None:
        """Wait until no client waits for the rest of an answer."""
        while any(_owes(connection) for connection in self._http.server_state.connections):  # noqa: ASYNC110
            await asyncio.sleep(_READING_INTERVAL)  # a transport has no event for "all is sent"

    def stop(self) -> None:
        """Take no more requests."""
        self._http.should_exit = True

    def hurry(self) -> None:
        """Do not wait for the last bytes of responses."""
        self._http.force_exit = True


async def serve(
    app: FastAPI,
    state: ServerState,
    listener: Listener,
    core: Stoppable,
    load: Callable[[], Awaitable[None]],
    *,
    drain_timeout: float,
    signals: Signals,
    tls: Certificates | None = None,
) -> None:
    """`serve_by` the HTTP server of this process."""
    front = HttpFrontEnd(app, state, listener, tls)
    await serve_by(front, state, core, load, drain_timeout=drain_timeout, signals=signals)


async def serve_by(
    front: FrontEnd,
    state: ServerState,
    core: Stoppable,
    load: Callable[[], Awaitable[None]],
    *,
    drain_timeout: float,
    signals: Signals,
) -> None:
    """Serve until a signal comes. `load` fills `state.model`; what it raises ends the server and is raised here.

    Raises EngineGone when the engine gives up: `/live` is the only liveness probe, and a server without an engine must not
    pass it for ever.
    """
    serving = asyncio.create_task(front.run(), name="http")
    async with _background(state):
        try:
            await _until(signals.first, load(), serving)
            if not serving.done():
                await _until(signals.first, _gone(core), serving)
            await _drain(state, _finish(core, front, drain_timeout), drain_timeout, signals)
        finally:
            await state.responses.close()
            async with waiting_line(lambda: "waiting for the executor to end"):
                await _stop(core)
                if state.judge is not None:
                    await state.judge.close()
            front.stop()
            async with (
                waiting_line(lambda: "waiting for the last bytes of answers to reach their clients"),
                _in_a_hurry(front, signals),
            ):
                await serving
            state.threads.close()


async def _until(stop: asyncio.Event, work: Awaitable[object], serving: asyncio.Task[None]) -> None:
    """Do `work` until it is done, a stop is requested, or the HTTP server ends. Raises the error that ended it."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        for task in (working, serving):
            if task.done():
                task.result()
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def _gone(core: Stoppable) -> None:
    await core.failed.wait()
    raise EngineGone


async def _finish(core: Stoppable, front: FrontEnd, timeout: float) -> bool:
    """Wait until running requests are computed and their answers are read. False if `timeout` seconds were not enough."""
    try:
        async with asyncio.timeout(timeout):
            if not await core.drain(timeout):
                return False
            await front.answered()
    except TimeoutError:
        return False
    return True


def _owes(connection: object) -> bool:
    return isinstance(connection, BoundedHttpProtocol) and connection.owes_an_answer


async def _drain(
    state: ServerState, finish: Coroutine[Any, Any, bool], timeout: float, signals: Signals
) -> None:
    state.draining = True
    log.info("draining: no new requests, running ones may finish", timeout=timeout)
    draining = asyncio.create_task(finish)
    hurry = asyncio.create_task(signals.second.wait())
    async with waiting_line(
        lambda: f"draining: {_unfinished(state)}; those left are ended after {timeout:g} s"
    ):
        await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
    if hurry.done():
        log.warning("second signal: stopping now")
    elif not draining.result():
        log.warning("the drain timeout has passed: ending the requests that still run")
    for task in (draining, hurry):
        task.cancel()
    await asyncio.gather(draining, hurry, return_exceptions=True)


def _unfinished(state: ServerState) -> str:
    """What a drain waits for."""
    stats = None if state.core is None else state.core.stats()
    if stats is not None and stats.running + stats.waiting:
        waiting = f", {stats.waiting} waiting" if stats.waiting else ""
        return f"{stats.running} running{waiting}"
    return "clients that have not read the rest of their answers"


@contextlib.asynccontextmanager
async def _in_a_hurry(front: FrontEnd, signals: Signals) -> AsyncIterator[None]:
    """Do not wait for the last bytes of responses once there is a second signal, before or meanwhile."""

    async def force() -> None:
        await signals.second.wait()
        front.hurry()

    forcing = asyncio.create_task(force())
    try:
        yield
    finally:
        forcing.cancel()
        await asyncio.gather(forcing, return_exceptions=True)


async def _stop(core: Stoppable) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await core.stop()
    except TimeoutError:
        log.error("the executor did not shut down in time", timeout=STOP_SECONDS)


@contextlib.asynccontextmanager
async def _background(state: ServerState) -> AsyncIterator[None]:
    """Run the background tasks of serving: watching the stage, telling the load, and reaping if this process is the container's
    first."""
    tasks = [
        asyncio.create_task(_watch_stage(state), name="stage"),
        asyncio.create_task(StatsLine(state).run(), name="stats line"),
    ]
    if inherits_orphans():
        tasks.append(asyncio.create_task(Reaper(os.getpid()).run(), name="reaper"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch_stage(state: ServerState) -> None:
    """Log each change of the stage until cancelled, the last one included, and while it recovers what it does."""
    last = state.stage()[0]
    ends, silent = False, 0.0
    while not ends:
        try:
            await asyncio.sleep(_STAGE_INTERVAL)
        except asyncio.CancelledError:
            ends = True
        stage, detail = state.stage()
        silent += _STAGE_INTERVAL
        if stage is not last:
            silent = 0.0
            log.info(f"stage: {stage.value}", **({"detail": detail} if detail else {}))
            if stage is Stage.READY:
                state.progress = None
        elif stage is Stage.RECOVERING and silent >= _RECOVERY_LINES:
            silent = 0.0
            doing = "starting the executor" if state.progress is None else state.progress.label
            log.info(f"recovering: {doing}, {state.recovering_for():.0f} s so far")
        last = stage
