"""Load over HTTP, as light as it can be: what measures shares two cores with what is measured.

A connection for each request, `Connection: close`, over asyncio streams. Times are of `time.monotonic`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.server_process import ServerProcess

_LIMIT = 1 << 22


@dataclass
class Answer:
    """What became of one request."""

    sent: float
    status: int = 0
    """0: the connection ended without an answer."""
    retry_after: str | None = None
    events: list[float] = field(default_factory=list)
    """Of a stream: when each event with text came, about one a token."""
    body: dict[str, Any] = field(default_factory=dict)
    """Of a whole answer or a refusal; of a stream the event with usage."""
    error: dict[str, Any] | None = None
    """Said by a refusal, or by an event of a stream."""
    done: bool = False
    """The answer is complete."""
    ended: float = 0.0

    @property
    def ttft(self) -> float:
        """Seconds until the first token of a stream."""
        return self.events[0] - self.sent

    @property
    def code(self) -> str | None:
        """The error's."""
        return self.error["code"] if self.error is not None else None

    @property
    def completion_tokens(self) -> int:
        """As the server counted them."""
        return int((self.body.get("usage") or {}).get("completion_tokens", 0))


class Target:
    """A server, and in whose name to ask it."""

    def __init__(self, server: ServerProcess, key: str | None = None, path: str = "/v1/completions") -> None:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        self._address = host, int(port)
        self._head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        if key is not None:
            self._head += f"Authorization: Bearer {key}\r\n"

    async def ask(self, body: dict[str, Any]) -> Answer:
        """One request, to the end of its answer, whatever that is. Cancelling it closes the connection."""
        if body.get("stream"):
            body = {**body, "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        answer = Answer(time.monotonic())
        try:
            reader, writer = await asyncio.open_connection(*self._address, limit=_LIMIT)
        except OSError:
            answer.ended = time.monotonic()
            return answer
        try:
            writer.write(f"{self._head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            await self._read(reader, answer, bool(body.get("stream")))
        except (OSError, asyncio.IncompleteReadError):
            pass  # what came before it stands, `done` does not
        finally:
            writer.transport.abort()
        answer.ended = time.monotonic()
        return answer

    async def _read(self, reader: asyncio.StreamReader, answer: Answer, stream: bool) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        answer.status = int(head.split(" ", 2)[1])
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        answer.retry_after = fields.get("retry-after")
        if "content-length" in fields:
            answer.body = json.loads(await reader.readexactly(int(fields["content-length"])))
            answer.error = answer.body.get("error")
            answer.done = True
            return
        assert stream, head
        async for line in reader:  # chunk sizes are lines as well
            if line.startswith(b"data: "):
                self._take(line[6:].strip(), answer)

    def _take(self, data: bytes, answer: Answer) -> None:
        if data == b"[DONE]":
            answer.done = True
        elif b'"text":' in data:
            answer.events.append(time.monotonic())
        else:
            event = json.loads(data)
            if "error" in event:
                answer.error = event["error"]
            elif event.get("usage"):
                answer.body = event


async def closed_loop(
    target: Target, bodies: Sequence[dict[str, Any]], users: int, seconds: float
) -> list[Answer]:
    """So many users, each of whom asks again once they have an answer, for so long; what is out then is waited for."""
    answers: list[Answer] = []
    until = time.monotonic() + seconds

    async def user(number: int) -> None:
        while time.monotonic() < until:
            number += users
            answers.append(await target.ask(bodies[number % len(bodies)]))

    await asyncio.gather(*(user(number) for number in range(users)))
    return answers


def rate(answers: Sequence[Answer], seconds: float) -> float:
    """Complete answers a second in the middle of a run of so many seconds: its ends are not full."""
    began = min(answer.sent for answer in answers)
    middle = [one for one in answers if one.done and seconds / 4 < one.ended - began <= seconds]
    return len(middle) / (seconds * 3 / 4)


def percentile(values: Sequence[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def resident_mib(server: ServerProcess) -> float:
    """Memory of the serving process."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def results(name: str, row: str, figures: dict[str, float]) -> None:
    """Print figures and keep them in benchmarks/results/NAME.json, in the place of the last ones of that row."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / f"{name}.json"
    rounded = {key: round(value, 4) for key, value in figures.items()}
    print(f"\n{name}, {row}: " + ", ".join(f"{key} {value:g}" for key, value in rounded.items()))
    kept = json.loads(path.read_text()) if path.exists() else {"rows": {}}
    kept |= {"machine": platform.machine(), "cores": len(os.sched_getaffinity(0))}
    kept["rows"][row] = rounded
    path.write_text(json.dumps(kept, indent=1) + "\n")
