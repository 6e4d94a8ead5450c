"""What `cohort demo` does: the same streams twice, the second time with the executor killed under them."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from clients.demo import prompts
from clients.demo.answer import Answer, difference
from clients.demo.server import DemoFault, DemoServer
from clients.demo.view import View, streams
from clients.http import Broken, Client, Refused, reason
from clients.own_server import Unserved

_EXACT = ("--deterministic",)
_CLOSE = ("--dtype", "float32", "--no-enable-prefix-caching")
"""Where `--deterministic` cannot be had: both runs compute the same in the same order, and rounding hardly ever shows."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What is to be shown."""

    model: str
    streams: int = 32
    kills: int = 1
    seed: int = 0


@dataclass(slots=True)
class Kill:
    """One death of the executor. `lengths` are the characters, and `positions` the tokens, that each stream had shown until then;
    `cut` of them were in mid-answer. `seconds`: until another executor, `next_pid`, was ready."""

    pid: int
    lengths: list[int]
    positions: list[int]
    cut: int
    next_pid: int = 0
    seconds: float = 0.0


class Run:
    """All streams once. The connections write the answers, and set `news`."""

    def __init__(self, count: int) -> None:
        self.news = asyncio.Event()
        self.answers = [Answer(self.news.set) for _ in range(count)]
        self.kills: list[Kill] = []
        self.seconds = 0.0

    @property
    def line(self) -> str:
        """Its tokens and its time."""
        return f"{sum(answer.position for answer in self.answers):,} tokens in {self.seconds:.1f} s"

    async def play(self, client: Client, messages: list[bytes]) -> None:
        """All streams at once, to their ends; what goes wrong with one is its answer's `problem`."""
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for message, answer in zip(messages, self.answers, strict=True):
                group.create_task(_stream(client, message, answer))
        self.seconds = time.perf_counter() - began

    def is_due(self, share: float, whole: list[Answer]) -> bool:
        """Whether the first stream has come to this share of its answer in the first run, and each that is not over has begun, or
        gone on since the last kill. Raises DemoFault where all are over: there is nothing left to disturb."""
        if all(answer.over for answer in self.answers):
            raise DemoFault("all answers were over before the executor could be killed in their midst")
        before = self.kills[-1].positions if self.kills else [0] * len(self.answers)
        if any(not one.over and one.position <= then for one, then in zip(self.answers, before, strict=True)):
            return False
        pairs = zip(self.answers, whole, strict=True)
        return any(one.over or one.position >= share * answer.position for one, answer in pairs)


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


async def demonstrate(job: Demonstration, view: View) -> Outcome:
    """All of it, with a server of its own. Raises DemoFault where there is nothing to show, and OSError for the view's stdout."""
    arguments = [job.model, "--max-num-seqs", str(job.streams)]
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(DemoServer([*arguments, *_EXACT]))
            exact = True
        except Unserved as error:
            if "deterministic:" not in str(error):
                raise
            server = await stack.enter_async_context(DemoServer([*arguments, *_CLOSE]))
            exact = False
        return await compare(job, view, server, exact=exact)


async def compare(job: Demonstration, view: View, server: DemoServer, *, exact: bool) -> Outcome:
    """Both runs, on a server that is ready."""
    card = await server.executor()
    pid = int(card["pid"])
    model = str((await server.ask("/v1/models"))["data"][0]["id"])
    view.say(f"{streams(job.streams)} of {model}, seed {job.seed}; its executor is process {pid}", "bold")
    if not exact:
        view.say(
            "--deterministic cannot be had here: float32 instead, and logprobs are not compared", "yellow"
        )
    bodies = prompts.fields(job.streams, job.seed, grammars=bool(card["capabilities"]["grammars"]))
    messages = [_message(server.client, model, body) for body in bodies]

    first, second = Run(job.streams), Run(job.streams)
    await first.play(server.client, messages)
    for i, answer in enumerate(first.answers, 1):
        if answer.problem is not None:
            await server.check()
            raise DemoFault(f"stream {i} of the undisturbed run: {answer.problem}")
    view.say(f"First run, undisturbed: {first.line}")
    playing = asyncio.create_task(second.play(server.client, messages))
    try:
        await _disturb(server, second, first.answers, pid, job.kills, view)
        await playing
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
    view.say(f"Second run: {second.line}")

    pairs = zip(first.answers, second.answers, strict=True)
    differences = [difference(*pair, exact=exact) for pair in pairs]
    different = [(number, text) for number, text in enumerate(differences, 1) if text is not None]
    pause = max(answer.longest_pause() for answer in second.answers)
    equal = job.streams - len(different)
    outcome = Outcome(equal, job.streams, pause, second.kills, different[0] if different else None)
    view.show_rows(second.answers, [kill.lengths for kill in second.kills], differences)
    view.say(f"Restarting the executor took {', '.join(f'{kill.seconds:.1f} s' for kill in second.kills)}")
    if outcome.first is not None:
        view.say("Stream {} is the first that differs: {}".format(*outcome.first), "red")
    view.say(outcome.line, "bold red" if different else "bold green")
    return outcome


def _message(client: Client, model: str, body: dict[str, Any]) -> bytes:
    common = {
        "model": model, "max_tokens": prompts.MAX_TOKENS, "logprobs": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    return client.message("POST", "/v1/chat/completions", common | body)


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


async def _disturb(
    server: DemoServer, run: Run, whole: list[Answer], pid: int, kills: int, view: View
) -> None:
    """Kill the executor, evenly spread over the answer that is the first to end: all others are in mid-answer then."""
    for number in range(1, kills + 1):
        while not run.is_due(number / (kills + 1), whole):
            run.news.clear()
            await run.news.wait()
        server.kill_executor(pid)
        at, answers = time.perf_counter(), run.answers
        lengths, positions = [len(one.text) for one in answers], [one.position for one in answers]
        kill = Kill(pid, lengths, positions, cut=sum(not one.over for one in answers))
        run.kills.append(kill)
        view.say(f"Executor {pid} killed by SIGKILL, {streams(kill.cut)} in mid-answer")
        pid = kill.next_pid = await server.next_executor(pid)
        kill.seconds = time.perf_counter() - at
        view.say(f"Executor {pid} took over after {kill.seconds:.1f} s")
