"""The composition root: the one place that knows executors by name and puts the parts together.

Settings -> ExecutorConfig -> executor -> EngineCore -+-> TextEngine -> ServedModel -> ServerState -> app
                               Tokenizer, template ---+
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import setproctitle
import structlog
import uvloop

from engine.core.config import EngineConfig
from engine.core.loop import EngineCore
from engine.text.generation import TextEngine
from engine.text.tokenizer import Tokenizer
from executors import tiny
from executors.contract import (
    ConfigError,
    ExecutorAttentionConfig,
    ExecutorConfig,
    ExecutorError,
    ExecutorMemoryConfig,
    ModelInfo,
)
from executors.process import connect
from server import __version__, logs, startup
from server.app import create_app
from server.chat.template import ChatTemplate
from server.lifecycle import EngineGone, Signals, serve
from server.metrics import Metrics
from server.sampling_defaults import FILE, SamplingDefaults
from server.settings import Settings, SettingsError
from server.state import ServedModel, ServerState

log = structlog.get_logger("server")

EMBEDDED_NAME = "cohort-tiny"


def run(settings: Settings, listener: socket.socket, notes: Sequence[str] = ()) -> int:
    """Serve on `listener` until told to stop.

    Returns the exit code: 0 after a drain, 2 for what a person can put right, 3 when the engine gave up after
    `recovery_timeout` (whatever started the server may start it anew), 1 otherwise.
    """
    setproctitle.setproctitle("cohort: server")
    logs.configure(settings.log_level)
    for note in notes:
        log.info(note)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Bootstrap(settings).serve(listener))
    except (SettingsError, ConfigError) as error:
        _complain(str(error))
        return 2
    except EngineGone:
        _complain("the executor cannot be brought back; see the log above")
        return 3
    except ExecutorError as error:
        _complain(f"the executor could not be started: {error}")
        return 1
    return 0


def _complain(message: str) -> None:
    print(f"cohort: error: {' '.join(message.split())}", file=sys.stderr, flush=True)


class Bootstrap:
    """Builds one server from its settings. Raises SettingsError or ConfigError for what cannot be served."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.model_dir = _model_dir(settings)
        self.config = executor_config(settings, self.model_dir)
        self.names = tuple(settings.served_model_name) or (_name_of(settings, self.model_dir),)

    async def serve(self, listener: socket.socket) -> None:
        """Answer at once, load behind that, serve, drain."""
        settings = self.settings
        signals = Signals()
        signals.install()
        state = ServerState(self.names, Metrics(), recovery_timeout=settings.recovery_timeout)
        core = self._core(state)
        app = create_app(
            state,
            api_keys=settings.api_key,
            metrics_key=settings.metrics_key,
            max_body_bytes=settings.max_body_bytes,
        )
        url = startup.url_of(settings.host, listener.getsockname()[1])
        log.info(f"listening on {url}", model=self.names[0])

        async def load() -> None:
            state.model = await self._load(core)
            self._announce(core, state.model, url)

        await serve(app, state, listener, core, load, drain_timeout=settings.drain_timeout, signals=signals)

    def _core(self, state: ServerState) -> EngineCore:
        executor = connect(self.config, self.settings.executor_mode)
        limits = EngineConfig(
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            recovery_timeout=self.settings.recovery_timeout,
        )
        core = EngineCore(executor, limits, state.metrics)
        state.core = core
        state.metrics.watch(core)
        return core

    async def _load(self, core: EngineCore) -> ServedModel:
        """Executor and tokenizer side by side; the first error ends both."""
        display = startup.loading_display()
        core.executor.set_progress(display.report)
        starting = asyncio.create_task(core.start())
        reading = asyncio.create_task(asyncio.to_thread(self._read_text_side))
        try:
            await asyncio.wait((starting, reading), return_when=asyncio.FIRST_EXCEPTION)
            for task in (reading, starting):
                if task.done():
                    task.result()
            await starting
            tokenizer, template, defaults = await reading
        finally:
            display.close()
            for task in (starting, reading):
                task.cancel()
            await asyncio.gather(starting, reading, return_exceptions=True)
        info = core.info()
        assert info is not None
        return self._served(core, info, tokenizer, template, defaults)

    def _read_text_side(self) -> tuple[Tokenizer, ChatTemplate | None, SamplingDefaults]:
        directory = Path(self.settings.tokenizer) if self.settings.tokenizer else self.model_dir
        if not directory.is_dir():
            raise ConfigError(f"--tokenizer {directory}: no such directory")
        tokenizer = Tokenizer.load(directory)
        defaults = SamplingDefaults.of(tokenizer.generation_config, str(directory / FILE))
        source, origin = tokenizer.chat_template, f"{directory}: chat template"
        if self.settings.chat_template:
            path = Path(self.settings.chat_template)
            origin = f"--chat-template {path}"
            try:
                source = path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not readable as text"
                raise ConfigError(f"{origin}: {reason}") from None
        if source is None:
            return tokenizer, None, defaults
        return tokenizer, ChatTemplate(source, tokenizer.special_tokens, origin), defaults

    def _served(
        self,
        core: EngineCore,
        info: ModelInfo,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        defaults: SamplingDefaults,
    ) -> ServedModel:
        if tokenizer.vocab_size > info.logits_width:
            log.warning(
                "the tokenizer knows more ids than the model: some texts cannot be served",
                tokenizer=tokenizer.vocab_size,
                model=info.logits_width,
            )
        penalty = tokenizer.generation_config.get("repetition_penalty", 1.0)
        if penalty not in (None, 1, 1.0):
            log.warning("repetition_penalty of generation_config.json is not applied: not supported yet")
        digest = hashlib.sha256(repr((__version__, self.config, info)).encode()).hexdigest()[:10]
        return ServedModel(
            engine=TextEngine(core, tokenizer),
            tokenizer=tokenizer,
            info=info,
            max_model_len=core.max_model_len,
            template=template,
            defaults=defaults,
            fingerprint=f"cohort-{digest}",
        )

    def _announce(self, core: EngineCore, model: ServedModel, url: str) -> None:
        text = startup.banner(
            url=url,
            name=self.names[0],
            info=model.info,
            layout=core.executor.kv_layout(),
            max_model_len=model.max_model_len,
            needs_key=bool(self.settings.api_key),
        )
        startup.show(text)


def executor_config(settings: Settings, model_dir: Path) -> ExecutorConfig:
    """What the executor is told."""
    return ExecutorConfig(
        executor=settings.executor,
        model=str(model_dir),
        load_format=settings.load_format,
        dtype=settings.dtype,
        device=settings.device,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        seed=settings.seed,
        attention=ExecutorAttentionConfig(block_size=settings.block_size),
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=settings.kv_cache_memory_bytes),
        options=dict(settings.executor_option),
    )


def _model_dir(settings: Settings) -> Path:
    if settings.model is None:
        return tiny.weights_dir()
    path = Path(settings.model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise SettingsError(f"{settings.model}: a model is a directory, and this is a file")
    if settings.model.count("/") == 1 and not settings.model.startswith((".", "/", "~")):
        raise SettingsError(
            f"{settings.model}: no such directory; models by hub name are not supported yet: download it, "
            "then give its directory"
        )
    raise SettingsError(f"{settings.model}: no such directory")


def _name_of(settings: Settings, model_dir: Path) -> str:
    """The id clients use: the directory's own name, for a path is nobody's business."""
    return EMBEDDED_NAME if settings.model is None else model_dir.name
