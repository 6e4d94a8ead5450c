"""CPU time per event of each process of a server, with 0, 1 and 2 API workers.

    python -m benchmarks.front_ends [--workers 0 1 2] [--streams 512] [--seconds 6] [--step-ms 40] [--rounds 3] [--json FILE]

A real `cohort serve` on the echo executor streams completions to a client in another process. An event is one token on its way
to one client. CPU time is what the kernel counts for each process (user and system) between two moments while all streams run,
so that other work on the machine and the wait for a core are not in it; events are the tokens that the engine committed in
between. The share of the process that schedules (`server`) bounds what any number of workers reaches: 1 / share events a
second.

Rounds alternate between the numbers of workers. Printed is the median over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.checkpoints import write_tokenizer
from tests.e2e.server_process import ServerProcess

_ASCII = 128
"""Ids of the model. The tokens are bytes: below this each is a text of its own, and so an event."""
_MAX_TOKENS = 100_000
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


async def _client(url: str, streams: int) -> None:
    """Read `streams` completions at once until stdin ends; tell the events read on stdout, once a second."""
    host, _, port = url.removeprefix("http://").partition(":")
    body = {"prompt": [97], "max_tokens": _MAX_TOKENS, "ignore_eos": True, "stream": True}
    events = 0

    async def read(number: int) -> None:
        nonlocal events
        reader, writer = await asyncio.open_connection(host, int(port))
        text = json.dumps({**body, "seed": number})
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        while chunk := await reader.read(1 << 16):
            events += chunk.count(b"data: ")

    async def tell() -> None:
        while True:
            print(events, flush=True)
            await asyncio.sleep(0.1)

    await asyncio.gather(tell(), *(read(number) for number in range(streams)))


def _measure(workers: int, asked: argparse.Namespace) -> dict[str, float]:
    """Microseconds of CPU per event, by kind of process, with events a second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        args = [str(write_tokenizer(folder / "model")), "--executor", "echo", "--served-model-name", "echo"]
        for option in (f"vocab_size={_ASCII}", f"step_delay_ms={asked.step_ms}"):
            args += ["--executor-option", option]
        args += ["--max-num-seqs", str(asked.streams), "--max-model-len", str(_MAX_TOKENS + 100)]
        args += ["--api-server-count", str(workers)]
        with ServerProcess(args, folder) as server:
            command = [sys.executable, "-m", "benchmarks.front_ends", "--client", server.url]
            with subprocess.Popen(
                [*command, "--streams", str(asked.streams)], stdout=subprocess.PIPE, text=True
            ) as client:
                try:
                    return _between(server, client, asked)
                finally:
                    client.kill()


def _between(
    server: ServerProcess, client: subprocess.Popen[str], asked: argparse.Namespace
) -> dict[str, float]:
    tokens = 'cohort_tokens_total{kind="output"}'
    deadline = time.monotonic() + 60
    while server.metric("cohort_requests_running") < asked.streams:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.2)
    time.sleep(1)
    assert client.stdout is not None
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
        for count in workers:
            rounds[count].append(_measure(count, asked))
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
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        asyncio.run(_client(asked.client, asked.streams))
        return
    result = measure(asked.workers, asked)
    for count, found in result.items():
        print(f"{count} workers, microseconds of CPU per event: {_line(found)}")
    if asked.json:
        told = {"streams": asked.streams, "step_ms": asked.step_ms, "workers": result}
        asked.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
