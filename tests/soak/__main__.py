"""`python -m tests.soak --minutes 30`: a small server under ordinary clients, rude ones, bad input, bursts and kills.

Each minute everybody stops for a moment, and what the server holds is written down: memory, descriptors, threads, KV blocks.
In the last third nobody kills, so that one life of the executor can be watched. Every ordinary answer is compared with what it
was before all this. The exit code is 0 if nothing grew and nothing was wrong; samples and verdict of a run of 20 minutes or more
go to benchmarks/results/soak.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from tests.e2e.server_process import ServerProcess
from tests.hostile.case import KEY as HOSTILE_KEY
from tests.soak import verdict
from tests.soak.gauges import Sample, sample
from tests.soak.load import Load
from tests.tiny_model import BYTES_PER_TOKEN
from tools.neutral_paths import neutral

KEYS = ["key-one", "key-two", "key-three"]
METRICS_KEY = "key-of-the-scraper"
KV_BYTES = 64 * 16 * BYTES_PER_TOKEN
"""64 blocks of cohort-tiny: the sequences of the mix want several times as many, and are preempted."""
ARGS = [
    "cohort-tiny",
    "--deterministic", "--max-model-len", "512", "--max-num-seqs", "16", "--kv-cache-memory-bytes", str(KV_BYTES),
    "--max-queued-seqs", "48",
]  # fmt: skip
SETTLING = 3.5
"""Seconds of a quiet moment."""
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "soak.json"
console = Console(width=130)


def table(samples: list[Sample]) -> Table:
    """One line per quiet moment."""
    shown = Table(
        "min", "RSS", "PSS", "anon", "fds", "threads", "executor RSS", "anon", "fds", "threads", title="Soak"
    )
    for name in ("children", "blocks", "series", "preempted", "epoch"):
        shown.add_column(name, justify="right")
    for one in samples:
        server, executor = one.server, one.executor
        cells = [f"{one.minute:.1f}", f"{server.rss:.1f}", f"{server.pss:.1f}", f"{server.anon:.1f}"]
        cells += [str(server.descriptors), str(server.threads), f"{executor.rss:.1f}", f"{executor.anon:.1f}"]
        cells += [str(executor.descriptors), str(executor.threads), str(one.children)]
        cells += [str(one.blocks), str(one.series), str(one.preemptions), str(one.epoch)]
        shown.add_row(*cells, style="" if one.calm else "dim")
    return shown


@dataclass(frozen=True, slots=True)
class Plan:
    """`rounds` of `load_s` seconds with a quiet moment behind each; in the last `calm` ones nobody strikes. `strike_every`:
    seconds, on average."""

    rounds: int
    calm: int
    load_s: float
    strike_every: float

    @classmethod
    def of(cls, minutes: float) -> Plan:
        """A round a minute, or shorter ones: there have to be some to judge."""
        rounds = max(14, round(minutes))
        load_s = max(3.0, minutes * 60 / rounds - SETTLING)
        return cls(rounds, max(6, rounds // 3), load_s, min(20.0, load_s))


async def soak(server: ServerProcess, plan: Plan, load: Load) -> list[Sample]:
    """The whole run. Returns the samples."""
    await load.learn()
    samples: list[Sample] = []
    told = 0
    begun = time.monotonic()
    for number in range(plan.rounds):
        calm = number >= plan.rounds - plan.calm
        await load.run(plan.load_s, None if calm else plan.strike_every)
        await load.settle()
        samples.append(sample(server, METRICS_KEY, (time.monotonic() - begun) / 60, calm))
        last, tally = samples[-1], load.tally
        console.print(
            f"minute {last.minute:.1f}: server {last.server.rss:.1f} MiB, {last.server.descriptors} descriptors, executor "
            f"{last.executor.rss:.1f} MiB, {last.blocks} blocks, {tally.counts['ordinary 200']} answers, "
            f"{len(tally.faults)} faults"
        )
        for fault in tally.faults[told : told + 3]:
            console.print(f"FAULT {fault[:600]}", style="bold red", markup=False)
        told = len(tally.faults)
    return samples


def facts(url: str) -> tuple[int, int]:
    """Width of the model's logits, and its context in tokens."""
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    [executor] = httpx.get(f"{url}/v1/executors", headers=headers).json()["data"]
    return executor["info"]["logits_width"], executor["info"]["max_model_len"]


def report(samples: list[Sample], load: Load, minutes: float, log: str) -> list[str]:
    """Print and write everything; returns the faults."""
    bounds = verdict.Bounds.of(minutes)
    found = [*verdict.faults(samples, bounds), *load.tally.faults]
    found += [
        line for line in log.splitlines() if "accounting is broken" in line or "a request failed" in line
    ][:10]
    trends = verdict.trends(samples)
    console.print(table(samples))
    for one in trends:
        console.print(
            f"{one.of}: {one.first:.1f} to {one.last:.1f} MiB, {one.slope:+.3f} MiB/min, {one.growth:+.1%}"
        )
    tally = load.tally
    console.print(
        f"{tally.kills} kills, {tally.stops} stops;",
        ", ".join(f"{n} {k}" for k, n in tally.counts.most_common()),
    )
    for fault in found[:20]:
        console.print(f"FAULT {fault[:600]}", style="bold red", markup=False)
    console.print(f"{'not flat' if found else 'flat'}: {len(found)} faults in {minutes:g} minutes")
    written = {
        "what": "Soak: memory in MiB and counts at quiet moments; trends after the warm-up, the executor's in one life",
        "minutes": minutes, "args": ARGS, "bounds": asdict(bounds), "faults": found[:50], "kills": tally.kills,
        "stops": tally.stops, "counts": dict(tally.counts), "trends": [asdict(one) for one in trends],
        "samples": [asdict(one) for one in samples],
    }  # fmt: skip
    if minutes >= 20:
        RESULT.write_text(json.dumps(neutral(written), indent=1) + "\n")
    return found


def main() -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = [word for key in (*KEYS, HOSTILE_KEY) for word in ("--api-key", key)]
        keys += ["--metrics-key", METRICS_KEY]
        with ServerProcess([*ARGS, *keys], Path(folder)) as server:
            load = Load(server, KEYS, *facts(server.url), asked.seed)
            samples = asyncio.run(soak(server, Plan.of(asked.minutes), load))
            found = report(samples, load, asked.minutes, server.log())
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
