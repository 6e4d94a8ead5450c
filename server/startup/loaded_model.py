"""`LoadedModel`: one of several models from its load to its unload, as the `ModelTable` starts and ends it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import structlog

from engine.core.core_share import SharedCores
from engine.core.engine import EngineCore
from engine.kv.disk.disk import Disk
from engine.stop_limits import STOP_SECONDS
from executors.contract import ConfigError
from server.models.declared import DeclaredModel
from server.startup.known_pace import KnownPace
from server.startup.load_stages import LoadStages
from server.startup.loading import reporting
from server.startup.model_loader import ModelLoader
from server.startup.model_source import Source
from server.startup.pending_core import PendingCore
from server.state.server_state import ServerState
from server.system import gc_tuning
from server.telemetry.stats_line import StatsLine

log = structlog.get_logger("server")

_STEP_TIMEOUT = 10.0
"""Time limit for an engine to get between two steps, in seconds: one that hangs or recovers keeps its KV."""


@dataclass(eq=False)
class LoadedModel:
    """See `server.models.entry.Runtime`."""

    state: ServerState
    core: EngineCore
    loader: ModelLoader
    _line: asyncio.Task[None]

    @property
    def busy(self) -> bool:
        """Whether a sequence is unfinished."""
        stats = self.core.stats()
        return bool(stats.running or stats.waiting)

    @property
    def failed(self) -> asyncio.Event:
        """Set once the engine has given up for good."""
        return self.core.failed

    async def park(self) -> None:
        """End the executor and keep the streams. Raises Unavailable if the engine fails meanwhile."""
        await self.core.park()

    async def resume(self) -> None:
        """Bring the executor back. Raises Unavailable if that fails."""
        await self.core.resume()

    @property
    def spare_kv_bytes(self) -> int:
        """Bytes of KV that it could do without now, at most."""
        return self.core.spare_kv_bytes

    @property
    def given_kv_bytes(self) -> int:
        """Bytes of KV that it does without now."""
        return self.core.given_kv_bytes

    async def give_kv(self, num_bytes: int) -> None:
        """Do without KV. Raises ExecutorError, and TimeoutError if steps take too long."""
        async with asyncio.timeout(_STEP_TIMEOUT):
            await self.core.give_kv(num_bytes)

    async def take_kv(self, num_bytes: int) -> None:
        """Use KV again. Raises as `give_kv`."""
        async with asyncio.timeout(_STEP_TIMEOUT):
            await self.core.take_kv(num_bytes)

    async def stop(self) -> None:
        """End the engine and forget the text side."""
        self._line.cancel()
        await asyncio.to_thread(self.loader.known_pace.judge, self.core.pace_ratio)
        await _ended(self.state, self.core, self.loader)


async def load_model(
    declared: DeclaredModel,
    state: ServerState,
    source: Source | None,
    memory_limit: int | None,
    cores: SharedCores | None,
    disk: Disk | None = None,
    known_pace: KnownPace | None = None,
) -> LoadedModel:
    """Load a model into `state`. `source`: None if it is to be found now. `cores`, `disk`: see `EngineCore`. `known_pace`: kept
    from one load of the model to the next.

    Raises ConfigError, ExecutorError, HubError or SettingsError; nothing is left running then.
    """
    loader = await asyncio.to_thread(ModelLoader, declared.settings, source)
    loader.memory_limit, loader.cores, loader.disk = memory_limit, cores, disk
    loader.known_pace = known_pace or loader.known_pace
    core = PendingCore()
    try:
        with reporting(state, declared.settings.log_format) as report:
            stages = LoadStages(report)
            beginning = await loader.begin(state, core, stages.report)
            model = await loader.finish(state, core, stages.report, beginning)
        for variant in declared.variants:
            try:
                variant.of(model)
            except ConfigError as error:
                raise ConfigError(f"the variant {variant.name}: {error}") from None
    except BaseException:
        await asyncio.shield(_ended(state, core, loader))
        raise
    log.info(f"loaded {declared.name} in {stages.text()}")
    for note in core.core.executor.status().notes:
        log.info(f"{declared.name}: executor: {note}")
    line = asyncio.create_task(
        StatsLine(state, model=declared.name).run(), name=f"stats line of {declared.name}"
    )
    return LoadedModel(state, core.core, loader, line)


async def fetch_model(
    declared: DeclaredModel, state: ServerState, source: Source | None
) -> tuple[Path, Path | None]:
    """Download a model's files, those of its draft model and its adapters. Returns the directories of both models.

    Raises ConfigError or HubError.
    """
    loader = await asyncio.to_thread(ModelLoader, declared.settings, source)
    with reporting(state, declared.settings.log_format) as report:
        return await loader.fetch_files(state, report)


async def _ended(state: ServerState, core: EngineCore | PendingCore, loader: ModelLoader) -> None:
    """End the engine and what else the model has of the process."""
    judge = state.judge
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await core.stop()
    except TimeoutError:
        log.error("the executor did not shut down in time", timeout=STOP_SECONDS)
    finally:
        state.forget_model()
        state.metrics.forget_engine()
        await asyncio.to_thread(loader.close)
        if judge is not None:
            await judge.close()
        gc_tuning.release_when_idle()  # no engine at rest does it any more
