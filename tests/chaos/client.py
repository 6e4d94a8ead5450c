"""Calls over HTTP as a client keeps them: all that each choice has said, and when."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.server_process import ServerProcess

PATIENCE = 240.0


@dataclass
class Heard:
    """What one choice has said so far. `calls`: of tools, as (name, arguments)."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: Any = None
    finish: str | None = None

    def take(self, choice: dict[str, Any]) -> None:
        """One event's, or all of it."""
        said = choice.get("delta") or choice.get("message") or {}
        self.text += said.get("content") or choice.get("text") or ""
        for call in said.get("tool_calls") or []:
            if "index" not in call or call["index"] == len(self.calls):
                self.calls.append(["", ""])
            made, function = self.calls[call.get("index", -1)], call["function"]
            made[0] += function.get("name") or ""
            made[1] += function.get("arguments") or ""
        self.ids += choice.get("token_ids") or []
        logprobs = choice.get("logprobs")
        if logprobs:  # chat has a list of objects, completions an object of lists
            self.logprobs += [logprobs] if "content" not in logprobs else logprobs["content"] or []
        self.prompt_logprobs = choice.get("prompt_logprobs") or self.prompt_logprobs
        self.finish = choice.get("finish_reason") or self.finish


@dataclass
class Stream:
    """A call in progress: a stream, unless `body["stream"]` is False. `choices` by index; `error` is what ended it.

    `heard_at`: seconds (monotonic) of each event, the call's beginning first. `comments`: keep-alives.
    """

    body: dict[str, Any]
    choices: dict[int, Heard] = field(default_factory=dict)
    usage: tuple[int, int] | None = None
    """Tokens of the prompt and of the output."""
    error: Any = None
    done: bool = False
    comments: int = 0
    heard_at: list[float] = field(default_factory=list)
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def path(self) -> str:
        return "/v1/completions" if "prompt" in self.body else "/v1/chat/completions"

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream", True))

    @property
    def tokens(self) -> int:
        """Of the choice that has the fewest."""
        return min((len(one.ids) for one in self.choices.values()), default=0)

    @property
    def longest_pause(self) -> float:
        """Seconds between two events of a stream."""
        pairs = zip(self.heard_at, self.heard_at[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0) if self.streams else 0.0

    def first_after(self, moment: float) -> float | None:
        """When the first event after that moment came; None if none did."""
        return next((at for at in self.heard_at if at > moment), None)

    def said(self) -> list[Any]:
        """All of it, to be compared."""
        return [self.usage, *(one for _, one in sorted(self.choices.items()))]

    async def reaches(self, tokens: int) -> None:
        """Wait until every choice has so many tokens, or the stream is over."""
        async with asyncio.timeout(PATIENCE), self.moved:
            await self.moved.wait_for(lambda: self.tokens >= tokens or self.done)

    async def run(self, client: httpx.AsyncClient) -> Stream:
        """To the end."""
        self.heard_at.append(time.monotonic())
        asked = {"stream": True, "return_token_ids": True, **self.body}
        try:
            if self.streams:
                asked["stream_options"] = {"include_usage": True}
                await self._stream(client, asked)
            else:
                answer = await client.post(self.path, json=asked)
                await self._take(answer.json(), time.monotonic())
        finally:
            async with self.moved:
                self.done = True
                self.moved.notify_all()
        return self

    async def _stream(self, client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
        async with client.stream("POST", self.path, json=asked) as response:
            if response.status_code != 200:
                self.error = json.loads(await response.aread())["error"]
                return
            async for line in response.aiter_lines():
                self.comments += line.startswith(":")
                if line.startswith("data: ") and line != "data: [DONE]":
                    await self._take(json.loads(line[6:]), time.monotonic())

    async def _take(self, event: dict[str, Any], now: float) -> None:
        async with self.moved:
            self.heard_at.append(now)
            self.error = event.get("error", self.error)
            for choice in event.get("choices", ()):
                self.choices.setdefault(choice["index"], Heard()).take(choice)
            if usage := event.get("usage"):
                self.usage = usage["prompt_tokens"], usage["completion_tokens"]
            if event.get("prompt_logprobs"):  # chat tells them once for all choices
                self.choices[0].prompt_logprobs = event["prompt_logprobs"]
            self.moved.notify_all()


def open_client(server: ServerProcess) -> httpx.AsyncClient:
    """For as many streams as one likes."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits)


async def answers(server: ServerProcess, bodies: Sequence[dict[str, Any]]) -> list[Stream]:
    """All at once, undisturbed."""
    async with open_client(server) as client:
        streams = await asyncio.gather(*(Stream(body).run(client) for body in bodies))
    for stream in streams:
        assert stream.error is None, (stream.body, stream.error)
    return streams


def differences(expected: Sequence[Stream], found: Sequence[Stream]) -> tuple[int, int, list[Any]]:
    """Calls that failed, tokens that are missing, too many or others than undisturbed, and the first calls with either."""
    failed, wrong, where = 0, 0, []
    for want, got in zip(expected, found, strict=True):
        if got.error is None and got.said() == want.said():
            continue
        where.append((got.body, got.error, want.said(), got.said()))
        failed += got.error is not None
        for index in want.choices.keys() | got.choices.keys():
            a, b = want.choices.get(index, Heard()).ids, got.choices.get(index, Heard()).ids
            wrong += sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
    return failed, wrong, where[:2]


def check(expected: Sequence[Stream], found: Sequence[Stream], when: str) -> None:
    """Raises AssertionError unless all is as undisturbed."""
    failed, wrong, where = differences(expected, found)
    assert not where, f"{when}: {failed} failed, {wrong} tokens lost or repeated, at first {where}"


def executor_pid(server: ServerProcess) -> int:
    """The executor's process, dead or alive."""
    (executor,) = server.get("/v1/executors").json()["data"]
    return int(executor["pid"])


async def ready_pid(server: ServerProcess) -> int:
    """The executor's process, once the server is ready: what is about to be struck is asked for before there is no time."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if (await asyncio.to_thread(server.get, "/ready")).status_code == 200:
                pid = await asyncio.to_thread(executor_pid, server)
                if pid in server.children():  # not one whose death nobody has noticed yet
                    return pid
            await asyncio.sleep(0.02)


async def another_pid(server: ServerProcess, before: int) -> int:
    """The executor's process, once it is not that one any more, ready or not."""
    async with asyncio.timeout(PATIENCE):
        while True:
            pid = await asyncio.to_thread(executor_pid, server)
            if pid != before:
                return pid
            await asyncio.sleep(0.02)


async def strike(server: ServerProcess, number: signal.Signals) -> None:
    """Send the executor a signal; wait for one that is ready to be struck."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(await ready_pid(server), number)


async def gone(pid: int) -> None:
    """Wait until there is no such process, reaped and all."""
    async with asyncio.timeout(PATIENCE):
        while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240, PTH110  (another process; procfs never waits)
            await asyncio.sleep(0.005)


async def metric(server: ServerProcess, sample: str) -> float:
    return await asyncio.to_thread(server.metric, sample)


async def restarts(server: ServerProcess, cause: str, least: float) -> float:
    """How often the executor was started again for that cause, once it is so often."""
    return await reaches(server, f'cohort_executor_restarts_total{{cause="{cause}"}}', least)


async def reaches(server: ServerProcess, sample: str, least: float) -> float:
    """The metric, once it is so large."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await metric(server, sample)
            if found >= least:
                return found
            await asyncio.sleep(0.02)
