"""Two models of one server: what sharing the cores costs, how soon an unloaded one answers, and what is left without any.

    python -m benchmarks.several_models share|wake [SOURCE SOURCE] [--streams 2] [--seconds 6] [--rounds 5] [--json FILE]

share: a real `cohort serve` has both models loaded. A round measures the first alone, the second alone, and both at once; each
model has `--streams` greedy streams of a short prompt whenever it is measured. A rate is what the server counts in
`cohort_tokens_total` between two moments while all streams run. A round's share is

    tokens/s of the first together / alone + tokens/s of the second together / alone

which is 1 where two models share the cores without loss: the same streams, one model's steps after the other's. `CPU` is
milliseconds of all the server's processes for each token, which other work on the machine changes less than rates.

wake: a call for a model that is unloaded, to its first token, with the stages of its load as the server's log tells them; then
the model is unloaded, and the memory of all the server's processes is added up (PSS: pages that processes share count once).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from benchmarks.front_ends import _cpu_seconds
from benchmarks.peers import machine
from tests.e2e.server_process import ServerProcess

NAMES = ("first", "second")
_PROMPT = "A long story about the sea, the wind and"
_MAX_TOKENS = 4000
_SETTLE_S = 1.0
"""Seconds before a measurement in which the prompts are computed."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second of each model, 0 for one without streams, and CPU milliseconds a token of all processes."""

    first: float
    second: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class Round:
    """The three measurements of a round."""

    first: Rates
    second: Rates
    both: Rates

    @property
    def share(self) -> float:
        """See the module."""
        return self.both.first / self.first.first + self.both.second / self.second.second


async def _read(url: str, names: Sequence[str], streams: int) -> None:
    """Read `streams` completions of each model at once until the process ends."""
    host, _, port = url.removeprefix("http://").partition(":")

    async def read(name: str, number: int) -> None:
        body = {
            "model": name, "prompt": f"{number}. {_PROMPT}", "max_tokens": _MAX_TOKENS, "ignore_eos": True, "temperature": 0,
            "stream": True,
        }  # fmt: skip
        text = json.dumps(body)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        while await reader.read(1 << 16):
            pass

    await asyncio.gather(*(read(name, number) for name in names for number in range(streams)))


@contextmanager
def _streams(url: str, names: Sequence[str], streams: int) -> Iterator[None]:
    options = ["--client", url, "--streams", str(streams)]
    command = [sys.executable, "-m", "benchmarks.several_models", "share", *names, *options]
    with subprocess.Popen(command) as client:
        try:
            yield
        finally:
            client.kill()


def tokens(server: ServerProcess) -> dict[str, float]:
    """Output tokens so far, by model."""
    found = dict.fromkeys(NAMES, 0.0)
    for line in server.get("/metrics").text.splitlines():
        if line.startswith("cohort_tokens_total{") and 'kind="output"' in line:
            name = next(one for one in NAMES if f'model="{one}"' in line)
            found[name] += float(line.rpartition(" ")[2])
    return found


def _running(server: ServerProcess) -> int:
    lines = server.get("/metrics").text.splitlines()
    return int(
        sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("cohort_requests_running"))
    )


def measure(server: ServerProcess, names: Sequence[str], streams: int, seconds: float) -> Rates:
    """Rates while each of `names` has its streams."""
    _wait_for(server, 0)
    with _streams(server.url, names, streams):
        _wait_for(server, streams * len(names))
        time.sleep(_SETTLE_S)
        began, before, cpu = time.monotonic(), tokens(server), _cpu(server)
        time.sleep(seconds)
        ended, after, used = time.monotonic(), tokens(server), _cpu(server) - cpu
        assert _running(server) == streams * len(names), "a stream ended: choose fewer seconds"
    span = ended - began
    gained = {name: after[name] - before[name] for name in NAMES}
    return Rates(gained["first"] / span, gained["second"] / span, 1e3 * used / max(1.0, sum(gained.values())))


def _cpu(server: ServerProcess) -> float:
    return sum(_cpu_seconds(pid) for pid in server.processes())


def _wait_for(server: ServerProcess, running: int) -> None:
    deadline = time.monotonic() + 60
    while _running(server) != running:
        assert time.monotonic() < deadline, server.log()[-3000:]
        time.sleep(0.1)


def run(
    sources: Sequence[str], streams: int, seconds: float, rounds: int, flags: Sequence[str]
) -> list[Round]:
    """The rounds. Within a round the first model comes first, and in the next one the second."""
    with tempfile.TemporaryDirectory() as folder:
        args = [f"{name}={source}" for name, source in zip(NAMES, sources, strict=True)]
        with ServerProcess([*args, *flags], Path(folder), ready_within=120) as server:
            for name in NAMES:
                assert server.post("/models/load", {"model": name}, timeout=300).status_code == 200, (
                    server.log()
                )
            measure(server, NAMES, streams, 1.0)
            found = []
            for number in range(rounds):
                order = NAMES if number % 2 else tuple(reversed(NAMES))
                alone = {name: measure(server, [name], streams, seconds) for name in order}
                found.append(Round(alone["first"], alone["second"], measure(server, NAMES, streams, seconds)))
                print(f"round {number + 1}: {line_of(found[-1])}", file=sys.stderr, flush=True)
            return found


@dataclass(frozen=True, slots=True)
class Wake:
    """Seconds to the first token of a call for an unloaded model, the stages of its load, and bytes of the server's processes
    once it is unloaded again."""

    seconds: float
    stages: str
    bytes_after: int


def wake(sources: Sequence[str], rounds: int, flags: Sequence[str]) -> tuple[int, list[Wake]]:
    """Bytes of the server's processes before any load, and the models' wakes in turn."""
    with tempfile.TemporaryDirectory() as folder:
        args = [f"{name}={source}" for name, source in zip(NAMES, sources, strict=True)]
        with ServerProcess([*args, *flags], Path(folder), ready_within=120) as server:
            before = _pss(server)
            found = []
            for number in range(rounds):
                name = NAMES[number % 2]
                seconds = _first_token(server.url, name)
                stages = [line for line in server.log().splitlines() if f"loaded {name} in" in line][-1]
                assert server.post("/models/unload", {"model": name}).status_code == 200
                deadline = time.monotonic() + 30
                while server.children() or server.fork_servers():
                    assert time.monotonic() < deadline, server.log()[-3000:]
                    time.sleep(0.1)
                time.sleep(_SETTLE_S)
                found.append(Wake(seconds, stages.partition(f"loaded {name} in ")[2].strip(), _pss(server)))
                print(
                    f"{name}: first token after {seconds:.2f} s; loaded in {found[-1].stages}; "
                    f"{found[-1].bytes_after / 2**20:.0f} MiB when all are unloaded",
                    file=sys.stderr,
                    flush=True,
                )
            return before, found


def _first_token(url: str, name: str) -> float:
    """Seconds from a call to the first event with text."""
    body = {
        "model": name,
        "prompt": _PROMPT,
        "max_tokens": 2,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    began = time.monotonic()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                return time.monotonic() - began
    raise AssertionError("no token came")


def _pss(server: ServerProcess) -> int:
    """Bytes of all the server's processes."""
    total = 0
    for pid in server.processes():
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        total += int(found[1]) * 1024 if found else 0
    return total


def line_of(one: Round) -> str:
    """A round for a person."""
    together = f"{one.both.first:.1f} + {one.both.second:.1f}"
    cpu = f"CPU {one.first.cpu_ms:.1f}, {one.second.cpu_ms:.1f}, together {one.both.cpu_ms:.1f} ms a token"
    return f"alone {one.first.first:.1f}, {one.second.second:.1f}, together {together} tokens/s: {one.share:.2f}; {cpu}"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="benchmarks.several_models", description=__doc__)
    parser.add_argument("what", choices=("share", "wake"))
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help="default: SmolLM2-135M-Instruct twice")
    parser.add_argument("--streams", type=int, default=2, help="of each model")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flags", default="", help="further arguments of the server")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client is not None:
        asyncio.run(_read(asked.client, asked.sources, asked.streams))
        return
    sources, flags = asked.sources or ["SmolLM2-135M-Instruct"] * 2, asked.flags.split()
    about = {"machine": machine.this().words, "sources": sources}
    if asked.what == "wake":
        before, wakes = wake(sources, asked.rounds, flags)
        seconds = statistics.median(one.seconds for one in wakes)
        most = max(one.bytes_after for one in wakes)
        print(
            f"{' and '.join(sources)}, {about['machine']}: first token after {seconds:.2f} s (median of {len(wakes)})"
        )
        print(
            f"all unloaded: {before / 2**20:.0f} MiB before the first load, {most / 2**20:.0f} MiB at most after one"
        )
        made = {**about, "bytes_before": before, "wakes": [asdict(one) for one in wakes]}
    else:
        rounds = run(sources, asked.streams, asked.seconds, asked.rounds, flags)
        share = statistics.median(one.share for one in rounds)
        print(
            f"{' and '.join(sources)}, {asked.streams} streams each, {about['machine']}: {share:.2f} of one alone"
        )
        made = {**about, "streams": asked.streams, "share": share, "rounds": [asdict(one) for one in rounds]}
    if asked.json is not None:
        asked.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
