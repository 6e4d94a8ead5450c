"""CPU time per event of each process of a server, with 0, 1 and 2 API workers, beside the least that any server takes.

    python -m benchmarks.front_ends [--workers 0 1 2] [--streams 512] [--seconds 6] [--step-ms 40] [--rounds 3] [--json FILE]
        [--api completions]

A real `cohort serve` on the echo executor streams answers of one API to a client in another process. An event is one token on
its way to one client. CPU time is what the kernel counts for each process (user and system) between two moments while all
streams run, so that other work on the machine and the wait for a core are not in it; events are the tokens that the engine
committed in between. The share of the process that schedules (`server`) bounds what any number of workers reaches: 1 / share
events a second.

`floor`: the same of a process that, at the same interval, writes the same bytes to as many sockets of the same client by
`transport.write`, and does nothing else. `excess`: what the processes that serve take beyond it.

Rounds alternate between the floor and the numbers of workers. Printed is the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import uvloop

from tests.e2e.checkpoints import write_tokenizer
from tests.e2e.server_process import ServerProcess

_ASCII = 128
"""Ids of the model. The tokens are bytes: below this each is a text of its own, and so an event."""
_MAX_TOKENS = 100_000
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""Without marks: their ids are none of the model's."""
_CHAT = {"messages": [{"role": "user", "content": "a"}], "stream": True}
_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": (
        "/v1/completions",
        {"prompt": [97], "max_tokens": _MAX_TOKENS, "ignore_eos": True, "stream": True},
    ),
    "chat": ("/v1/chat/completions", {**_CHAT, "max_tokens": _MAX_TOKENS, "ignore_eos": True}),
    "messages": ("/v1/messages", {**_CHAT, "model": "echo", "max_tokens": _MAX_TOKENS}),
    "responses": (
        "/v1/responses",
        {"input": "a", "stream": True, "store": False, "max_output_tokens": _MAX_TOKENS},
    ),
    "ollama": ("/api/chat", {**_CHAT, "model": "echo", "options": {"num_predict": _MAX_TOKENS}}),
}
"""Path and body of an endless stream of each API."""
_EVENT = b"data: " + b"x" * 290 + b"\n\n"
"""As long as an event of a chat."""
_KINDS = {"cohort: server": "server", "cohort: executor": "executor", "cohort: api worker": "workers"}


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads that a process has, to the nanosecond; /proc/PID/stat counts hundredths."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _kind(pid: int) -> str | None:
    title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return next((kind for prefix, kind in _KINDS.items() if title.startswith(prefix)), None)


def _used(server: ServerProcess) -> dict[str, float]:
    """CPU seconds so far, by kind of process."""
    used = {"server": _cpu_seconds(server.pid), "executor": 0.0, "workers": 0.0}
    for pid in server.children():
        if (kind := _kind(pid)) is not None:
            used[kind] += _cpu_seconds(pid)
    return used


async def _client(url: str, api: str, streams: int) -> None:
    """Read `streams` answers at once until the process ends."""
    host, _, port = url.removeprefix("http://").partition(":")
    path, body = _CALLS[api]
    text = json.dumps(body)
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(text)}\r\n\r\n{text}"
    )

    async def read() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.encode())
        while await reader.read(1 << 16):
            pass

    await asyncio.gather(*(read() for _ in range(streams)))


class _Socket(asyncio.Protocol):
    """A client of the floor. Its request is not read; the head of an answer is not sent."""

    def __init__(self, transports: list[asyncio.Transport], streams: int, complete: asyncio.Event) -> None:
        self._transports = transports
        self._streams = streams
        self._complete = complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take part from the next step on."""
        self._transports.append(cast(asyncio.Transport, transport))
        if len(self._transports) == self._streams:
            self._complete.set()


async def _floor(asked: argparse.Namespace) -> None:
    """Tell the port, serve, and tell the microseconds of CPU of an event."""
    transports: list[asyncio.Transport] = []
    complete = asyncio.Event()
    chunk = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Socket(transports, asked.streams, complete), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await complete.wait()

    async def steps(seconds: float) -> int:
        end, events = loop.time() + seconds, 0
        while loop.time() < end:
            await asyncio.sleep(asked.step_ms / 1000)
            for transport in transports:
                transport.write(chunk)
            events += len(transports)
        return events

    await steps(1.0)
    before = time.process_time()
    events = await steps(asked.seconds)
    print(1e6 * (time.process_time() - before) / events, flush=True)
    os._exit(0)


def _measure_floor(asked: argparse.Namespace) -> float:
    """Microseconds of CPU per event."""
    command = [sys.executable, "-m", "benchmarks.front_ends", "--streams", str(asked.streams), "--floor"]
    command += ["--step-ms", str(asked.step_ms), "--seconds", str(asked.seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as floor:
        assert floor.stdout is not None
        with _started_client(f"http://127.0.0.1:{floor.stdout.readline().strip()}", asked) as client:
            try:
                return float(floor.stdout.readline())
            finally:
                client.kill()


def _started_client(url: str, asked: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.front_ends", "--client", url, "--api", asked.api]
    return subprocess.Popen([*command, "--streams", str(asked.streams)])


def _measure(workers: int, asked: argparse.Namespace) -> dict[str, float]:
    """Microseconds of CPU per event, by kind of process, with events a second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        args = [
            str(write_tokenizer(folder / "model", _TEMPLATE)),
            "--executor",
            "echo",
            "--served-model-name",
            "echo",
        ]
        for option in (f"vocab_size={_ASCII}", f"step_delay_ms={asked.step_ms}"):
            args += ["--executor-option", option]
        args += ["--max-num-seqs", str(asked.streams), "--max-model-len", str(_MAX_TOKENS + 100)]
        args += ["--api-server-count", str(workers)]
        with ServerProcess(args, folder) as server:
            with _started_client(server.url, asked) as client:
                try:
                    return _between(server, asked)
                finally:
                    client.kill()


def _between(server: ServerProcess, asked: argparse.Namespace) -> dict[str, float]:
    tokens = 'cohort_tokens_total{kind="output"}'
    deadline = time.monotonic() + 60
    while server.metric("cohort_requests_running") < asked.streams:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.2)
    time.sleep(1)
    begun, before, first = time.monotonic(), _used(server), server.metric(tokens)
    time.sleep(asked.seconds)
    after, last, seconds = _used(server), server.metric(tokens), time.monotonic() - begun
    count = last - first
    assert server.metric("cohort_requests_running") == asked.streams, "a stream ended"
    found = {kind: 1e6 * (after[kind] - before[kind]) / count for kind in before}
    return {**found, "events_per_s": count / seconds}


def measure(workers: Sequence[int], asked: argparse.Namespace) -> dict[str, Any]:
    """The medians of all rounds, by number of workers."""
    rounds: dict[int, list[dict[str, float]]] = {count: [] for count in workers}
    for number in range(asked.rounds):
        floor = _measure_floor(asked)
        for count in workers:
            found = _measure(count, asked)
            excess = found["server"] + found["workers"] - floor
            rounds[count].append({**found, "floor": floor, "excess": excess})
            print(
                f"round {number + 1}, {count} workers: {_line(rounds[count][-1])}",
                file=sys.stderr,
                flush=True,
            )
    return {
        str(count): {key: statistics.median(one[key] for one in found) for key in found[0]}
        for count, found in rounds.items()
    }


def _line(found: dict[str, float]) -> str:
    return ", ".join(f"{key} {value:,.1f}" for key, value in found.items())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--streams", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--step-ms", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--api", choices=_CALLS, default="completions")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--floor", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        asyncio.run(_client(asked.client, asked.api, asked.streams))
        return
    if asked.floor:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_floor(asked))
        return
    result = measure(asked.workers, asked)
    for count, found in result.items():
        print(f"{count} workers, microseconds of CPU per event: {_line(found)}")
    if asked.json:
        told = {"api": asked.api, "streams": asked.streams, "step_ms": asked.step_ms, "workers": result}
        asked.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
