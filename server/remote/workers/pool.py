"""`WorkerPool`: the API workers of a server, from the first start to the end.

    start -> Setup -> [ModelAt] -> Serve -> Serving ... death -> its sequences are aborted -> a new one in its place

All workers accept from the same listening sockets, which they inherit. A worker that takes another's place listens once it can
answer everything; those of the start listen at once, so that probes are answered while the model loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from starlette.types import ASGIApp

from cohort_server import run
from executors.contract import ConfigError
from server.http.answer_counter import AnswerCounter
from server.http.listener import Listener
from server.remote import messages as m
from server.remote.link import Link
from server.remote.workers.sequences import CoreOf
from server.remote.workers.session import FrontEndSession
from server.settings.table import Settings
from server.state.server_state import ServerState
from server.system import log_output

log = structlog.get_logger("server")

PROGRAM = "server.startup.api_worker"
_WATCH_INTERVAL = 5.0
_MOST_MISSED = 6
"""Questions in a row, one each `_WATCH_INTERVAL` seconds, that a worker may leave unanswered before it is killed."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a worker that died without having served is started again; the pause doubles."""
_MOST_STARTS = 6
"""Starts in a row, of one place, that end before the worker serves."""
_PUBLISH_TIMEOUT = 10.0
"""Seconds to wait until all workers know a new table of adapters."""
_EXIT_TIMEOUT = 6.0
"""Seconds that workers have to end: more than the HTTP server's time for last bytes."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkersFailed(Exception):
    """API workers die before they serve, so no request would be answered."""


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """What a worker's process uses. `cpu`: seconds so far; `resident`: bytes."""

    number: int
    cpu: float
    resident: int


def worker_command(fd: int, *listening: int) -> list[str]:
    """The command line of a worker, given its end of the socketpair and the listening sockets."""
    return run.command(PROGRAM, str(fd), *map(str, listening))


class _Worker:
    """One process. One writer: the event loop."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.number = number
        self.process = process
        self.serving = asyncio.Event()
        self.answered = asyncio.Event()
        self.loss = asyncio.Event()
        self.missed = 0
        self.syncs: dict[int, asyncio.Future[None]] = {}
        self.link: Link
        self.served: FrontEndSession

    def sync(self, number: int) -> asyncio.Future[None]:
        """A future that is done when the worker has answered, or is gone."""
        future = self.syncs[number] = asyncio.get_running_loop().create_future()
        self.link.send(m.Sync(number))
        return future

    def gone(self) -> None:
        """The link is closed."""
        self.loss.set()
        for future in self.syncs.values():
            if not future.done():
                future.set_result(None)
        self.syncs.clear()
        self.served.close()


class WorkerPool:
    """The workers of a server; a front end for `server.startup.lifecycle`. One writer: the event loop."""

    def __init__(
        self,
        settings: Settings,
        setup: Callable[[int, bool], m.Setup],
        listener: Listener,
        state: ServerState,
        core: CoreOf,
        app: ASGIApp,
        counter: AnswerCounter,
    ) -> None:
        """`setup` makes the first message of a worker, given its number and whether it takes another's place. `app` answers what
        workers pass on; `counter` counts what they answered."""
        self.restarts = 0
        self._count = settings.api_server_count
        self._setup, self._listener, self._state, self._core = setup, listener, state, core
        self._app, self._counter = app, counter
        self._workers: dict[int, _Worker] = {}
        """Living ones, by number."""
        self._model_at: m.ModelAt | None = None
        self._serve: m.Serve | None = None
        self._served: dict[int, asyncio.Event] = {n: asyncio.Event() for n in range(self._count)}
        """Set once a worker of that number serves."""
        self._last_sync = 0
        self._stopping = asyncio.Event()
        self._hurry = False
        loop = asyncio.get_running_loop()
        self._refused: asyncio.Future[None] = loop.create_future()
        """Fails with what makes the settings unusable for workers."""

    # -- for lifecycle -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep workers running until `stop`. Raises WorkersFailed."""
        tasks = [asyncio.create_task(self._keep(n), name=f"api worker {n}") for n in range(self._count)]
        watch = asyncio.create_task(self._watch(), name="watch of api workers")
        try:
            await asyncio.gather(*tasks)
        finally:
            watch.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(watch, *tasks, return_exceptions=True)

    async def answered(self) -> None:
        """Wait until no client waits for the rest of an answer."""
        for worker in self._workers.values():
            worker.answered.clear()
            worker.link.send(m.Drain())
        for worker in list(self._workers.values()):
            await _first(worker.answered.wait(), worker.loss.wait())

    def stop(self) -> None:
        """End the workers. One that has not ended after `_EXIT_TIMEOUT` seconds is killed."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.link.send(m.Stop(self._hurry))
            asyncio.get_running_loop().call_later(_EXIT_TIMEOUT, worker.process.kill)

    def hurry(self) -> None:
        """End them without waiting for clients to read."""
        self._hurry = True
        if self._stopping.is_set():
            self.stop()

    # -- for the composition root --------------------------------------------------------------------------------------

    def model_at(self, model_dir: str, is_default: bool) -> None:
        """The model's files are there."""
        self._model_at = m.ModelAt(model_dir, is_default)
        for worker in self._workers.values():
            worker.link.send(self._model_at)

    async def serve(self, facts: m.Serve) -> None:
        """Tell the workers that the executor is loaded, and wait until all serve. Raises ConfigError."""
        self._serve = facts
        for worker in self._workers.values():
            worker.link.send(facts)
        serving = asyncio.gather(*(event.wait() for event in self._served.values()))
        await asyncio.wait((serving, self._refused), return_when=asyncio.FIRST_COMPLETED)
        if self._refused.done():
            serving.cancel()
            self._refused.result()
        await serving

    async def publish(self, adapters: Sequence[m.LoraFacts]) -> None:
        """Give all workers a new table of adapters, and wait until they have it."""
        if self._serve is None:
            return  # it comes with the other facts
        self._serve.adapters = list(adapters)
        for worker in self._workers.values():
            worker.link.send(m.Loras(list(adapters)))
        await self.sync(_PUBLISH_TIMEOUT)

    async def sync(self, timeout: float) -> None:
        """Wait, at most `timeout` seconds, until every worker has acted on all messages before and sent its counts."""
        self._last_sync += 1
        futures = [worker.sync(self._last_sync) for worker in self._workers.values()]
        if futures:
            await asyncio.wait(futures, timeout=timeout)

    def uses(self) -> list[WorkerUse]:
        """What each living worker's process uses."""
        uses = []
        for number, worker in sorted(self._workers.items()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(")")[2].split()
                cpu = (int(fields[11]) + int(fields[12])) / _TICKS
                uses.append(WorkerUse(number, cpu, int(fields[21]) * _PAGE))
        return uses

    # -- lives ---------------------------------------------------------------------------------------------------------

    async def _keep(self, number: int) -> None:
        """Run a worker, and another one when it dies."""
        pause, in_vain = _FIRST_PAUSE, 0
        while not self._stopping.is_set():
            worker = await self._start(number)
            if self._stopping.is_set():
                self.stop()
            await worker.loss.wait()
            status = await self._reap(worker)
            if self._stopping.is_set():
                return
            self.restarts += 1
            log.error(f"api worker {number} ended: its connections are lost", status=status)
            if worker.serving.is_set():
                pause, in_vain = _FIRST_PAUSE, 0
                continue
            in_vain += 1
            if in_vain == _MOST_STARTS:
                raise WorkersFailed(f"api worker {number} ended {in_vain} times before it served")
            await _first(asyncio.sleep(pause), self._stopping.wait())
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _spawn(self, number: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """A new process, and our end of the socket to it."""
        ours, theirs = socket.socketpair()
        listening = [one.fileno() for one in self._listener.sockets]
        with theirs:
            try:
                with log_output.pipe_for(f"api worker {number}") as stderr:
                    process = subprocess.Popen(
                        worker_command(theirs.fileno(), *listening),
                        pass_fds=(theirs.fileno(), *listening),
                        stdin=subprocess.DEVNULL,
                        stdout=stderr or 2,  # a library's print must not mix with what the server prints
                        stderr=stderr,
                        env=_environment(),
                        process_group=0,  # Ctrl-C in the terminal is the server's to answer
                    )
            except BaseException:
                ours.close()
                raise
        return process, ours

    async def _start(self, number: int) -> _Worker:
        process, ours = self._spawn(number)
        worker = _Worker(number, process)
        try:
            link = await Link.connect(ours, m.ToServer, self._receiver(worker), lambda _: worker.gone())
        except BaseException:
            ours.close()
            process.kill()
            raise
        worker.link, worker.served = link, FrontEndSession(self._state, self._core, self._app, link)
        self._workers[number] = worker
        link.send(self._setup(number, self._served[number].is_set()))
        for message in (self._model_at, self._serve):
            if message is not None:
                link.send(message)
        return worker

    async def _reap(self, worker: _Worker) -> int:
        """Wait for the end of a process whose link is closed. Returns its status."""
        self._workers.pop(worker.number, None)
        if not self._stopping.is_set():
            worker.process.kill()
        return await asyncio.to_thread(worker.process.wait)

    async def _watch(self) -> None:
        """Kill workers that do not answer."""
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            self._last_sync += 1
            for worker in list(self._workers.values()):
                worker.missed = worker.missed + 1 if worker.syncs else 0
                if worker.missed >= _MOST_MISSED:
                    log.error(f"api worker {worker.number} does not answer: it is killed")
                    worker.process.kill()
                    worker.link.give_up("it does not answer")
                else:
                    worker.sync(self._last_sync)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _receiver(self, worker: _Worker) -> Callable[[Any], None]:
        return lambda message: self._received(worker, message)

    def _received(self, worker: _Worker, message: m.ToServer) -> None:
        match message:
            case m.Counts():
                self._add_counts(message)
            case m.Synced():
                future = worker.syncs.pop(message.number, None)
                if future is not None and not future.done():
                    future.set_result(None)
            case m.Answered():
                worker.answered.set()
            case m.Serving():
                worker.serving.set()
                self._served[worker.number].set()
            case m.NotServing():
                self._not_serving(worker, message)
            case _:
                worker.served.received(message)

    def _not_serving(self, worker: _Worker, message: m.NotServing) -> None:
        log.error(f"api worker {worker.number} cannot serve: {message.reason}")
        if message.by_operator and not self._refused.done():
            self._refused.set_exception(ConfigError(message.reason))
            self._refused.exception()  # perhaps no task waits: avoid the warning

    def _add_counts(self, counts: m.Counts) -> None:
        for template, status, count in counts.answers:
            self._counter.add(template, status, count)
        for code, count in counts.refused.items():
            for _ in range(count):
                self._state.metrics.refused(code)


def _environment() -> dict[str, str]:
    """The server's environment without its settings, which include keys; they come by message."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COHORT_")}


async def _first(*works: Any) -> None:
    """Wait for the first of these."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
