"""The composition root: the only module that knows executors by name and assembles the parts.

Settings -> model directory -> ExecutorConfig -> executor -> EngineCore -+-> TextEngine -> ServedModel -> ServerState -> app
            (hub: fetched)                        Tokenizer, template ---+
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import setproctitle
import structlog
import uvloop

from engine.core.engine import EngineCore
from engine.text.tokenizer import Tokenizer
from executors import lora, registry, tiny
from executors.contract import (
    ConfigError,
    ExecutorConfig,
    ExecutorError,
    ModelInfo,
    ProgressCallback,
    Unavailable,
)
from executors.process import connect
from server import __version__, hub
from server.answer.notation import ModelNotation
from server.grammar.validator import GrammarJudge
from server.http.certificates import certificates_of
from server.http.listener import Listener
from server.lora.modules import read_modules
from server.lora.own import load_own_adapter, with_own_adapter
from server.lora.registry import LoraRegistry
from server.lora.start import check_adapter_settings, check_files, check_modules, load_modules, uses_adapters
from server.lora.store import LoraStore
from server.model_defaults.pooling import length_notes
from server.model_defaults.sampling_note import sampling_note
from server.model_files import default_model
from server.model_files.ollama_package import Package
from server.model_files.prepared import model_directory, model_file
from server.remote.messages import Serve, Setup
from server.remote.workers.pool import WorkerPool, WorkersFailed
from server.running import registry as registry_of_servers
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup import banner, best_model
from server.startup.app import app_of
from server.startup.core_configs import engine_config, executor_config
from server.startup.key_files import read_keys
from server.startup.lifecycle import EngineGone, FrontEnd, HttpFrontEnd, serve_by
from server.startup.loading import loading_display, reporter, reporting, unless
from server.startup.lora_models import adapter_facts
from server.startup.model_source import LocalModel, Source, find_source, tagged_names, with_context
from server.startup.new_state import new_state, open_traces
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
from server.system import exit_codes, first_lines, gc_tuning, log_output, logs
from server.system.signals import Signals
from server.telemetry.metrics import Metrics
from server.templates.template import ChatTemplate

log = structlog.get_logger("server")

_CHECKS_S = 10.0
"""Seconds for the executor to check a model on this disk before clients are answered; a cold disk takes longer to import it."""
_UNCHECKED = ("starting", "importing", "loading", "opening the device", "meeting other ranks")
"""Stages in which LlmExecutor may still refuse the model. Others have checked their settings after the first two."""


def run(settings: Settings, listener: Listener, notes: Sequence[str] = ()) -> int:
    """Serve on `listener` until told to stop. Returns the exit code, see `run_server`."""
    return run_server(settings, notes, lambda: Bootstrap(settings, unnamed_source(settings)).serve(listener))


def run_server(
    settings: Settings, notes: Sequence[str], serve: Callable[[], Coroutine[None, None, None]]
) -> int:
    """Run a server's coroutine in this process.

    Returns the exit code, see `server.system.exit_codes`.
    """
    setproctitle.setproctitle("cohort: server")
    log_output.take_over(settings.log_format)
    logs.configure(settings.log_level, settings.log_format)
    for note in notes:
        log.warning(note)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    except (SettingsError, ConfigError, hub.HubError) as error:
        return refuse(error)
    except EngineGone:
        complain("the executor cannot be brought back; see the log above")
        return exit_codes.GAVE_UP
    except WorkersFailed as error:
        complain(str(error))
        return exit_codes.FAILED
    except ExecutorError as error:
        complain(f"the executor could not be started: {error}")
        return exit_codes.FAILED
    return exit_codes.STOPPED


def refuse(error: SettingsError | ConfigError | hub.HubError) -> int:
    """Write the line of what cannot be served. Returns the exit code: whether a later start may succeed."""
    complain(str(error))
    return exit_codes.NOT_YET if isinstance(error, Unavailable) else exit_codes.code_of(error)


def complain(message: str) -> None:
    """Write one line about why the server ends."""
    if (output := log_output.of_process()) is not None:
        output.flush()  # a full queue would drop this line
    print(f"cohort: error: {' '.join(message.split())}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A model whose files were checked and whose executor is `starting`. `checked`: set once the executor has done so too."""

    starting: asyncio.Task[None]
    checked: asyncio.Event
    text: TextSide
    notation: ModelNotation


class Bootstrap:
    """Builds one server from its settings. Raises SettingsError or ConfigError if these cannot be served."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        """`source`: what to serve; None: what the settings name, or the default model."""
        self.source = model_source(settings) if source is None else source
        settings = self.settings = settings_for(settings, self.source)
        self.tls = certificates_of(settings)
        self.modules = read_modules(settings.lora_modules)
        check_modules(self.modules)
        self.keys = read_keys(settings, terminal=logs.is_terminal(settings.log_format))
        check_adapter_settings(settings)
        self.traces = open_traces(settings.otlp_traces_endpoint)
        self.speculation = read_speculation(settings)
        self.draft = (
            draft_source(settings, self.speculation, embedded_directory()) if self.speculation.model else None
        )
        self.draft_dir: Path | None = None
        self._text: tuple[Path, TextSide] | None = None
        """What was read of the directory."""
        self.pool: WorkerPool | None = None
        """The API workers; None without any."""
        self.adapters: LoraRegistry | None = None
        self.model_dir: Path  # known once the hub's files are there, and with it
        self.config: ExecutorConfig
        name = self.source.name if isinstance(self.source, LocalModel) else self.source.label
        self.names = tuple(settings.served_model_name) or (name,)
        self.aliases = (*model_aliases(settings, self.names), *tagged_names(self.source, self.names))

    async def serve(self, listener: Listener) -> None:
        """Answer HTTP at once, load meanwhile, serve, drain."""
        settings = self.settings
        signals = Signals()
        signals.install()
        metrics = Metrics(model=self.names[0], compat=settings.metrics_compat)
        metrics.know_keys(self.keys.names())
        state = new_state(settings, self.names, self.aliases, metrics, self.traces)
        core = PendingCore()
        front = self._front_end(state, core, listener)
        secure = self.tls is not None
        url = banner.url_of("" if listener.any_address else settings.host, listener.port, secure=secure)
        display = loading_display(log_format=settings.log_format)
        first_lines.stop()
        report = reporter(display, state)
        beginning = None
        entry = None
        try:
            if self._is_here():
                beginning = await unless(signals.first, self._begin_checked(state, core, report))
                if beginning is None:
                    return
            log.info(f"listening on {url}", model=self.names[0])
            for note in listener.notes:
                log.warning(note)
            if isinstance(self.source, LocalModel) and self.source.note is not None:
                log.warning(self.source.note)
            entry = registry_of_servers.register(url, self.names, settings.drain_timeout)

            async def load() -> None:
                try:
                    model = await self._finish(
                        state, core, report, beginning or await self._begin(state, core, report)
                    )
                    gc_tuning.freeze_after_load()
                finally:
                    display.close()  # also by a signal: what is told from then on is the end
                core.core.executor.set_progress(reporter(None, state))  # `lifecycle` tells of a recovery
                self._announce(core.core, model, url)

            await serve_by(front, state, core, load, drain_timeout=settings.drain_timeout, signals=signals)
        finally:
            display.close()
            if entry is not None:
                registry_of_servers.unregister(entry)
            if self.traces is not None:
                await asyncio.to_thread(self.traces.close)

    def _front_end(self, state: ServerState, core: PendingCore, listener: Listener) -> FrontEnd:
        """This process's HTTP server, or API workers."""
        settings, address = self.settings, listener.address
        if not settings.api_server_count:
            app = app_of(settings, state, address, self.keys)
            return HttpFrontEnd(app, state, listener, self.tls)
        app = app_of(settings, state, address, self.keys, inner=True)

        def setup(number: int, patient: bool) -> Setup:
            minted = self.keys.minted
            colors = sys.stderr.isatty()
            return Setup(
                number, settings, self.names, self.aliases, minted, state.started, address, patient, colors
            )

        self.pool = pool = WorkerPool(
            settings, setup, listener, state, lambda: core.known, app, app.state.answered
        )
        state.workers = pool
        state.metrics.watch_workers(pool)
        return pool

    def _is_here(self) -> bool:
        """Whether all files are on this disk, so that what they say can be refused before a client is answered."""
        return isinstance(self.source, LocalModel) and not isinstance(self.draft, hub.HubModel)

    async def _begin_checked(self, state: ServerState, core: PendingCore, report: ProgressCallback) -> _Begun:
        """`_begin`, and wait until the executor has checked its side too: it compiles kernels or loads weights then."""
        beginning = await self._begin(state, core, report)
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

    async def _begin(self, state: ServerState, core: PendingCore, report: ProgressCallback) -> _Begun:
        """Find the model, check what can be known without the executor, and start that meanwhile.

        Raises ConfigError or HubError, and ExecutorError if the executor is the quicker to fail; it is stopped then.
        """
        report("reading the model's files", 0, 0)
        self.model_dir = await self.find_model(state, report)
        if self.draft is not None:
            path = (
                self.draft.path
                if isinstance(self.draft, LocalModel)
                else await self._fetch(self.draft, state, report, check=False)
            )
            self.draft_dir = await asyncio.to_thread(model_directory, path)
        self.config = executor_config(self.settings, self.model_dir, self.draft_dir)
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
            return _Begun(starting, checked, *await reading)
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
            return await self._finish(state, core, report, await self._begin(state, core, report))

    async def _finish(
        self, state: ServerState, core: PendingCore, report: ProgressCallback, beginning: _Begun
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
            model = await load_own_adapter(core.core, self.package, model, self._pack)
        elif uses_adapters(self.settings):
            report("loading adapters", 0, 0)
            await self._add_adapters(core.core, state, model)
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
            store := LoraStore(),
            self._pack,
            text_side,
            max_loras=settings.max_loras,
            root=None if settings.lora_root is None else Path(settings.lora_root),
            on_demand=settings.lora_on_demand,
            changed=self._publish_adapters,
        )
        self.adapters = adapters
        atexit.register(store.close)

        async def fetch(source: hub.HubModel) -> Path:
            return await self._fetch(source, state)

        await load_modules(adapters, self.modules, fetch, settings.download_dir)
        state.adapters = adapters
        state.metrics.watch_adapters(adapters)
        if settings.lora_root is not None and not self.keys.admin:
            log.warning(
                "adapters cannot be loaded over HTTP: there is no admin key (--admin-key or --admin-key-file)"
            )

    async def _publish_adapters(self) -> None:
        """The table of adapters has changed: API workers have copies of it."""
        if self.pool is not None and self.adapters is not None:
            await self.pool.publish(adapter_facts(self.adapters))

    def _core(self, state: ServerState) -> EngineCore:
        executor = connect(self.config, self.settings.executor_mode, output=log_output.of_process())
        live = registry.ExecutorRegistry()
        live.register(self.config.executor, executor)
        state.executors, state.executor_names = live, tuple(registry.names())
        core = EngineCore(
            executor, engine_config(self.settings), state.metrics, at_rest=gc_tuning.release_when_idle
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

    def _announce(self, core: EngineCore, model: ServedModel, url: str) -> None:
        for note in core.executor.status().notes:
            log.info(f"executor: {note}")
        facts = banner.Facts(
            url=url,
            name=self.names[0],
            info=model.info,
            scores=model.scoring.kind,
            layout=core.executor.kv_layout(),
            weight_bytes=core.executor.capabilities().memory.parameter_memory,
            max_model_len=model.max_model_len,
            needs_key=self.settings.needs_key,
            admin_key=self.keys.minted,
            template_lack=model.template_lack,
            notes=self._notes(model),
        )
        # A log file is read by others than who starts the server: there the key is not written.
        if logs.is_terminal(self.settings.log_format):
            banner.show(facts.text())
        else:
            facts.log()
        if self.keys.minted is not None:
            banner.show_admin_key(self.keys.minted)

    @property
    def package(self) -> Package | None:
        """What a manifest of Ollama's store names beside the model."""
        return self.source.package if isinstance(self.source, LocalModel) else None

    @property
    def is_default(self) -> bool:
        """Whether it serves the default model because none was named."""
        return isinstance(self.source, LocalModel) and self.source.is_default

    def _notes(self, model: ServedModel) -> dict[str, str]:
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


def model_source(settings: Settings) -> Source:
    """What the settings name. Raises SettingsError or ConfigError if it can be nothing."""
    return find_source(settings, embedded_directory())


def unnamed_source(settings: Settings) -> Source | None:
    """The best model on this disk, where the settings name none and it is better than the default one; else None. The log says
    what was chosen and why. Raises ConfigError."""
    choice = best_model.choose(settings, log.info)
    if choice.model is not None:
        log.info(f"serving {choice.model.name}: {choice.why}; another: {best_model.ANOTHER}")
    elif choice.why:
        log.info(choice.why)
    return choice.model
