"""The composition root of one model: the only module that knows executors by name and assembles a model's parts.

Settings -> model directory -> ExecutorConfig -> executor -> EngineCore -+-> TextEngine -> ServedModel -> ServerState
            (hub: fetched)                        Tokenizer, template ---+
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from engine.core.core_share import SharedCores
from engine.core.engine import EngineCore
from engine.kv.disk.disk import Disk
from engine.text.tokenizer import Tokenizer
from executors import lora, registry, tiny
from executors.contract import ConfigError, ExecutorConfig, ModelInfo, Pace, ProgressCallback
from executors.process import connect, new_turns
from server import __version__, hub
from server.answer.notation import ModelNotation
from server.grammar.validator import GrammarJudge
from server.lora.modules import read_modules
from server.lora.own import load_own_adapter, with_own_adapter
from server.lora.registry import LoraRegistry
from server.lora.start import (
    check_adapter_settings,
    check_files,
    check_modules,
    hub_modules,
    load_modules,
    uses_adapters,
)
from server.lora.store import LoraStore
from server.model_defaults.pooling import length_notes
from server.model_defaults.sampling_note import sampling_note
from server.model_files import default_model
from server.model_files.ollama_package import Package
from server.model_files.prepared import model_directory, model_file
from server.models.declared import serves_several, several_flag
from server.remote.messages import Serve
from server.remote.workers.pool import WorkerPool
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup import best_model
from server.startup.core_configs import engine_config, executor_config
from server.startup.known_pace import KnownPace
from server.startup.loading import reporting
from server.startup.lora_models import adapter_facts
from server.startup.model_source import LocalModel, Source, find_source, tagged_names, with_context
from server.startup.pending_core import PendingCore
from server.startup.speculation import check_vocabularies, draft_source, read_speculation
from server.startup.text_side import (
    TextSide,
    adapter_text_side,
    detect_notation,
    read_text_side,
    served_model,
)
from server.state.prefix_keeping import PrefixKeeping
from server.state.server_state import ServedModel, ServerState
from server.system import gc_tuning, log_output
from server.templates.template import ChatTemplate

log = structlog.get_logger("server")

_CHECKS_S = 10.0
"""Seconds for the executor to check a model on this disk before clients are answered; a cold disk takes longer to import it."""
_UNCHECKED = ("starting", "importing", "loading", "opening the device", "meeting other ranks")
"""Stages in which LlmExecutor may still refuse the model. Others have checked their settings after the first two."""


@dataclass(frozen=True, slots=True)
class BegunLoad:
    """A model whose files were checked and whose executor is `starting`. `checked`: set once the executor has done so too."""

    starting: asyncio.Task[None]
    checked: asyncio.Event
    text: TextSide
    notation: ModelNotation


class ModelLoader:
    """Makes one model ready to serve, from its settings. Raises SettingsError or ConfigError if these cannot be served."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        """`source`: what to serve; None: what the settings name, or the default model."""
        self.source = model_source(settings) if source is None else source
        settings = self.settings = settings_for(settings, self.source)
        self.modules = read_modules(settings.lora_modules)
        check_modules(self.modules)
        check_adapter_settings(settings)
        self.speculation = read_speculation(settings)
        self.draft = (
            draft_source(settings, self.speculation, embedded_directory()) if self.speculation.model else None
        )
        self.draft_dir: Path | None = None
        self._pace: Pace | None = None
        """As an earlier load has measured it."""
        self._text: tuple[Path, TextSide] | None = None
        """What was read of the directory."""
        self.pool: WorkerPool | None = None
        """The API workers; None without any. Written by the process's composition root before the load."""
        self.can_administrate = True
        """Whether there is an admin key. The same writer."""
        self.memory_limit: int | None = None
        """Bytes that the executor may use, where several models share the memory; None: what is free. The same writer."""
        self.cores: SharedCores | None = None
        """Shared by models that compute on the same cores; None: this one has them alone. The same writer."""
        self.known_pace = KnownPace()
        """Of earlier loads of this model, in this process and before it. The same writer."""
        self.disk: Disk | None = None
        """Keeps KV of prompts; shared by the models of the process. The same writer."""
        self.adapters: LoraRegistry | None = None
        self._stores: list[LoraStore] = []
        """Copies of adapters."""
        self.model_dir: Path  # known once the hub's files are there, and with it
        self.config: ExecutorConfig
        name = self.source.name if isinstance(self.source, LocalModel) else self.source.label
        self.names = tuple(settings.served_model_name) or (name,)
        self.aliases = (*model_aliases(settings, self.names), *tagged_names(self.source, self.names))

    @property
    def is_here(self) -> bool:
        """Whether all files are on this disk, so that what they say can be refused before a client is answered."""
        return isinstance(self.source, LocalModel) and not isinstance(self.draft, hub.HubModel)

    @property
    def is_fetched(self) -> bool:
        """Whether adapters are on this disk too, so that a load downloads nothing."""
        return self.is_here and not hub_modules(self.modules, self.settings.download_dir)

    def directories_here(self) -> tuple[Path, Path | None]:
        """The directories of model and draft model, which must be on this disk. Raises ConfigError."""
        assert isinstance(self.source, LocalModel) and not isinstance(self.draft, hub.HubModel)
        draft = None if self.draft is None else model_directory(self.draft.path)
        return model_directory(self.source.path, not self.settings.tokenizer, self.package), draft

    async def fetch_files(self, state: ServerState, report: ProgressCallback) -> tuple[Path, Path | None]:
        """Download what a load needs. Returns the directories of model and draft model. Raises ConfigError or HubError."""
        path, draft = await self.find_model(state, report), None
        if self.draft is not None:
            draft = await self._find_draft(state, report)
        for adapter in hub_modules(self.modules, self.settings.download_dir):
            await self._fetch(adapter, state, report, check=False)
        return path, draft

    async def begin_checked(
        self, state: ServerState, core: PendingCore, report: ProgressCallback
    ) -> BegunLoad:
        """`begin`, and wait until the executor has checked its side too: it compiles kernels or loads weights then."""
        beginning = await self.begin(state, core, report)
        checking = asyncio.create_task(beginning.checked.wait())
        try:
            await asyncio.wait(
                (beginning.starting, checking), timeout=_CHECKS_S, return_when=asyncio.FIRST_COMPLETED
            )
            if beginning.starting.done():
                beginning.starting.result()
            return beginning
        except BaseException:
            beginning.starting.cancel()
            await asyncio.gather(beginning.starting, return_exceptions=True)
            await core.stop()
            raise
        finally:
            checking.cancel()

    async def begin(self, state: ServerState, core: PendingCore, report: ProgressCallback) -> BegunLoad:
        """Find the model, check what can be known without the executor, and start that meanwhile.

        Raises ConfigError or HubError, and ExecutorError if the executor is the quicker to fail; it is stopped then.
        """
        report("reading the model's files", 0, 0)
        self.model_dir = await self.find_model(state, report)
        self.draft_dir = None if self.draft is None else await self._find_draft(state, report)
        self.config = executor_config(self.settings, self.model_dir, self.draft_dir, self.memory_limit)
        self._pace = await asyncio.to_thread(self.known_pace.of, self.config)
        if self.pool is not None:
            self.pool.model_at(str(self.model_dir), self.is_default)
        engine = self._core(state)
        core.arrives(engine)
        loop, checked = asyncio.get_running_loop(), asyncio.Event()
        unchecked = _UNCHECKED if self.settings.executor == "llm" else _UNCHECKED[:2]

        def heard(stage: str, done: int, total: int) -> None:
            report(stage, done, total)
            if stage not in unchecked:
                loop.call_soon_threadsafe(checked.set)

        engine.executor.set_progress(heard)
        starting = asyncio.create_task(engine.start())
        reading = asyncio.create_task(self._read_and_detect(state))
        try:
            await asyncio.wait((starting, reading), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            return BegunLoad(starting, checked, *await reading)
        except BaseException:
            starting.cancel()
            reading.cancel()
            await asyncio.gather(starting, reading, return_exceptions=True)
            await engine.stop()
            raise

    async def _read_and_detect(self, state: ServerState) -> tuple[TextSide, ModelNotation]:
        # The process of LlmExecutor checks its configuration itself, before it imports anything.
        if self.settings.executor != "llm":
            await asyncio.to_thread(self._check_config, self.config)
        text = await asyncio.to_thread(self._read_text_side)
        if self.modules:
            await asyncio.to_thread(check_files, self.modules, self._check_adapter)
        return text, await detect_notation(self.settings, state.threads, text.tokenizer, text.template)

    async def load(self, state: ServerState, core: PendingCore) -> ServedModel:
        """Find the model, start its executor, read its tokenizer and template, and put them into `state` and `core`.

        Raises ConfigError, ExecutorError or HubError.
        """
        with reporting(state, self.settings.log_format) as report:
            return await self.finish(state, core, report, await self.begin(state, core, report))

    async def finish(
        self, state: ServerState, core: PendingCore, report: ProgressCallback, beginning: BegunLoad
    ) -> ServedModel:
        """Wait for the executor, and put the model into `state`."""
        try:
            await beginning.starting
        finally:
            beginning.starting.cancel()
            await asyncio.gather(beginning.starting, return_exceptions=True)
        info = core.core.info()
        assert info is not None
        model = self._served(core.core, info, beginning.text, beginning.notation)
        tokenizer = Path(self.config.tokenizer or self.config.model)
        state.judge = GrammarJudge(tokenizer, model.info.logits_width)
        if self.package is not None and self.package.adapter is not None:
            model = await load_own_adapter(core.core, self.package, model, self._pack, self._new_store())
        elif uses_adapters(self.settings):
            report("loading adapters", 0, 0)
            await self._add_adapters(core.core, state, model)
        # Before the server is ready: the lines that tell of it follow in the same turn, so that who has waited finds them.
        await asyncio.to_thread(self.known_pace.learn, core.core.executor.pace())
        if self.pool is not None:
            report("starting the API workers", 0, 0)
            await self.pool.serve(self.facts(state, core.core, model))
        state.model = model
        state.progress = None
        return model

    def facts(self, state: ServerState, core: EngineCore, model: ServedModel) -> Serve:
        """What other front ends are told of the loaded model."""
        return Serve(
            model.info,
            model.max_model_len,
            model.fingerprint,
            core.executor.capabilities(),
            state.responses.enabled,
            model.drafts,
            self.settings.max_loras,
            None if self.adapters is None else adapter_facts(self.adapters),
            model.adapter,
            model.prefixes,
            model.states,
        )

    def _pack(self, source: Path, target: Path, label: str) -> lora.PackedLora:
        return lora.pack(source, target, self.settings.max_lora_rank, label, self.model_dir)

    def _check_adapter(self, source: Path, label: str) -> None:
        lora.check(source, self.settings.max_lora_rank, label)

    async def _add_adapters(self, core: EngineCore, state: ServerState, model: ServedModel) -> None:
        settings, tokenizer = self.settings, model.tokenizer
        assert isinstance(tokenizer, Tokenizer)

        async def text_side(source: str) -> tuple[ChatTemplate | None, ModelNotation]:
            base = model.template, model.notation
            return await adapter_text_side(settings, state.threads, tokenizer, base, source)

        adapters = LoraRegistry(
            core,
            model,
            self.names,
            self._new_store(),
            self._pack,
            text_side,
            max_loras=settings.max_loras,
            root=None if settings.lora_root is None else Path(settings.lora_root),
            on_demand=settings.lora_on_demand,
            changed=self._publish_adapters,
        )
        self.adapters = adapters

        async def fetch(source: hub.HubModel) -> Path:
            return await self._fetch(source, state)

        await load_modules(adapters, self.modules, fetch, settings.download_dir)
        state.adapters = adapters
        state.metrics.watch_adapters(adapters)
        if settings.lora_root is not None and not self.can_administrate:
            log.warning(
                "adapters cannot be loaded over HTTP: there is no admin key (--admin-key or --admin-key-file)"
            )

    def _new_store(self) -> LoraStore:
        store = LoraStore()
        self._stores.append(store)
        atexit.register(store.close)
        return store

    def close(self) -> None:
        """Remove the copies of adapters: the model is unloaded. Idempotent."""
        while self._stores:
            store = self._stores.pop()
            atexit.unregister(store.close)
            store.close()

    async def _publish_adapters(self) -> None:
        """The table of adapters has changed: API workers have copies of it."""
        if self.pool is not None and self.adapters is not None:
            await self.pool.publish(adapter_facts(self.adapters))

    def _core(self, state: ServerState) -> EngineCore:
        executor = connect(
            replace(self.config, pace=self._pace),
            self.settings.executor_mode,
            output=log_output.of_process(),
            turns=None if self.cores is None else self.cores.turns,
            standby=self.settings.standby_executor,
        )
        live = registry.ExecutorRegistry()
        live.register(self.config.executor, executor)
        state.executors, state.executor_names = live, tuple(registry.names())
        core = EngineCore(
            executor,
            engine_config(self.settings),
            state.metrics,
            at_rest=gc_tuning.release_when_idle,
            cores=self.cores,
            disk=self.disk,
        )
        state.core = core
        state.metrics.watch(core)
        return core

    async def find_model(self, state: ServerState, report: ProgressCallback | None = None) -> Path:
        """The model's directory; a hub model is downloaded first, while the port answers, and a GGUF file gets its directory."""
        path = (
            self.source.path
            if isinstance(self.source, LocalModel)
            else await self._fetch(self.source, state, report)
        )
        return await asyncio.to_thread(model_directory, path, not self.settings.tokenizer, self.package)

    async def _find_draft(self, state: ServerState, report: ProgressCallback) -> Path:
        """The draft model's directory, downloaded first if it is the hub's."""
        assert self.draft is not None
        path = (
            self.draft.path
            if isinstance(self.draft, LocalModel)
            else await self._fetch(self.draft, state, report, check=False)
        )
        return await asyncio.to_thread(model_directory, path)

    async def _fetch(
        self,
        source: hub.HubModel,
        state: ServerState,
        report: ProgressCallback | None = None,
        check: bool = True,
    ) -> Path:
        """Download a model. Without `report` the log alone tells the progress: of adapters that are loaded later."""
        if report is None:
            with reporting(state, "json") as report:
                return await self._fetch(source, state, report, check)
        stage = f"downloading {source.label}"
        report(stage, 0, 0)
        return await hub.fetch(source, partial(report, stage), self._check_small_files if check else None)

    async def _check_small_files(self, directory: Path) -> None:
        """Check for faults that show before the weights are downloaded: an unknown architecture, a missing tokenizer, a wrong
        flag."""
        self.model_dir = directory
        await asyncio.to_thread(self._read_text_side)
        await asyncio.to_thread(self._check_config, executor_config(self.settings, directory))

    def _check_config(self, config: ExecutorConfig) -> None:
        # A third party's module may import anything: its process finds out.
        if ":" not in self.settings.executor:
            registry.factory(config.executor).validate_config(config)

    def _read_text_side(self) -> TextSide:
        """Read it, or return what was read when the files were checked."""
        if self._text is not None and self._text[0] == self.model_dir:
            text_side = self._text[1]
        else:
            text_side = read_text_side(self.settings, self.model_dir, self.is_default)
            self._text = self.model_dir, text_side
        if self.draft_dir is not None:
            check_vocabularies(text_side.tokenizer, self.draft_dir, self.speculation.model)
        return text_side

    def _served(
        self, core: EngineCore, info: ModelInfo, text: TextSide, notation: ModelNotation
    ) -> ServedModel:
        tokenizer = text.tokenizer
        if tokenizer.vocab_size > info.logits_width:
            log.warning(
                "the tokenizer has more ids than the model: some texts cannot be served",
                tokenizer=tokenizer.vocab_size,
                model=info.logits_width,
            )
        for warning in (*text.warnings, *length_notes(self.model_dir, info)):
            log.warning(warning)
        if beyond := text.drop_end_tokens_beyond(info.logits_width):
            log.warning("end tokens beyond the model's vocabulary are ignored", ids=beyond[:4])
        digest = hashlib.sha256(repr((__version__, self.config, info)).encode()).hexdigest()[:10]
        layout = core.executor.kv_layout()
        return served_model(
            self.settings,
            core,
            text,
            notation,
            info,
            core.max_model_len,
            f"cohort-{digest}",
            self.model_dir,
            names=self.names,
            drafts=self._drafts(core),
            prefixes=PrefixKeeping.of(layout, self.settings.enable_prefix_caching),
            states=layout.state,
        )

    def _drafts(self, core: EngineCore) -> bool:
        """Return whether drafts are made for requests."""
        usable = not self.speculation.if_usable or core.executor.capabilities().drafts
        return bool(self.speculation.num_tokens) and usable

    @property
    def package(self) -> Package | None:
        """What a manifest of Ollama's store names beside the model."""
        return self.source.package if isinstance(self.source, LocalModel) else None

    @property
    def is_default(self) -> bool:
        """Whether it serves the default model because none was named."""
        return isinstance(self.source, LocalModel) and self.source.is_default

    def notes(self, model: ServedModel) -> dict[str, str]:
        """What a person should know of a model that they did not name, and of the defaults of sampling."""
        notes = {}
        if self.is_default:
            notes["about"] = f"{default_model.TITLE}; next: {default_model.NEXT}"
        elif isinstance(self.source, LocalModel) and self.source.why is not None:
            notes = {"chosen": self.source.why, "another": best_model.ANOTHER}
        if model.info.generates and model.scoring.kind not in ("reranker", "embedding"):
            source = "" if self._text is None else self._text[1].sampling_source
            is_default = not source and default_model.is_file_of(model_file(self.model_dir) or self.model_dir)
            notes["sampling"] = sampling_note(model.defaults, source, is_default_file=is_default)
        return notes


def settings_for(settings: Settings, source: Source) -> Settings:
    """The settings with what the source says where the operator says nothing: the length of the context, and room for an adapter
    that is part of the model. Raises ConfigError or SettingsError."""
    package = source.package if isinstance(source, LocalModel) else None
    if package is None:
        return settings
    return with_own_adapter(with_context(settings, source), package, lora.gguf_rank)


def model_aliases(settings: Settings, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Pattern and served name of each `--model-alias`. Raises ConfigError for a name that is not served, unless adapters may be
    loaded later."""
    pairs = [one.split("=", 1) for one in settings.model_alias]
    aliases = tuple((pattern.strip(), name.strip()) for pattern, name in pairs)
    for _, name in aliases:
        if name not in names and not uses_adapters(settings):
            served = ", ".join(names)
            raise ConfigError(f"--model-alias: {name!r} is not served; this server has {served}")
    return aliases


def embedded_directory() -> Path:
    """The directory of the bundled model."""
    return tiny.weights_dir()


def shared_cores() -> SharedCores:
    """What models that compute on the same cores have in common. The file of their turns lives as long as this process."""
    try:
        return SharedCores(new_turns())
    except (OSError, AttributeError) as error:
        log.warning(
            f"models compute beside each other on the same cores: the system has no file for turns: {error}"
        )
        return SharedCores()


def model_source(settings: Settings) -> Source:
    """What the settings name. Raises SettingsError or ConfigError if it can be nothing, or if they name several models: those are
    served by `cohort serve` alone, without Ray."""
    if serves_several(settings):
        raise SettingsError(
            f"{several_flag(settings)} names several models, which `cohort serve` serves; name one model here"
        )
    return find_source(settings, embedded_directory())
