"""A server for `cohort demo` whose executor dies as a test wants it to: in this process, on this loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from clients.http import Client

STEP = 0.002
"""Seconds per token."""


@dataclass
class FakeOwn:
    """The part of DemoServer that a session uses. An answer is a word per token; `length` and `word` decide, by the number of
    the stream and whether an executor has died, what a client gets."""

    length: Callable[[int], int] = lambda number: 30 + number
    word: Callable[[int, int, bool], str] = lambda number, at, died: f"w{number}.{at} "
    logprob: Callable[[int, int, bool], float] = lambda number, at, died: -0.25
    finish: Callable[[int, bool], str] = lambda number, died: "stop"
    refuse: dict[str, Any] | None = None
    breaks: Callable[[int, int, bool], bool] = lambda number, at, died: False
    restart: float = 0.2
    gone: Exception | None = None
    """What `check` raises once an executor has died."""
    grammars: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    pid: int = 1000

    client: Client = field(init=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeOwn]:
        self._alive = asyncio.Event()
        self._alive.set()
        self._ends: list[asyncio.Task[None]] = []
        self._prompts: dict[str, int] = {}
        self._handlers: set[asyncio.Task[Any]] = set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.client = Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None)
        try:
            yield self
        finally:
            server.close()
            for task in (*self._handlers, *self._ends):
                task.cancel()
            await asyncio.gather(*self._handlers, *self._ends, return_exceptions=True)
            await asyncio.sleep(0)

    # -- what a session calls ----------------------------------------------------------------------------------------------

    async def ask(self, path: str) -> Any:
        return {"/v1/models": {"data": [{"id": "fake"}]}}[path]

    async def executor(self) -> dict[str, Any]:
        return {"pid": self.pid, "capabilities": {"grammars": self.grammars}}

    def kill_executor(self, pid: int) -> None:
        assert pid == self.pid and self._alive.is_set(), "the session kills who is alive"
        self.killed.append(pid)
        self._alive.clear()
        self._ends.append(asyncio.create_task(self._restart()))

    async def next_executor(self, old: int) -> int:
        if self.gone is not None:
            raise self.gone
        await self._alive.wait()
        assert self.pid != old
        return self.pid

    async def check(self) -> None:
        if self.killed and self.gone is not None:
            raise self.gone

    async def _restart(self) -> None:
        await asyncio.sleep(self.restart)
        self.pid += 1
        self._alive.set()

    # -- HTTP --------------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = next(int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:"))
            asked = json.loads(await reader.readexactly(size))
            self.asked.append(asked)
            if self.refuse is not None:
                body = json.dumps(self.refuse).encode()
                writer.write(b"HTTP/1.1 400 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            else:
                await self._stream(writer, asked)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._handlers.discard(task)
            writer.transport.abort()

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
        prompt = json.dumps([asked["messages"], asked["seed"]])
        number = self._prompts.setdefault(prompt, len(self._prompts))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        self._send(writer, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        total = self.length(number)
        for at in range(total):
            await asyncio.sleep(STEP)
            while not self._alive.is_set():
                writer.write(b": keep-alive\n\n")
                await asyncio.sleep(0.02)
            if self.breaks(number, at, bool(self.killed)):
                self._send(writer, {"error": {"message": "the executor is lost"}})
                break
            self._send(writer, self._event(number, at, at + 1 == total))
        self._send(writer, {"choices": [], "usage": {"completion_tokens": total}})
        writer.write(b"data: [DONE]\n\n")

    def _event(self, number: int, at: int, last: bool) -> dict[str, Any]:
        died = bool(self.killed)
        word = self.word(number, at, died)
        told = {"token": word, "logprob": self.logprob(number, at, died), "bytes": [], "top_logprobs": []}
        choice = {
            "index": 0, "delta": {"content": word}, "logprobs": {"content": [told]},
            "finish_reason": self.finish(number, died) if last else None,
        }  # fmt: skip
        return {"choices": [choice], "usage": {"completion_tokens": at + 1}}

    def _send(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        writer.write(f"data: {json.dumps(event)}\n\n".encode())
