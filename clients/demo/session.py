"""What `cohort demo` does: the same streams twice, the second time with the executor killed under them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from clients.demo import prompts
from clients.demo.server import DemoFault, DemoServer
from clients.demo.stream import Answer, difference
from clients.http import Broken, Client, Refused, reason
from clients.own_server import Unserved

_EXACT = ("--deterministic",)
_CLOSE = ("--dtype", "float32", "--no-enable-prefix-caching")
"""Where `--deterministic` cannot be had: both runs compute the same in the same order, and rounding hardly ever shows."""

_ON_THE_WAY = 0.05
"""Seconds after a kill in which what was sent before it may still come."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be shown. `model` None: the default one."""

    model: str | None = None
    streams: int = 32
    kills: int = 1
    seed: int = 0


@dataclass(slots=True)
class Kill:
    """One death of the executor. Times are of `time.perf_counter`; `lengths` are the characters, and `positions` the tokens,
    that each stream had shown until then; `cut` of them were in mid-answer."""

    pid: int
    at: float
    lengths: list[int]
    positions: list[int]
    cut: int
    next_pid: int | None = None
    back: float | None = None

    @property
    def took(self) -> float:
        """Seconds until another executor was ready; infinite where none is yet."""
        return math.inf if self.back is None else self.back - self.at


@dataclass(slots=True)
class Pass:
    """One run of all streams: written by the session, drawn by views at any time. `expected`: the undisturbed answers, where
    there are some; `exact`: logprobs count, too."""

    count: int
    expected: list[Answer] | None = None
    exact: bool = True
    answers: list[Answer] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    began: float = 0.0
    ended: float | None = None
    _judged: dict[int, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = [Answer(self.news.set) for _ in range(self.count)]

    @property
    def tokens(self) -> int:
        return sum(answer.position for answer in self.answers)

    @property
    def seconds(self) -> float:
        return (self.ended if self.ended is not None else time.perf_counter()) - self.began

    def is_waiting(self, number: int) -> bool:
        """Whether this stream has not gone on since the last kill."""
        answer = self.answers[number]
        heard = answer.arrivals[-1] if answer.arrivals else 0.0
        return bool(self.kills) and not answer.over and heard < self.kills[-1].at + _ON_THE_WAY

    def difference(self, number: int) -> str | None:
        """In what this stream, which is over, is not the undisturbed one."""
        if self.expected is None:
            return None
        if number not in self._judged:
            found = difference(self.expected[number], self.answers[number], exact=self.exact)
            self._judged[number] = found
        return self._judged[number]

    def is_due(self, share: float) -> bool:
        """Whether the first stream has come to this share of its answer, and all that are not over have begun, or gone on
        since the last kill. Raises DemoFault where all are over: there is nothing left to disturb."""
        assert self.expected is not None
        if all(answer.over for answer in self.answers):
            raise DemoFault("all answers were over before the executor could be killed in their midst")
        before = self.kills[-1].positions if self.kills else [0] * self.count
        if any(not one.over and one.position <= then for one, then in zip(self.answers, before, strict=True)):
            return False
        return any(
            one.over or one.position >= share * whole.position
            for one, whole in zip(self.answers, self.expected, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. `pause` in seconds; `first`: number (from 1) and difference of the first stream that has one."""

    equal: int
    streams: int
    pause: float
    kills: list[Kill]
    first: tuple[int, str] | None

    @property
    def line(self) -> str:
        return f"{self.equal} of {self.streams} equal, longest pause {self.pause:.1f} s"


class Server(Protocol):
    """What of DemoServer is used once it runs."""

    client: Client

    async def ask(self, path: str) -> Any: ...
    async def executor(self) -> dict[str, Any]: ...
    def kill_executor(self, pid: int) -> None: ...
    async def next_executor(self, old: int) -> int: ...
    async def check(self) -> None: ...


class View(Protocol):
    """How it is shown."""

    def loading(self, stage: str) -> None: ...
    def ready(self, model: str, pid: int, job: Job, *, exact: bool) -> None: ...
    def passing(self, run: Pass) -> AbstractAsyncContextManager[None]: ...
    def killed(self, kill: Kill) -> None: ...
    def returned(self, kill: Kill) -> None: ...
    def conclude(self, run: Pass, outcome: Outcome) -> None: ...


async def demonstrate(job: Job, view: View) -> Outcome:
    """All of it, with a server of its own. Raises DemoFault where there is nothing to show, and OSError for the view's stdout."""
    arguments = [job.model] if job.model is not None else []
    arguments += ["--max-num-seqs", str(job.streams)]
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(DemoServer([*arguments, *_EXACT], view.loading))
            exact = True
        except Unserved as error:
            if "deterministic:" not in str(error):
                raise
            server = await stack.enter_async_context(DemoServer([*arguments, *_CLOSE], view.loading))
            exact = False
        return await compare(job, view, server, exact=exact)


async def compare(job: Job, view: View, server: Server, *, exact: bool) -> Outcome:
    """Both runs, on a server that is ready."""
    card = await server.executor()
    model = str((await server.ask("/v1/models"))["data"][0]["id"])
    view.ready(model, int(card["pid"]), job, exact=exact)
    asked = prompts.fields(job.streams, job.seed, grammars=bool(card["capabilities"]["grammars"]))
    messages = [_message(server.client, model, one) for one in asked]

    first = Pass(job.streams)
    async with view.passing(first):
        await _play(server.client, messages, first)
    for i, answer in enumerate(first.answers, 1):
        if answer.problem is not None:
            await server.check()
            raise DemoFault(f"stream {i} of the undisturbed run: {answer.problem}")

    second = Pass(job.streams, first.answers, exact)
    async with view.passing(second):
        await _play_disturbed(server, messages, second, int(card["pid"]), job.kills, view)
    judged = (difference(*both, exact=exact) for both in zip(first.answers, second.answers, strict=True))
    differences = [(number, found) for number, found in enumerate(judged, 1) if found is not None]
    outcome = Outcome(
        equal=job.streams - len(differences),
        streams=job.streams,
        pause=max(answer.longest_pause() for answer in second.answers),
        kills=second.kills,
        first=differences[0] if differences else None,
    )
    view.conclude(second, outcome)
    return outcome


def _message(client: Client, model: str, fields: dict[str, Any]) -> bytes:
    common = {
        "model": model, "max_tokens": prompts.MAX_TOKENS, "logprobs": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    return client.message("POST", "/v1/chat/completions", common | fields)


async def _play(client: Client, messages: Sequence[bytes], run: Pass) -> None:
    """All streams at once, to their ends; what goes wrong with one is its answer's `problem`."""
    run.began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for message, answer in zip(messages, run.answers, strict=True):
            group.create_task(_stream(client, message, answer))
    run.ended = time.perf_counter()


async def _stream(client: Client, message: bytes, answer: Answer) -> None:
    try:
        connection = await client.connect()
        try:
            await connection.exchange(message, answer.feed)
        finally:
            connection.close()
    except (Refused, Broken, OSError) as error:
        answer.end(reason(error))
    else:
        answer.end()


async def _play_disturbed(
    server: Server, messages: Sequence[bytes], run: Pass, pid: int, kills: int, view: View
) -> None:
    """The same with kills, evenly spread over the answer that is the first to end: all others are in mid-answer then."""
    playing = asyncio.create_task(_play(server.client, messages, run))
    try:
        for number in range(1, kills + 1):
            while not run.is_due(number / (kills + 1)):
                run.news.clear()
                await run.news.wait()
            server.kill_executor(pid)
            kill = _kill_of(run, pid)
            run.kills.append(kill)
            view.killed(kill)
            pid = kill.next_pid = await server.next_executor(pid)
            kill.back = time.perf_counter()
            view.returned(kill)
        await playing
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def _kill_of(run: Pass, pid: int) -> Kill:
    return Kill(
        pid,
        time.perf_counter(),
        lengths=[len(answer.text) for answer in run.answers],
        positions=[answer.position for answer in run.answers],
        cut=sum(not answer.over for answer in run.answers),
    )
