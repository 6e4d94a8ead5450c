"""`ReplicaEngine`: an engine without HTTP, and a session for each ingress that uses it.

An ingress sends the messages that an API worker sends to its server, and the same code answers them. The end of an ingress ends
its session, and its sequences are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import structlog

from engine.errors import Unavailable
from engine.request import Stage
from server.remote.link import Link
from server.remote.pipe import Pipe, pipe_link
from server.remote.replicas.messages import ReplicaFacts, Report, ToReplica
from server.remote.replicas.node import PASSED_ON, boot_id, drain_limit
from server.remote.workers.session import FrontEndSession
from server.settings.table import Settings
from server.startup.app import create_app
from server.startup.model_loader import ModelLoader
from server.startup.pending_core import PendingCore
from server.state.server_state import ServerState
from server.system import gc_tuning, logs
from server.telemetry.metrics import Metrics

log = structlog.get_logger("server")

REPORT_INTERVAL = 0.5
"""Seconds between two reports, and most seconds until a report of a new stage."""
INGRESS_SILENCE = 30.0
"""Seconds for which an ingress may send nothing, besides those of a drain: a replica that is to leave receives nothing any more.
An ingress gives a sign of life (`fleet.LIFE_SIGN`), so one that is silent has died or hangs, and its streams have no reader."""
_LOOK_INTERVAL = 0.1


class IngressSession:
    """One ingress."""

    def __init__(self, link: Link, pipe: Pipe, served: FrontEndSession) -> None:
        self.link, self.pipe, self.served = link, pipe, served
        self.last_message_at = time.monotonic()
        """Time of its last bytes, signs of life included, by the monotonic clock."""

    def close(self) -> None:
        """The ingress is gone: its sequences are dropped."""
        self.link.close()
        self.served.close()


class ReplicaEngine:
    """One replica, from its load to its end. All of it belongs to the event loop that calls `start`."""

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError or ConfigError for settings that cannot be served."""
        self._settings = settings
        self._core = PendingCore()
        self._sessions: dict[str, IngressSession] = {}
        self._loader = ModelLoader(settings)
        names = self._loader.names
        self._state = ServerState(
            names,
            Metrics(model=names[0], compat=settings.metrics_compat),
            settings,
            recovery_timeout=settings.recovery_timeout,
        )
        self._app = create_app(
            self._state, admin_key=PASSED_ON, kill_button=settings.enable_kill_button, inner=True
        )
        self._reporting: asyncio.Task[None] | None = None
        self._silence = INGRESS_SILENCE + drain_limit(settings)

    async def start(self) -> None:
        """Load the model. Raises ConfigError, ExecutorError, HubError or SettingsError."""
        logs.configure(self._settings.log_level, self._settings.log_format)
        await self._loader.load(self._state, self._core)
        gc_tuning.freeze_after_load()
        self._reporting = asyncio.create_task(self._report(), name="reports of a replica")

    async def stop(self) -> None:
        """End everything. Idempotent."""
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)
            self._reporting = None
        for session in list(self._sessions.values()):
            session.link.close()
        await self._core.stop()
        if self._state.judge is not None:
            await self._state.judge.close()
        self._state.threads.close()

    @property
    def failed(self) -> bool:
        """Whether the engine has given up for good."""
        return self._core.failed.is_set()

    async def drain(self, timeout: float) -> None:
        """Wait at most so many seconds for what runs."""
        await self._core.drain(timeout)

    async def open_session(self, session: str) -> AsyncGenerator[bytes, None]:
        """The bytes for one ingress, as they come, until the ingress leaves or the replica stops."""
        link, pipe = pipe_link(
            ToReplica, lambda message: self._sessions[session].served.received(message), _ignore
        )
        served = FrontEndSession(self._state, lambda: self._core.known, self._app, link)
        self._sessions[session] = IngressSession(link, pipe, served)
        link.send(self._facts())
        link.send(Report(self._core.core.stats(), time.monotonic()))
        try:
            while data := await pipe.take():
                yield data
        finally:
            self._close(session)

    def receive(self, session: str, data: bytes) -> None:
        """Bytes of an ingress; none are a sign of life. Raises Unavailable for a session that is closed."""
        if (ingress := self._sessions.get(session)) is None:
            raise Unavailable("this replica does not know this ingress any more")
        ingress.last_message_at = time.monotonic()
        if data:
            ingress.link.data_received(data)

    def _close(self, name: str) -> None:
        if (session := self._sessions.pop(name, None)) is not None:
            session.close()

    def _close_silent(self) -> None:
        """Close the sessions of ingresses that are gone without Ray having ended their calls."""
        limit = time.monotonic() - self._silence
        for name in [name for name, session in self._sessions.items() if session.last_message_at < limit]:
            count = self._sessions[name].served.sequences.num_sequences
            log.warning(
                f"an ingress has sent nothing for {self._silence:g} s: its session is closed", sequences=count
            )
            self._close(name)

    def _facts(self) -> ReplicaFacts:
        core, model = self._core.core, self._state.model
        assert model is not None
        facts = self._loader.facts(self._state, core, model)
        return ReplicaFacts(facts, boot_id(), core.executor.kv_layout(), time.monotonic())

    async def _report(self) -> None:
        """Tell the gauges to every ingress, and look after those that are silent."""
        before, since = Stage.LOADING, 0.0
        while True:
            self._close_silent()
            stats = self._core.core.stats()
            since += _LOOK_INTERVAL
            if stats.stage is not before or since >= REPORT_INTERVAL:
                before, since = stats.stage, 0.0
                for session in self._sessions.values():
                    session.link.send(Report(stats, time.monotonic()))
            await asyncio.sleep(_LOOK_INTERVAL)


def _ignore(reason: str) -> None:
    """The end of a link is seen where its bytes are taken."""
