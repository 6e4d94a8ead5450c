"""Streams over HTTP as a client keeps them: text, token ids and logprobs of each choice, and how long nothing came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.e2e.server_process import ServerProcess

PATIENCE = 120.0


@dataclass
class Heard:
    """What one choice has said so far."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish: str | None = None


@dataclass
class Stream:
    """A call in progress. `choices` by index; `error` is the event that ended it, `longest_pause` in seconds."""

    body: dict[str, Any]
    choices: dict[int, Heard] = field(default_factory=dict)
    error: Any = None
    done: bool = False
    longest_pause: float = 0.0
    moved: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def tokens(self) -> int:
        """Of the choice that has the fewest."""
        return min((len(one.ids) for one in self.choices.values()), default=0)

    def said(self) -> list[tuple[str, list[int], list[Any], str | None]]:
        """All of it, to be compared."""
        return [(one.text, one.ids, one.logprobs, one.finish) for _, one in sorted(self.choices.items())]

    async def reaches(self, tokens: int) -> None:
        """Wait until every choice has so many tokens, or the stream is over."""
        async with asyncio.timeout(PATIENCE), self.moved:
            await self.moved.wait_for(lambda: self.tokens >= tokens or self.done)

    async def run(self, client: httpx.AsyncClient) -> Stream:
        """To the end."""
        asked = {"stream": True, "return_token_ids": True, **self.body}
        last = time.monotonic()
        async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                now = time.monotonic()
                self.longest_pause, last = max(self.longest_pause, now - last), now
                async with self.moved:
                    self._take(json.loads(line[6:]))
                    self.moved.notify_all()
        async with self.moved:
            self.done = True
            self.moved.notify_all()
        return self

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            heard = self.choices.setdefault(choice["index"], Heard())
            heard.text += choice["delta"].get("content") or ""
            heard.ids += choice.get("token_ids") or []
            heard.logprobs += (choice.get("logprobs") or {}).get("content") or []
            heard.finish = choice.get("finish_reason") or heard.finish


def open_client(server: ServerProcess) -> httpx.AsyncClient:
    """For as many streams as one likes."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits)


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


async def strike(server: ServerProcess, number: signal.Signals) -> None:
    """Send the executor a signal; wait for one that is ready to be struck."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(await ready_pid(server), number)


async def restarts(server: ServerProcess, cause: str, least: int) -> float:
    """How often the executor was started again for that cause, once it is so often."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await asyncio.to_thread(
                server.metric, f'cohort_executor_restarts_total{{cause="{cause}"}}'
            )
            if found >= least:
                return found
            await asyncio.sleep(0.02)
