"""Clients of /v1/embeddings over connections that stay open, in one thread: what they take of the machine's cores is little.

    python -m benchmarks.encoders.clients URL TEXTS.json CLIENTS SECONDS [--beside]

TEXTS.json is a list of texts; each client sends one after the other, the next as soon as the answer is there. With --beside
another client sends a text of ten words twenty times a second at most. Prints JSON: calls, seconds, errors, and milliseconds of
each call of that client.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import sys
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAUSE = 0.05
"""Seconds between an answer to the client beside the load and its next call."""
_SHORT = "a short text of ten words beside all of these"


@dataclass
class Client:
    """A connection with a call in progress, or a pause until `due`."""

    connection: socket.socket
    texts: Iterator[str]
    pause: float = 0.0
    began: float = 0.0
    due: float | None = None
    received: bytearray = field(default_factory=bytearray)

    def send(self, host: str) -> None:
        """Send the next text."""
        body = json.dumps({"model": "bench", "input": next(self.texts)}).encode()
        lines = (
            "POST /v1/embeddings HTTP/1.1",
            f"Host: {host}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        head = "\r\n".join((*lines, "", ""))
        self.began, self.due = time.perf_counter(), None
        self.connection.sendall(head.encode() + body)

    def status(self) -> int | None:
        """Read what has come; return the status of an answer that is complete. Raises ConnectionError."""
        part = self.connection.recv(1 << 16)
        if not part:
            raise ConnectionError("the server has closed a connection")
        self.received += part
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self.received[:end]).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self.received) < end + 4 + length:
            return None
        self.received.clear()
        return int(head.split(b" ", 2)[1])


def cycle(texts: list[str], first: int) -> Iterator[str]:
    """Yield the texts over and over, from the `first` on."""
    number = first
    while True:
        yield texts[number % len(texts)]
        number += 1


def run(url: str, texts: list[str], count: int, seconds: float, beside: bool) -> dict[str, object]:
    """Load the server for so long, and report."""
    with contextlib.ExitStack() as opened:
        return _run(opened, urllib.parse.urlsplit(url).netloc, texts, count, seconds, beside)


def _run(
    opened: contextlib.ExitStack, host: str, texts: list[str], count: int, seconds: float, beside: bool
) -> dict[str, object]:
    name, _, port = host.partition(":")
    selector = opened.enter_context(selectors.DefaultSelector())

    def connected(own: Iterator[str], pause: float = 0.0) -> Client:
        connection = opened.enter_context(socket.create_connection((name, int(port))))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = Client(connection, own, pause)
        selector.register(connection, selectors.EVENT_READ, client)
        return client

    clients = [connected(cycle(texts, number * len(texts) // count)) for number in range(count)]
    other = connected(cycle([_SHORT], 0), PAUSE) if beside else None
    for client in (*clients, *([other] if other else [])):
        client.send(host)
    calls, errors, waits = 0, 0, list[float]()
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        if other is not None and other.due is not None and other.due <= now:
            other.send(host)
        for key, _ in selector.select(0.01):
            client = key.data
            status = client.status()
            if status is None:
                continue
            errors += status != 200
            if client is other:
                waits.append(1000 * (time.perf_counter() - client.began))
                client.due = time.perf_counter() + client.pause
                continue
            calls += 1
            client.send(host)
    return {"calls": calls, "seconds": time.perf_counter() - began, "errors": errors, "short_ms": waits}


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--beside"]
    report = run(
        given[0], json.loads(Path(given[1]).read_text()), int(given[2]), float(given[3]), "--beside" in sys.argv
    )  # fmt: skip
    print(json.dumps(report))
