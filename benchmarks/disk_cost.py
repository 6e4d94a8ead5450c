"""CPU time of a token with a prompt cache on disk that never helps, beside none.

    python -m benchmarks.disk_cost [SOURCE] [--streams 16] [--prompt 300] [--output 120] [--pairs 5] [--json FILE]

Two real servers of the same model, one with `--kv-cache-dir`. In turns each gets a burst of random prompts, so nothing is ever
found on disk, and all of it is written there. CPU time is that of all the server's processes from the burst's begin until the
files are written. Printed is the ratio of each pair, their median, and the ratio of two bursts to the server without a cache,
which is the noise. A pair of SmolLM2 takes two minutes on a slow CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.front_ends import _cpu_seconds
from benchmarks.peers import machine
from tests.e2e.server_process import ServerProcess

_VOCAB = 40_000
_QUIET_S = 1.0


async def _burst(url: str, rng: random.Random, streams: int, prompt: int, output: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def ask(tokens: list[int]) -> None:
            body = {"prompt": tokens, "max_tokens": output, "ignore_eos": True, "temperature": 0}
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == output, answer.text

        prompts = [[rng.randrange(300, _VOCAB) for _ in range(prompt)] for _ in range(streams)]
        await asyncio.gather(*map(ask, prompts))


def _used(server: ServerProcess) -> float:
    return sum(_cpu_seconds(pid) for pid in server.processes())


def _settle(server: ServerProcess) -> None:
    """Wait until the server does nothing: what ended sequences leave is written by then."""
    before = _used(server)
    while True:
        time.sleep(_QUIET_S)
        if (now := _used(server)) - before < 0.02 * _QUIET_S:
            return
        before = now


def _cost(server: ServerProcess, rng: random.Random, asked: argparse.Namespace) -> float:
    """CPU milliseconds of a token, prompts and answers alike."""
    _settle(server)
    before = _used(server)
    asyncio.run(_burst(server.url, rng, asked.streams, asked.prompt, asked.output))
    _settle(server)
    return 1e3 * (_used(server) - before) / (asked.streams * (asked.prompt + asked.output))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="benchmarks.disk_cost", description=__doc__)
    parser.add_argument("source", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--output", type=int, default=120)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rng = random.Random(0)
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        ServerProcess([asked.source], Path(one), ready_within=300) as plain,
        ServerProcess(
            [asked.source, "--kv-cache-dir", f"{other}/cache"], Path(other), ready_within=300
        ) as tiered,
    ):
        for server in (plain, tiered):
            _cost(server, rng, asked)  # warm
        pairs, noise = [], []
        for number in range(asked.pairs):
            first = _cost(plain, rng, asked)
            with_disk = _cost(tiered, rng, asked)
            second = _cost(plain, rng, asked)
            pairs.append(2 * with_disk / (first + second))
            noise.append(second / first)
            print(f"pair {number + 1}: {first:.3f} {with_disk:.3f} {second:.3f} ms a token", flush=True)
        assert list(Path(other, "cache").glob("*/*.kv")), "the cache was not written"
    median = statistics.median(pairs)
    print(
        f"{asked.source}, {asked.streams} streams, {machine.this().words}: {median:.3f} times the CPU time with a cache on disk "
        f"({', '.join(f'{one:.3f}' for one in pairs)}); without, one burst beside the next {min(noise):.3f} to {max(noise):.3f}"
    )
    if asked.json is not None:
        about = {"machine": machine.this().words, "source": asked.source, "pairs": pairs, "noise": noise}
        asked.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
