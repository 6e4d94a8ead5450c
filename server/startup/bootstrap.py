"""The composition root of a server's process: keys, certificates, metrics and the front end, around the model that
`model_loader.py` makes ready.

Settings -> ModelLoader -> ServerState -> app -> front end
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence

import setproctitle
import structlog
import uvloop

from engine.core.engine import EngineCore
from executors.contract import ConfigError, ExecutorError, Unavailable
from server import hub
from server.http.certificates import certificates_of
from server.http.listener import Listener
from server.models.declared import check_alone, serves_several
from server.remote.messages import Setup
from server.remote.workers.pool import WorkerPool, WorkersFailed
from server.running import registry as registry_of_servers
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup import banner, best_model
from server.startup.app import app_of
from server.startup.disk_cache import disk_of
from server.startup.key_files import read_keys
from server.startup.lifecycle import EngineGone, FrontEnd, HttpFrontEnd, serve_by
from server.startup.loading import loading_display, reporter, unless
from server.startup.model_loader import ModelLoader
from server.startup.model_source import LocalModel, Source
from server.startup.new_state import new_state, open_traces
from server.startup.pending_core import PendingCore
from server.state.server_state import ServedModel, ServerState
from server.system import exit_codes, first_lines, gc_tuning, log_output, logs
from server.system.signals import Signals
from server.telemetry.metrics import Metrics

log = structlog.get_logger("server")


def run(settings: Settings, listener: Listener, notes: Sequence[str] = ()) -> int:
    """Serve on `listener` until told to stop. Returns the exit code, see `run_server`."""

    def serve() -> Coroutine[None, None, None]:
        if serves_several(settings):
            from server.startup.port import Port

            return Port(settings).serve(listener)
        check_alone(settings)
        return Bootstrap(settings, unnamed_source(settings)).serve(listener)

    return run_server(settings, notes, serve)


def run_server(
    settings: Settings, notes: Sequence[str], serve: Callable[[], Coroutine[None, None, None]]
) -> int:
    """Run a server's coroutine in this process.

    Returns the exit code, see `server.system.exit_codes`.
    """
    gc_tuning.limit_heaps()
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


class Bootstrap:
    """Builds one server from its settings. Raises SettingsError or ConfigError if these cannot be served."""

    def __init__(self, settings: Settings, source: Source | None = None) -> None:
        """`source`: what to serve; None: what the settings name, or the default model."""
        self.loader = ModelLoader(settings, source)
        self.loader.disk = disk_of(self.loader.settings)
        settings = self.settings = self.loader.settings
        self.tls = certificates_of(settings)
        self.keys = read_keys(settings, terminal=logs.is_terminal(settings.log_format))
        self.loader.can_administrate = bool(self.keys.admin)
        self.traces = open_traces(settings.otlp_traces_endpoint)

    @property
    def names(self) -> tuple[str, ...]:
        """Names under which the model is served; the first one is its own."""
        return self.loader.names

    async def serve(self, listener: Listener) -> None:
        """Answer HTTP at once, load meanwhile, serve, drain."""
        settings, loader = self.settings, self.loader
        signals = Signals()
        signals.install()
        metrics = Metrics(model=self.names[0], compat=settings.metrics_compat)
        metrics.know_keys(self.keys.names())
        state = new_state(settings, loader.names, loader.aliases, metrics, self.traces)
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
            if loader.is_here:
                beginning = await unless(signals.first, loader.begin_checked(state, core, report))
                if beginning is None:
                    return
            log.info(f"listening on {url}", model=self.names[0])
            for note in listener.notes:
                log.warning(note)
            if isinstance(loader.source, LocalModel) and loader.source.note is not None:
                log.warning(loader.source.note)
            entry = registry_of_servers.register(url, self.names, settings.drain_timeout)

            async def load() -> None:
                try:
                    model = await loader.finish(
                        state, core, report, beginning or await loader.begin(state, core, report)
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
            if core.known is not None:
                loader.known_pace.judge(core.known.pace_ratio)

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
                number,
                settings,
                self.names,
                self.loader.aliases,
                minted,
                state.started,
                address,
                patient,
                colors,
            )

        self.loader.pool = pool = WorkerPool(
            settings, setup, listener, state, lambda: core.known, app, app.state.answered
        )
        state.workers = pool
        state.metrics.watch_workers(pool)
        return pool

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
            notes=self.loader.notes(model),
        )
        # A log file is read by others than who starts the server: there the key is not written.
        if logs.is_terminal(self.settings.log_format):
            banner.show(facts.text())
        else:
            facts.log()
        if self.keys.minted is not None:
            banner.show_admin_key(self.keys.minted)


def unnamed_source(settings: Settings) -> Source | None:
    """The best model on this disk, where the settings name none and it is better than the default one; else None. The log says
    what was chosen and why. Raises ConfigError."""
    choice = best_model.choose(settings, log.info)
    if choice.model is not None:
        log.info(f"serving {choice.model.name}: {choice.why}; another: {best_model.ANOTHER}")
    elif choice.why:
        log.info(choice.why)
    return choice.model
