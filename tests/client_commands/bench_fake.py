"""An OpenAI-compatible server that behaves as a test wants it to, byte by byte, on a thread of its own."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

Cut = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    yield data


def every(size: int) -> Cut:
    """In pieces of so many bytes, wherever that cuts."""
    return lambda data: (data[i : i + size] for i in range(0, len(data), size))


@dataclass
class FakeServer:
    """Greedy about nothing: each answer is words, `max_tokens` of them, in events of `tokens_per_event`."""

    cut: Cut = whole
    """How the bytes of one event, framing and all, are divided into writes."""
    tokens_per_event: int = 1
    newline: str = "\n"
    vocab: int | None = None
    takes_ids: bool = True
    knows_ignore_eos: bool = True
    """False: refuses it. See `stops_after` for one that does not care."""
    stops_after: int | None = None
    counts: bool = True
    closing_event: bool = False
    chunked: bool = True
    """False: the end of the connection is that of the answer, as in HTTP/1.0."""
    keep_alive: bool = True
    close_idle: bool = False
    """Closes a connection after each answer without having said so."""
    tokenize: bool = True
    executors: dict[str, Any] | None = None
    delay: float = 0.0
    key: str | None = None
    models: Any = field(default_factory=lambda: {"data": [{"id": "first", "max_model_len": 4096}]})
    error_in: Callable[[int], bool] = lambda number: False
    """Whether the answer of this number (from 1, trials included) breaks with an error event."""
    hang_up_in: Callable[[int], bool] = lambda number: False
    refuse_in: Callable[[int], bool] = lambda number: False
    tls: ssl.SSLContext | None = None
    port: int = 0

    asked: list[dict[str, Any]] = field(default_factory=list)
    connections: int = 0
    running: int = 0
    most_running: int = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,))
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(started))
        self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        self._stop = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self.tls)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self._stop.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        for _ in range(5):  # what was aborted is closed in callbacks
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.key and headers.get("authorization") != f"bearer {self.key}":
            return await self._json(writer, 401, {"error": {"message": "who is it?"}})
        match method, path:
            case "GET", "/health":
                return await self._json(writer, 200, {})
            case "GET", "/v1/models":
                return await self._json(writer, 200, self.models)
            case "GET", "/v1/executors" if self.executors is not None:
                return await self._json(writer, 200, self.executors)
            case "POST", "/tokenize" if self.tokenize:
                words = json.loads(body)["prompt"].split()
                return await self._json(
                    writer, 200, {"tokens": [len(word) + 40 + i for i, word in enumerate(words)]}
                )
            case "POST", "/v1/completions":
                return await self._complete(writer, json.loads(body))
        return await self._json(writer, 404, {"detail": "Not Found"})

    async def _json(self, writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
        data = json.dumps(value).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        return True

    def _complaint(self, asked: dict[str, Any], number: int) -> str | None:
        prompt = asked["prompt"]
        if self.refuse_in(number):
            return "not today"
        if "ignore_eos" in asked and not self.knows_ignore_eos:
            return "Unrecognized request argument supplied: ignore_eos"
        if isinstance(prompt, list) and not self.takes_ids:
            return "prompt should be a string"
        if isinstance(prompt, list) and self.vocab is not None and max(prompt) >= self.vocab:
            return f"Token id {max(prompt)} is out of vocabulary"
        return None

    async def _complete(self, writer: asyncio.StreamWriter, asked: dict[str, Any]) -> bool:
        self.asked.append(asked)
        number = len(self.asked)
        if (complaint := self._complaint(asked, number)) is not None:
            return await self._json(writer, 400, {"error": {"message": complaint, "param": "prompt"}})
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._stream(writer, asked, number)
        finally:
            self.running -= 1

    async def _stream(self, writer: asyncio.StreamWriter, asked: dict[str, Any], number: int) -> bool:
        goes_on = self.chunked and self.keep_alive
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        head += "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        head += "" if goes_on else "Connection: close\r\n"
        writer.write(f"{head}\r\n".encode())
        for i, event in enumerate(self._events(asked)):
            if i == 1 and self.hang_up_in(number):
                return False
            if i == 1 and self.error_in(number):
                event = f"data: {json.dumps({'error': {'message': 'the engine is down'}})}{2 * self.newline}"
            data = event.encode()
            for piece in self.cut(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            await asyncio.sleep(self.delay)
        if self.chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return goes_on and not self.close_idle

    def _events(self, asked: dict[str, Any]) -> Iterator[str]:
        prompt, total = asked["prompt"], self.stops_after or asked["max_tokens"]
        sent = 0
        yield f": a comment{2 * self.newline}"
        while sent < total:
            now = min(self.tokens_per_event, total - sent)
            sent += now
            finish = None if sent < total or self.closing_event else "length"
            # Text beyond ASCII, with what looks like the end of an event in it.
            choice = {"index": 0, "text": "é\n\ndata: " * now, "finish_reason": finish, "logprobs": None}
            yield self._data({"id": "cmpl-1", "choices": [choice]})
        if self.closing_event:
            yield self._data({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        if self.counts and asked.get("stream_options", {}).get("include_usage"):
            length = len(prompt) if isinstance(prompt, list) else 2 * len(prompt.split())
            yield self._data({"choices": [], "usage": {"prompt_tokens": length, "completion_tokens": total}})
        yield f"data: [DONE]{2 * self.newline}"

    def _data(self, event: dict[str, Any]) -> str:
        return f"data: {json.dumps(event, ensure_ascii=False)}{2 * self.newline}"


if __name__ == "__main__":  # as a process of its own, for benchmarks/peers: PORT, and seconds between events
    import sys
    import time

    with FakeServer(port=int(sys.argv[1]), delay=float(sys.argv[2])):
        while True:
            time.sleep(1)
