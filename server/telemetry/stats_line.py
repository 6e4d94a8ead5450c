"""A line of the log every ten seconds while the server is busy: load and speed at a glance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from engine.request import EngineStats
from server.telemetry.metrics import Metrics

log = structlog.get_logger("server")

INTERVAL = 10.0
"""Seconds between lines."""


class Core(Protocol):
    """The part of the engine that the line reads."""

    def stats(self) -> EngineStats:
        """Gauges and totals; never blocks."""


class Working(Protocol):
    """The part of `server.state.server_state.ServerState` that the line reads."""

    @property
    def core(self) -> Core | None:
        """The engine, None while it does not exist."""

    @property
    def metrics(self) -> Metrics:
        """Counters of this process."""


class StatsLine:
    """Remembers the totals of the last line, to tell what was done since. One writer: its task."""

    def __init__(
        self, state: Working, clock: Callable[[], float] = time.monotonic, *, model: str | None = None
    ) -> None:
        """`model`: a name for the line, where several models are served."""
        self._model = model
        self._state = state
        self._clock = clock
        self._at = clock()
        self._output_tokens = 0
        self._stats: EngineStats | None = None

    async def run(self) -> None:
        """Write lines until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL)
            self.look()

    def look(self) -> None:
        """Write a line if anything was done since the last look, or waits."""
        core = self._state.core
        if core is None:
            return
        now, stats, before = self._clock(), core.stats(), self._stats
        seconds, self._at = max(now - self._at, 1e-6), now
        output, self._output_tokens = self._output_tokens, self._state.metrics.num_output_tokens
        self._stats = stats
        if before is None:
            before = stats
        if not (stats.running or stats.waiting or stats.steps > before.steps):
            return
        queries, hits = stats.prefix_queries - before.prefix_queries, stats.prefix_hits - before.prefix_hits
        fields = {
            "model": self._model,
            "running": stats.running,
            "waiting": stats.waiting,
            "prompt_tokens_per_s": round((stats.prompt_tokens - before.prompt_tokens) / seconds, 1),
            "output_tokens_per_s": round((self._output_tokens - output) / seconds, 1),
            "kv_used": f"{stats.kv_usage:.0%}",
            "prefix_hits": f"{hits / queries:.0%}" if queries else None,
            "preemptions": stats.preemptions - before.preemptions or None,
            "restarts": stats.epoch - before.epoch or None,
        }
        log.info("busy", **{name: value for name, value in fields.items() if value is not None})
