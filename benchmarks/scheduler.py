"""What a decode step costs the host: schedule, encode, decode, commit, at 1 to 1,024 sequences.

    python -m benchmarks.scheduler [--executor echo|paged_fake] [--groups N] [--waiting N] [--policy fair] [--json FILE]

The tokens come from a fake, whose own time is not counted. Encode and decode are those of the socket between server and
executor: the batch as a frame, and the frame of its answer. One step is always out while the next is put together, as
with overlap. With `--groups` the fake has so many groups of KV, the first of them full, the others with windows of 16 to
48 tokens, which slide; it reads none of them. Prompts have 32 to 47 tokens, so that a sixteenth of the sequences fills a block in
each step: were all to fill theirs in the same few steps, a median over steps would leave these out. Reported is the time that
the thread ran, in microseconds: medians over steps, of the median of several rounds; and `mean`, the mean over steps of the least
time that each took in any round: all rounds do the same, so what another process costs falls out.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grouped_echo import GroupedEcho
from engine.core.journal import Journal
from engine.core.scheduler import Scheduler
from engine.kv.kv_cache_manager import KvCacheManager
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from engine.sequence import Sequence
from engine.waiting.order import QUEUE_POLICIES
from engine.waiting.queue import WaitingQueue
from executors import registry
from executors.contract import (
    ExecutorAttentionConfig,
    ExecutorConfig,
    KvGroup,
    KvLayout,
    ModelExecutor,
    SamplingParams,
)
from executors.process import messages as m
from executors.process.wire import FrameDecoder, encode
from server.system.gc_tuning import freeze_after_load

SIZES = (1, 32, 256, 1024)
STAGES = ("schedule", "encode", "decode", "commit", "publish")
_PROMPT, _STEPS, _WARMUP, _BLOCK = 32, 256, 20, 16
"""Tokens of the shortest prompt; steps, in which all sequences pass as many blocks, and a cache point; tokens of a block."""


class Bench:
    """A scheduler with `size` sequences that decode for ever, while `waiting` others wait for a slot."""

    def __init__(self, executor: ModelExecutor, size: int, waiting: int = 0, policy: str = "fcfs") -> None:
        self.executor = executor
        self.kv = KvCacheManager(executor.kv_layout(), "bench")
        queue = WaitingQueue(QUEUE_POLICIES[policy]())
        self.scheduler = Scheduler(self.kv, Journal(), size, max(2048, size), waiting=queue)
        self.scheduler.journal.open_epoch()
        self.mailbox = Mailbox()
        self.decoder: FrameDecoder[Any] = FrameDecoder(m.ToServer)
        self.times: dict[str, list[float]] = {stage: [] for stage in STAGES}
        rng = np.random.default_rng(size)
        if policy == "fair" and waiting:
            self._add(0, "other", rng)  # slots are kept for it
        for number in range(1, size + waiting + 1):
            self._add(number, "many", rng)

    def _add(self, number: int, tenant: str, rng: np.random.Generator) -> None:
        prompt = rng.integers(0, 1000, _PROMPT + number % _BLOCK).astype(np.int32)
        context = RequestContext("bench", 0.0, tenant=tenant)
        greedy = SamplingParams(temperature=0.0)
        asked = Request(context, prompt, greedy, 10**6, frozenset((1001, 1002)))
        seq = Sequence(number + 1, asked, self.mailbox, number)
        self.scheduler.waiting.submit(seq)
        self.scheduler.sequences.add(seq)

    async def run(self) -> dict[str, list[float]]:
        """Seconds of each stage in each step."""
        await self.executor.begin_epoch(1)
        before = -1
        while len(self.scheduler.running) != before:
            before = len(self.scheduler.running)
            await self._step(None)
        flying = self._timed("schedule", self.scheduler.schedule)
        for step in range(_STEPS + _WARMUP):
            if step == _WARMUP:
                self.times = {stage: [] for stage in STAGES}
                freeze_after_load()
            flying = await self._step(flying)
        return self.times

    async def _step(self, flying: Any) -> Any:
        """Schedule one more step and commit the one that is out; without one, schedule and commit the same."""
        following = self._timed("schedule", self.scheduler.schedule)
        batch = following if flying is None else flying
        self._timed("encode", lambda: encode(m.pack_batch(1, batch)))
        output = await self.executor.unified_decode(batch)
        frame = bytes(encode(m.pack_output(1, 0.0, output)))
        answer = self._timed("decode", lambda: m.unpack_output(next(iter(self.decoder.feed(frame)))))
        deltas = self._timed("commit", lambda: self.scheduler.results.commit(batch, answer))
        self._timed("publish", lambda: [seq.mailbox.put(seq.mailbox_key, delta) for seq, delta in deltas])
        await self.mailbox.take()
        return following

    def _timed(self, stage: str, what: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = what()
        self.times[stage].append(time.thread_time() - began)
        return result


def grouped(size: int, groups: int) -> KvLayout:
    """KV for `size` sequences in so many groups."""
    windows = [None, *(_BLOCK * (1 + number % 3) for number in range(groups - 1))]
    return KvLayout(_BLOCK, tuple(KvGroup(size * 24, 1024, window) for window in windows))


async def measure(
    executor: str, size: int, rounds: int, waiting: int = 0, policy: str = "fcfs", groups: int = 0
) -> dict[str, float]:
    """Microseconds of each stage, the sum of the four that count, and their `mean`."""
    found: list[dict[str, list[float]]] = []
    for _ in range(rounds):
        config = ExecutorConfig(
            executor, max_num_seqs=size, max_model_len=512, attention=ExecutorAttentionConfig(block_size=_BLOCK),
            options={"num_blocks": size * 24} if executor == "paged_fake" else {},
        )  # fmt: skip
        made = GroupedEcho(config, grouped(size, groups)) if groups else registry.create(config)
        await made.warmup()
        found.append(await Bench(made, size, waiting, policy).run())
        gc.unfreeze()
    row = {stage: 1e6 * statistics.median(statistics.median(one[stage]) for one in found) for stage in STAGES}
    row["total"] = sum(row[stage] for stage in STAGES[:-1])
    steps = np.array([[one[stage] for stage in STAGES[:-1]] for one in found]).sum(axis=1)
    row["mean"] = 1e6 * float(steps.min(axis=0).mean())
    return row


def main() -> None:
    """Measure, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executor", default="echo", choices=("echo", "paged_fake"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--waiting", type=int, default=0, help="sequences that wait for a slot")
    parser.add_argument("--policy", default="fcfs", choices=tuple(QUEUE_POLICIES))
    parser.add_argument("--groups", type=int, default=0, help="of KV [those of the fake]")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    columns = (*STAGES[:-1], "total", "mean", "publish")
    print(f"{'sequences':>9} " + " ".join(f"{name:>9}" for name in columns), "us")
    rows = {}
    for size in asked.sizes:
        row = asyncio.run(
            measure(asked.executor, size, asked.rounds, asked.waiting, asked.policy, asked.groups)
        )
        rows[size] = row
        print(f"{size:>9} " + " ".join(f"{row[name]:>9.0f}" for name in columns))
    if asked.json:
        asked.json.write_text(json.dumps({"executor": asked.executor, "microseconds": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
