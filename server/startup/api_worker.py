"""An API worker: `python -m server.startup.api_worker FD LISTENING ...`, started by `server.remote.workers.pool`.

It speaks HTTP with clients, renders templates, tokenizes, and turns tokens into answers; the server's process schedules. It ends
at once when that process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

import setproctitle
import structlog
import uvloop

from executors.contract import ConfigError, ModelInfo
from server.http.certificates import INTERVAL, Certificates, certificates_of
from server.http.endpoints import Answered, Endpoints
from server.http.listener import Listener, of_descriptors
from server.remote import messages as m
from server.remote.link import Link
from server.remote.workers.forwarding import Forwarding
from server.remote.workers.remote_core import RemoteCore
from server.remote.workers.remote_parts import (
    DeclaredExecutor,
    QuestionClient,
    RemoteJudge,
    RemoteLoras,
    RemoteResponseStore,
    RemoteStories,
)
from server.settings.load import SettingsError
from server.settings.table import Settings
from server.startup.app import app_of
from server.startup.core_configs import engine_config
from server.startup.key_files import worker_keys
from server.startup.lifecycle import HttpFrontEnd
from server.startup.lora_models import models_of_adapters
from server.startup.new_state import reasoning_fields
from server.startup.text_side import TextSide, declared_model, read_text_side
from server.state.server_state import ServerState
from server.system import gc_tuning, logs
from server.system.signals import leave_to_parent
from server.telemetry.metrics import Metrics

log = structlog.get_logger("server")

_PR_SET_PDEATHSIG = 1
_COUNT_INTERVAL = 0.2
"""Seconds after which counted answers are sent."""
EXIT_SERVER_GONE, EXIT_CANNOT_SERVE = 0, 2


class Counts(Metrics):
    """What a worker counts. The server's process exports it with its own."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._answers: Counter[tuple[str, int]] = Counter()
        self._codes: Counter[str] = Counter()
        self._pending_report: asyncio.TimerHandle | None = None

    def of(self, endpoints: Endpoints) -> Answered:
        """Returns what counts answers, by these endpoints."""

        def answered(path: str | None, status: int) -> None:
            self._answers[(endpoints.template_of(path), status)] += 1
            self._report_soon()

        return answered

    def refused(self, code: str) -> None:
        """See MetricsSink."""
        self._codes[code] += 1
        self._report_soon()

    def report(self) -> None:
        """Send what was counted since the last time."""
        if self._pending_report is not None:
            self._pending_report.cancel()
            self._pending_report = None
        if self._answers or self._codes:
            answers = [(template, status, n) for (template, status), n in self._answers.items()]
            self._link.send(m.Counts(answers, dict(self._codes)))
            self._answers.clear()
            self._codes.clear()

    def _report_soon(self) -> None:
        if self._pending_report is None:
            self._pending_report = asyncio.get_running_loop().call_later(_COUNT_INTERVAL, self.report)


class DeclaredEngine:
    """The engine as a worker's routes read it. The server's process answers all other questions about it."""

    def __init__(self, facts: m.Serve) -> None:
        self.executor = DeclaredExecutor(facts.capabilities)
        self._info = facts.info

    def stats(self) -> None:
        """None: the stage is the server's to tell."""
        return None

    def info(self) -> ModelInfo:
        """The model's facts."""
        return self._info


class ApiWorker:
    """One worker, from its first message to its end."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._messages: asyncio.Queue[m.ToWorker] = asyncio.Queue()
        """Those that are acted on in order, one after the other; answers and deltas are not among them."""
        self._core: RemoteCore | None = None
        self._front: HttpFrontEnd | None = None
        self._serving: asyncio.Task[None] | None = None
        self._settings: m.Setup
        self._text: asyncio.Task[tuple[TextSide, Path]] | None = None
        self._link: Link

    async def run(self, sock: socket.socket) -> None:
        """Work until the server says stop."""
        self._link = link = await Link.connect(sock, m.ToWorker, self._received, _server_gone)
        self._questions, self._forwarding = QuestionClient(link), Forwarding(link)
        self._counts = Counts(link)
        link.unsendable = self._unsendable
        setup = await self._messages.get()
        assert isinstance(setup, m.Setup)
        await self._begin(setup)
        while True:
            message = await self._messages.get()
            match message:
                case m.ModelAt():
                    self._read_text_side(message)
                case m.Serve():
                    await self._serve(message)
                case m.Loras():
                    await self._replace_adapters(message.adapters)
                case m.Sync():
                    self._counts.report()
                    link.send(m.Synced(message.number))
                case m.Drain():
                    self._draining = asyncio.create_task(self._drain())
                case m.Stop():
                    await self._stop(message.hurry)
                    return

    # -- messages ------------------------------------------------------------------------------------------------------

    def _received(self, message: m.ToWorker) -> None:
        match message:
            case m.Deltas():
                assert self._core is not None
                self._core.deliver(message)
            case m.Reply():
                self._questions.replied(message)
            case m.Head() | m.Body():
                self._forwarding.received(message)
            case m.Stop(hurry=True) if self._front is not None:
                self._front.hurry()
                self._messages.put_nowait(message)
            case _:
                self._messages.put_nowait(message)

    def _unsendable(self, message: Any, reason: str) -> None:
        if isinstance(message, m.Ask):
            self._questions.unsendable(message, reason)
        elif self._core is not None:
            self._core.unsendable(message, reason)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _begin(self, setup: m.Setup) -> None:
        self._settings, settings = setup, setup.settings
        gc_tuning.limit_heaps()
        setproctitle.setproctitle(f"cohort: api worker {setup.number}")
        logs.configure(settings.log_level, settings.log_format, colors=setup.colors)
        self.state = state = ServerState(
            setup.names, self._counts, settings, recovery_timeout=settings.recovery_timeout
        )
        state.write_timeout = settings.write_timeout
        state.reasoning_fields = reasoning_fields(settings.reasoning_field)
        state.aliases = setup.aliases
        state.unread_parts = settings.unread_parts
        state.started = setup.started
        state.elsewhere = self._forwarding
        state.responses = RemoteResponseStore(self._questions, settings.responses_store_entries > 0)
        state.stories = RemoteStories(self._link)
        keys = worker_keys(settings, setup.minted_key)
        app = app_of(settings, state, setup.address, keys, counting=self._counts.of)
        self._front = HttpFrontEnd(app, state, self._listener, await _certificates(settings))
        if not setup.patient:
            self._listen()

    def _listen(self) -> None:
        if self._serving is None:
            assert self._front is not None
            self._serving = asyncio.create_task(self._front.run(), name="http")

    def _read_text_side(self, at: m.ModelAt) -> None:
        directory = Path(at.model_dir)

        async def read() -> tuple[TextSide, Path]:
            text = await asyncio.to_thread(read_text_side, self._settings.settings, directory, at.is_default)
            return text, directory

        self._text = asyncio.create_task(read())
        self._text.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _serve(self, facts: m.Serve) -> None:
        try:
            await self._load(facts)
        except (ConfigError, SettingsError) as error:
            self._cannot_serve(str(error), True)
        except Exception as error:
            log.exception("an api worker cannot serve", exc_info=error)
            self._cannot_serve(f"{type(error).__name__}: {error}", False)
        gc_tuning.freeze_after_load()
        self._listen()
        self._link.send(m.Serving())

    async def _load(self, facts: m.Serve) -> None:
        settings, state = self._settings.settings, self.state
        assert self._text is not None
        text, directory = await self._text
        self._core = core = RemoteCore(
            self._link, self._questions, engine_config(settings), facts.max_model_len
        )
        model = await declared_model(
            settings, core, state.threads, text, facts, directory, self._settings.names
        )
        state.core = DeclaredEngine(facts)  # type: ignore[assignment]  # the routes of a worker read no more of it
        state.judge = RemoteJudge(self._questions)
        if facts.adapters is not None:
            served_by = models_of_adapters(settings, state.threads, text, model)
            state.adapters = RemoteLoras(self._questions, served_by, facts.max_loras, settings.lora_on_demand)
            await state.adapters.replace(facts.adapters)
        state.model = model

    async def _replace_adapters(self, table: list[m.LoraFacts]) -> None:
        if isinstance(self.state.adapters, RemoteLoras):
            await self.state.adapters.replace(table)

    async def _drain(self) -> None:
        if self._front is not None and self._serving is not None:
            await self._front.answered()
        self._link.send(m.Answered())

    async def _stop(self, hurry: bool) -> None:
        assert self._front is not None
        self._front.stop()
        if hurry:
            self._front.hurry()
        if self._serving is not None:
            await self._serving
        self.state.threads.close()
        self._counts.report()
        self._link.flush()

    def _cannot_serve(self, reason: str, by_operator: bool) -> NoReturn:
        self._link.send(m.NotServing(reason, by_operator))
        self._link.flush()
        sys.exit(EXIT_CANNOT_SERVE)


async def _certificates(settings: Settings) -> Certificates | None:
    """Those of the server, which has read them. A worker that takes a dead one's place may come while they are replaced."""
    while True:
        try:
            return certificates_of(settings)
        except SettingsError as fault:
            log.error(f"{fault}; trying again")
            await asyncio.sleep(INTERVAL)


def _server_gone(reason: str) -> NoReturn:
    """Without the server there is nothing to say to any client, and nothing that the kernel does not free."""
    os._exit(EXIT_SERVER_GONE)


def main() -> None:
    """Run a worker on the descriptors that the command line names."""
    sock, *listening = map(int, sys.argv[1:])
    parent = os.getppid()
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    leave_to_parent()  # it drains
    if os.getppid() != parent:
        _server_gone("")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ApiWorker(of_descriptors(listening)).run(socket.socket(fileno=sock)))


if __name__ == "__main__":
    main()
