"""What the engine does with a real executor: cohort, chunks beside streams, prefixes, overlap.

    python -m benchmarks.engine cohort|streams|prefix|overlap [--shape qwen3-0.6b] [--json FILE]

The engine runs in this process, the executor in its own, as in the server, without HTTP. Weights are random. Each figure is
the median of several rounds; where two things are compared their rounds alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shapes import matrix_flops, write_shape
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.mailbox import Mailbox
from engine.request import Request, RequestContext
from executors.contract import ExecutorConfig, OptimizationConfig, SamplingParams
from executors.process import connect
from server.system.gc_tuning import freeze_after_load

Result = dict[str, Any]
_GREEDY = SamplingParams(temperature=0.0)
_GIB = 1 << 30


@dataclasses.dataclass(slots=True)
class Timed:
    """One request's life, in seconds of the clock: when it was asked, and when each token came."""

    asked: float
    times: list[float] = dataclasses.field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.times[0] - self.asked

    def gaps(self) -> list[float]:
        """Time between tokens."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


@asynccontextmanager
async def engine(
    shape: str, max_num_seqs: int = 64, optimization: OptimizationConfig | None = None, **config: Any
) -> AsyncIterator[EngineCore]:
    """A started engine on the shape, shut down at the end."""
    with tempfile.TemporaryDirectory() as folder:
        limits = ExecutorConfig(
            "llm", str(write_shape(shape, Path(folder))), load_format="dummy", max_num_seqs=max_num_seqs,
            max_model_len=4096, optimization=optimization or OptimizationConfig(),
        )  # fmt: skip
        limits = dataclasses.replace(
            limits, memory=dataclasses.replace(limits.memory, kv_cache_memory_bytes=4 * _GIB)
        )
        core = EngineCore(connect(limits), EngineConfig(max_num_seqs=max_num_seqs, **config))
        await core.start()
        freeze_after_load()
        try:
            yield core
        finally:
            await core.stop()


async def generate(core: EngineCore, prompt: np.ndarray, count: int) -> Timed:
    """Ask for `count` greedy tokens and note when they come."""
    mailbox, timed = Mailbox(), Timed(time.perf_counter())
    context = RequestContext("bench", core.clock())
    core.submit(Request(context, prompt.astype(np.int32), _GREEDY, count), mailbox)
    while True:
        for delta in (await mailbox.take()).values():
            timed.times += [time.perf_counter()] * len(delta.tokens)
            if delta.error is not None:
                raise delta.error
            if delta.finish_reason is not None:
                return timed


def prompts(count: int, length: int, seed: int) -> list[np.ndarray]:
    """Random prompts, all different."""
    return list(np.random.default_rng(seed).integers(1000, 100_000, (count, length)))


def matmul_rate() -> float:
    """Measured bf16 operations a second of a large product with packed weights, as the model's linears do it."""
    import torch

    x, weight = torch.randn(512, 1024).bfloat16(), torch.randn(3072, 1024).bfloat16()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(30):
            began = time.perf_counter()
            for _ in range(20):
                torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
            best = min(best, (time.perf_counter() - began) / 20)
    return 2.0 * 512 * 1024 * 3072 / best


async def cohort(shape: str, rounds: int) -> Result:
    """32 prompts of 128 tokens that arrive together: seconds to the last first token, against one after the other."""
    rate = matmul_rate()
    together, serial = [], []
    async with engine(shape, max_num_batched_tokens=8192, prefix_caching=False) as core:
        await generate(core, prompts(1, 128, 9)[0], 4)
        for number in range(rounds):
            asked = prompts(32, 128, number)
            began = time.perf_counter()
            await asyncio.gather(*(generate(core, one, 1) for one in asked))
            together.append(time.perf_counter() - began)
            began = time.perf_counter()
            for one in asked:
                await generate(core, one, 1)
            serial.append(time.perf_counter() - began)
    limit = 2 * matrix_flops(shape, 32 * 128) / rate + 0.003
    seconds = statistics.median(together)
    return {
        "seconds": seconds,
        "serial_seconds": statistics.median(serial),
        "factor": statistics.median(serial) / seconds,
        "matmul_gflops": rate / 1e9,
        "twice_the_limit_plus_3ms": limit,
        "reached": seconds <= limit,
    }


async def streams(shape: str, rounds: int) -> Result:
    """8 running streams while a prompt of 2,048 tokens arrives: p99 of the time between tokens against p50 without it."""
    calm, disturbed, ttft = [], [], []
    async with engine(shape) as core:
        for number in range(rounds + 1):
            running = [asyncio.create_task(generate(core, one, 120)) for one in prompts(8, 64, number)]
            await asyncio.sleep(1.5)
            arrived = time.perf_counter()
            long = await generate(core, prompts(1, 2048, 100 + number)[0], 1)
            ended = time.perf_counter()
            timed = await asyncio.gather(*running)
            if number == 0:
                continue  # the budget policy learns in the first round
            ttft.append(long.ttft)
            for one in timed:
                for begin, end in zip(one.times, one.times[1:], strict=False):
                    inside = end > arrived and begin < ended
                    if inside:
                        disturbed.append(end - begin)
                    elif begin > one.times[0] + 0.3:
                        calm.append(end - begin)
    p50, p99 = float(np.percentile(calm, 50)), float(np.percentile(disturbed, 99))
    return {
        "p50_without": p50, "p99_during": p99, "ratio": p99 / p50, "tokens_during": len(disturbed),
        "ttft_of_the_prompt": statistics.median(ttft), "reached": p99 < 3 * p50,
    }  # fmt: skip


async def prefix(shape: str, rounds: int) -> Result:
    """Time to the first token of a request with a shared prefix of 512 tokens and 32 of its own, warm against cold."""
    cold, warm = [], []
    async with engine(shape) as core:
        await generate(core, prompts(1, 544, 999)[0], 2)
        for number in range(rounds):
            shared = prompts(1, 512, number)[0]
            tails = prompts(2, 32, 1000 + number)
            cold.append((await generate(core, np.concatenate([shared, tails[0]]), 1)).ttft)
            warm.append((await generate(core, np.concatenate([shared, tails[1]]), 1)).ttft)
    ratio = statistics.median(warm) / statistics.median(cold)
    return {
        "cold": statistics.median(cold), "warm": statistics.median(warm), "ratio": ratio, "reached": ratio <= 0.2,
    }  # fmt: skip


async def overlap(shape: str, rounds: int) -> Result:
    """Output tokens a second with 1 and with 2 steps in flight: 64 requests at once, 32 + 64 tokens each."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for number in range(rounds):
        for in_flight in found:
            async with engine(shape, max_in_flight=in_flight) as core:
                asked = prompts(64, 32, number)
                await asyncio.gather(*(generate(core, one, 8) for one in asked[:8]))
                began = time.perf_counter()
                await asyncio.gather(*(generate(core, one, 64) for one in asked))
                found[in_flight].append(64 * 64 / (time.perf_counter() - began))
    off, on = (statistics.median(found[in_flight]) for in_flight in (1, 2))
    return {"off_tokens_per_s": off, "on_tokens_per_s": on, "ratio": on / off}


WORKLOADS: dict[str, Callable[[str, int], Coroutine[Any, Any, Result]]] = {
    "cohort": cohort,
    "streams": streams,
    "prefix": prefix,
    "overlap": overlap,
}


def main() -> None:
    """Run workloads, print and write what they gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=WORKLOADS)
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = {}
    for name in asked.workloads:
        results[name] = asyncio.run(WORKLOADS[name](asked.shape, asked.rounds))
        print(name, json.dumps(results[name]), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({"shape": asked.shape, **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
