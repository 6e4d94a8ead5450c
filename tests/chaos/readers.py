"""Clients at the level of sockets: some that read and count time, some that ask and never read."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from tests.e2e.server_process import ServerProcess

Address = tuple[str, int]


def address(server: ServerProcess) -> Address:
    parts = urlsplit(server.url)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


def request_bytes(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    """A POST as it goes over the wire; the connection ends with the answer."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class DeadReaders:
    """Connections that sent a request and take nothing of the answer, in a kernel buffer as small as it may be."""

    def __init__(self, server: ServerProcess, bodies: Iterable[dict[str, Any]]) -> None:
        self._sockets: list[socket.socket] = []
        for body in bodies:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(address(server))
            client.sendall(request_bytes(body))
            self._sockets.append(client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self._sockets:
            client.close()


@dataclass
class Listener(asyncio.Protocol):
    """A stream that is read as it comes. `times`: when each piece came, in seconds, and how many events were in it."""

    keep: bool = True
    """False: throw away what comes."""
    data: bytearray = field(default_factory=bytearray)
    times: list[tuple[float, int]] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def data_received(self, data: bytes) -> None:
        if self.keep:
            self.data += data
            self.times.append((time.monotonic(), data.count(b"\ndata: {")))

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    @property
    def gaps(self) -> list[float]:
        """Seconds between events. Several in one piece came at the same time."""
        events = [at for at, count in self.times for _ in range(count)]
        return [after - before for before, after in itertools.pairwise(events)]

    def said(self) -> list[tuple[str, list[int], str | None]]:
        """Text, token ids and finish reason of each choice; the stream must have ended as it should."""
        assert b"HTTP/1.1 200" in self.data[:20] and b"data: [DONE]" in self.data[-40:], bytes(
            self.data[-400:]
        )
        found: dict[int, tuple[list[str], list[int], list[str]]] = {}
        for line in self.data.split(b"\n"):
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                text, ids, ends = found.setdefault(choice["index"], ([], [], []))
                text.append(choice["delta"].get("content") or "")
                ids += choice.get("token_ids") or []
                ends += [choice["finish_reason"]] if choice["finish_reason"] else []
        return [("".join(text), ids, "".join(ends)) for _, (text, ids, ends) in sorted(found.items())]


async def listen_to(
    server: ServerProcess, bodies: Iterable[dict[str, Any]], keep: bool = True
) -> list[Listener]:
    """Open streams; `over` of each is set at its end."""
    loop, found = asyncio.get_running_loop(), []
    for body in bodies:
        transport, listener = await loop.create_connection(lambda: Listener(keep), *address(server))
        transport.write(request_bytes(body))
        found.append(listener)
    return found


async def heard(server: ServerProcess, bodies: Iterable[dict[str, Any]]) -> list[Listener]:
    """Streams read to their ends."""
    found = await listen_to(server, bodies)
    await asyncio.gather(*(one.over.wait() for one in found))
    return found


async def running(server: ServerProcess, count: int, within: float = 300.0) -> None:
    """Wait until so many sequences run and none waits."""
    end = time.monotonic() + within
    while True:
        now = await asyncio.to_thread(server.metric, "cohort_requests_running")
        waiting = await asyncio.to_thread(server.metric, "cohort_requests_waiting")
        if (now, waiting) == (count, 0):
            return
        assert time.monotonic() < end, f"{now:g} run and {waiting:g} wait, not {count}"
        await asyncio.sleep(0.1)


def resident_mib(pid: int, which: str = "VmRSS") -> float:
    """Memory of a process in MiB; `VmHWM` is the most it ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{which}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {which}")


def forget_peak(pid: int) -> None:
    """Count the most it had from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
