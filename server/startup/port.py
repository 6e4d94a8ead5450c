"""A server of several models: the process around a `ModelTable`, as `bootstrap.py` is around one model.

Settings -> DeclaredModel ... -> ModelEntry, ServerState -> ModelTable -> PortModels -> app -> front end
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import structlog

from engine.errors import EngineError
from executors.contract import ConfigError
from server.http.certificates import certificates_of
from server.http.listener import Listener
from server.models.declared import DeclaredModel, declared_models
from server.models.entry import ModelEntry, ModelSpec, Runtime
from server.models.needs import OF_MODELS, budget_of, has_gpu, need_of
from server.models.port_models import ModelRow, PortModels
from server.models.report import CheckedModel, Report, report_of
from server.models.table import ModelTable, SwapRules
from server.running import registry as registry_of_servers
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup import banner
from server.startup.app import app_of
from server.startup.core_configs import executor_config
from server.startup.disk_cache import disk_of
from server.startup.key_files import read_keys
from server.startup.known_pace import KnownPace
from server.startup.lifecycle import HttpFrontEnd, serve_by
from server.startup.loaded_model import fetch_model, load_model
from server.startup.model_loader import ModelLoader, model_source, shared_cores
from server.startup.model_source import LocalModel, Source
from server.startup.new_state import new_state, open_traces
from server.state.server_state import ServerState
from server.system import first_lines, logs
from server.system.executor_tool import ToolError, ask
from server.system.signals import Signals
from server.telemetry.metrics import Metrics

log = structlog.get_logger("server")


_CHECKS_AT_ONCE = 4
"""Processes that look into models."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A declared model and what its files say. `source`: None if it cannot be served, which `problem` explains. `is_fetched`:
    whether a load downloads nothing."""

    declared: DeclaredModel
    source: Source | None
    need: int
    problem: str | None
    is_fetched: bool


class Port:
    """Serves several models. Raises SettingsError for what is declared wrongly; a model whose files are damaged fails alone."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.models = [found(one) for one in declared_models(settings)]
        self.tls = certificates_of(settings)
        self.keys = read_keys(settings, terminal=logs.is_terminal(settings.log_format))
        self.traces = open_traces(settings.otlp_traces_endpoint)
        self.budget = budget_of(settings)
        self.cores = shared_cores()
        self.disk = disk_of(settings)
        self.names = tuple(one.declared.name for one in self.models)

    def table(self, state: ServerState) -> PortModels:
        """The table of models, none of which is loaded; each gets a state beside `state`."""
        rows = [self._row(state, one) for one in self.models]
        settings = self.settings
        rules = SwapRules(
            swap_after=settings.swap_after,
            min_residency=settings.min_residency,
            load_timeout=settings.load_timeout,
            max_waiting=settings.max_queued_seqs,
        )
        table = ModelTable((row.entry for row in rows), self.budget, rules)

        async def rescan() -> list[ModelRow]:
            return [self._row(state, one) for one in await asyncio.to_thread(self._scan, table)]

        return PortModels(table, rows, None if settings.models_dir is None else rescan)

    def _scan(self, table: ModelTable) -> list[FoundModel]:
        """Models of the folder that the table does not have, or has as damaged although they no longer are."""
        models = []
        try:
            declared = declared_models(self.settings)
        except SettingsError as error:  # the folder is empty now
            log.warning(str(error))
            return []
        for one in declared:
            entry = table.entries.get(one.name)
            if entry is None or (entry.spec.problem is not None and one.problem is None):
                model = found(one)
                if entry is None or model.problem is None:
                    models.append(model)
        return models

    def _row(self, state: ServerState, model: FoundModel) -> ModelRow:
        declared = model.declared
        metrics = Metrics(model=declared.name)
        metrics.know_keys(self.keys.names())
        state.metrics.parts[declared.name] = metrics
        variants = {one.name: one for one in declared.variants}
        own = state.of_model(
            (declared.name, *variants), declared.settings, metrics, declared.settings.recovery_timeout
        )
        # A device has its own queue: only CPUs are shared by steps.
        cores = self.cores if declared.settings.device in ("cpu", "auto") and not has_gpu() else None
        spec = ModelSpec(
            name=declared.name,
            need=model.need,
            aliases=declared.aliases,
            pin=declared.pin,
            idle_unload=declared.idle_unload,
            problem=model.problem,
        )

        known_pace = KnownPace()

        async def load() -> Runtime:
            limit = entry.need if declared.settings.executor in OF_MODELS else None
            return await load_model(declared, own, model.source, limit, cores, self.disk, known_pace)

        async def fetch() -> int:
            path, draft = await fetch_model(declared, own, model.source)
            return declared.memory or need_of(declared.settings, path, draft)

        is_here = model.problem is not None or model.is_fetched
        entry = ModelEntry(spec, load, None if is_here else fetch)
        return ModelRow(entry, own, variants, declared.loras)

    def report(self) -> Report:
        """What fits together. Each model that is on this disk is looked into, see `checked`."""
        with ThreadPoolExecutor(_CHECKS_AT_ONCE) as threads:
            return report_of(list(threads.map(checked, self.models)), self.budget)

    async def serve(self, listener: Listener) -> None:
        """Answer HTTP at once, load models as calls come, drain."""
        settings = self.settings
        signals = Signals()
        signals.install()
        state = new_state(settings, self.names, (), Metrics(compat=settings.metrics_compat), self.traces)
        models = self.table(state)
        state.models = models
        core = _TableCore(models)
        front = HttpFrontEnd(app_of(settings, state, listener.address, self.keys), state, listener, self.tls)
        url = banner.url_of(
            "" if listener.any_address else settings.host, listener.port, secure=self.tls is not None
        )
        first_lines.stop()
        entry = None
        try:
            log.info(f"listening on {url}", models=list(self.names))
            for note in listener.notes:
                log.warning(note)
            self._announce(url)
            entry = registry_of_servers.register(url, self.names, settings.drain_timeout)

            async def load() -> None:
                models.table.start()
                await self._preload(models)

            await serve_by(front, state, core, load, drain_timeout=settings.drain_timeout, signals=signals)
        finally:
            if entry is not None:
                registry_of_servers.unregister(entry)
            if self.traces is not None:
                await asyncio.to_thread(self.traces.close)

    async def _preload(self, models: PortModels) -> None:
        for model in self.models:
            if model.declared.preload:
                try:
                    await models.load(model.declared.name)
                except EngineError as error:
                    log.error(error.message)

    def _announce(self, url: str) -> None:
        """What is served, and the rules that hold where nothing else was said."""
        log.info(f"{len(self.models)} models at {url}/v1; memory for models: {self.budget / 2**30:.1f} GiB")
        for model in self.models:
            declared = model.declared
            if model.problem is not None:
                log.error(f"{declared.name} cannot be served: {model.problem}")
                continue
            idle = (
                "stays loaded"
                if declared.pin
                else f"unloaded after {declared.idle_unload:g} s without a call"
            )
            log.info(f"{declared.name}: needs {model.need / 2**30:.1f} GiB, {idle}")
        if self.keys.minted is not None:
            banner.show_admin_key(self.keys.minted)


class _TableCore:
    """What `lifecycle` drains and stops: all models. They fail one by one, never the server."""

    def __init__(self, models: PortModels) -> None:
        self._models = models
        self.failed = asyncio.Event()

    async def drain(self, timeout: float) -> bool:
        """Take no more calls, and wait for those under way."""
        for row in self._models.rows():
            row.state.draining = True
        return await self._models.table.drain(timeout)

    async def stop(self) -> None:
        """End all models."""
        await self._models.table.stop()


def checked(model: FoundModel) -> CheckedModel:
    """What a load of the model would refuse or shorten, from the headers of its files."""
    declared = model.declared
    here = CheckedModel(declared.name, model.need, declared.pin, model.problem)
    if model.problem is not None or not model.is_fetched or declared.settings.executor not in OF_MODELS:
        return here
    loader = ModelLoader(declared.settings, model.source)
    try:
        config = executor_config(loader.settings, *loader.directories_here(), model.need)
        forks = declared.settings.executor_mode == "process"
        facts = ask("describe", {"config": asdict(config), "is_forked": forks})
    except (ConfigError, SettingsError, ToolError) as error:
        return replace(here, problem=" ".join(str(error).split()))
    memory, lacking = facts["memory"], facts["checkpoint"]["problem"]
    if lacking is not None and config.load_format != "dummy":
        return replace(here, problem=lacking)
    if memory["problem"] is not None:
        more = "" if declared.settings.kv_cache_memory_bytes else "; give it more memory"
        return replace(here, problem=f"{memory['problem']}{more}")
    return replace(here, context=memory.get("max_model_len"))


def found(declared: DeclaredModel) -> FoundModel:
    """Look for a model's files. What is wrong with them is the model's problem alone."""
    settings, problem = declared.settings, declared.problem
    source: Source | None = None
    draft: Path | None = None
    is_fetched = False
    if problem is None:
        try:
            source = model_source(settings)
            model = ModelLoader(settings, source)
            draft = model.draft.path if isinstance(model.draft, LocalModel) else None
            is_fetched = model.is_fetched
        except (ConfigError, SettingsError) as error:
            problem = " ".join(str(error).split())
    path: Path | None = source.path if isinstance(source, LocalModel) else None
    try:
        need = need_of(settings, path, draft)
    except OSError as error:
        need, problem = 0, problem or f"its files cannot be read: {error.strerror}"
    return FoundModel(declared, source, declared.memory or need, problem, is_fetched)
