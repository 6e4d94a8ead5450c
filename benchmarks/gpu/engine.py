"""Engine and executor together, without HTTP: the offline workload, one sequence alone, and the cohort figure."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import shapes
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.serving import Crowd, Setup, ask_all, engine, fell_back, settled, until
from benchmarks.gpu.timing import Limits, measure_limits
from engine.core.engine import EngineCore
from executors.contract import ExecutorStatus

_ROUNDS = 4
"""The first is not counted: kernels are compiled in it."""
_H200 = "H200"
SHARES = {("offline", shapes.SMALL): 0.68, ("single", shapes.SMALL): 0.30}
"""Of the roofline, which is reckoned from the rates of copies and products that were measured on the device."""
TARGETS = {("offline", shapes.SMALL): 25_000.0, ("single", shapes.SMALL): 1_000.0}
"""Tokens a second, promised for an H200 alone: what SHARES are of its 4.3 TB/s and 790 TFLOP/s."""


def offline_small(options: Options, found: Found) -> None:
    """Qwen3-0.6B."""
    asyncio.run(_offline(options, found, shapes.TINY if options.tiny else shapes.SMALL))


def offline_large(options: Options, found: Found) -> None:
    """Qwen3-8B."""
    asyncio.run(_offline(options, found, shapes.TINY if options.tiny else shapes.LARGE))


def single_small(options: Options, found: Found) -> None:
    """Qwen3-0.6B."""
    asyncio.run(_single(options, found, shapes.TINY if options.tiny else shapes.SMALL))


def single_large(options: Options, found: Found) -> None:
    """Qwen3-8B."""
    asyncio.run(_single(options, found, shapes.TINY if options.tiny else shapes.LARGE))


def workload(tiny: bool) -> shapes.Workload:
    """The common one, or a few short sequences."""
    return shapes.offline(4, 3, 8, 200) if tiny else shapes.offline(256, 100, 1024, 10_000)


async def _offline(options: Options, found: Found, shape: str) -> None:
    """256 sequences at once, to the end; output tokens a second, and the share of the roofline."""
    limits, work = limits_of(options), workload(options.tiny)
    least = shapes.least_seconds(shape, work, limits.copy, limits.products)
    # Every round has the same prompts: found again in the prefix cache, they would not be computed.
    setup = Setup(shape, max_num_seqs=len(work.prompts), prefix_caching=False)
    async with engine(options, setup) as core:
        found({"capture_seconds": await settled(core), **facts(core, limits)})
        seconds: list[float] = []
        for _ in range(_ROUNDS):
            steps = core.stats().steps
            crowd = await ask_all(core, work.prompts, work.outputs)
            check_counts(crowd, work.outputs)
            seconds.append(max(crowd.last) - crowd.asked)
            found({"seconds": seconds, "steps": core.stats().steps - steps})
        await until(lambda: core.stats().kv_blocks_used == 0, 5.0)
        core.check_integrity()
        rate = work.output_tokens / statistics.median(seconds[1:])
        share = rate * least / work.output_tokens
        found(
            {
                "output_tokens_per_s": rate,
                "roofline_tokens_per_s": work.output_tokens / least,
                "share_of_roofline": share,
                "spread": (max(seconds[1:]) - min(seconds[1:])) / statistics.median(seconds[1:]),
                "preemptions": core.stats().preemptions,
                **facts(core, limits),
                **_target("offline", shape, rate, share),
            }
        )


async def _single(options: Options, found: Found, shape: str) -> None:
    """One sequence around a context of 1,024 tokens; tokens a second between its first and its last."""
    limits = limits_of(options)
    prompt, count = (8, 6) if options.tiny else (768, 512)
    async with engine(options, Setup(shape, max_num_seqs=8)) as core:
        rates, ttfts = [], []
        await settled(core)
        for number in range(_ROUNDS):
            crowd = await ask_all(core, random_prompts(1, prompt, number, shape), [count])
            check_counts(crowd, [count])
            # Tokens of one delta came together: the first delta may hold more than one.
            rates.append((count - 1) / max(crowd.last[0] - crowd.first[0], 1e-9))
            ttfts.append(crowd.first[0] - crowd.asked)
            found({"tokens_per_s_by_round": rates})
        read = shapes.step_bytes(shape) + shapes.kv_bytes(shape) * (prompt + count // 2)
        rate = statistics.median(rates[1:])
        share = rate * read / limits.copy
        found(
            {
                "tokens_per_s": rate,
                "roofline_tokens_per_s": limits.copy / read,
                "share_of_roofline": share,
                "ttft_ms": 1e3 * statistics.median(ttfts[1:]),
                **facts(core, limits),
                **_target("single", shape, rate, share),
            }
        )


def cohort(options: Options, found: Found) -> None:
    """Seconds from 32 prompts of 128 tokens, asked together, to the last first token."""
    asyncio.run(_cohort(options, found, shapes.TINY if options.tiny else shapes.SMALL))


async def _cohort(options: Options, found: Found, shape: str) -> None:
    """Against twice the time of the matrix products plus 3 ms, and against one prompt after the other: as the executor
    computes them (`serial`), and with no graphs (`serial_eager`)."""
    limits, rounds = limits_of(options), 2 if options.tiny else 6
    count, length = (4, 8) if options.tiny else (32, 128)
    setup = Setup(shape, max_num_seqs=64, prefix_caching=False)
    async with engine(options, setup) as core:
        await settled(core)
        together = [await _together(core, count, length, number, shape) for number in range(rounds)]
        found({"together_by_round": together})
        serial = [await _serially(core, count, length, number, shape) for number in range(rounds)]
        found({"serial_by_round": serial, **facts(core, limits)})
    seconds = statistics.median(together[1:])
    limit = 2 * 2.0 * shapes.layer_weights(shape) * count * length / limits.products + 0.003
    found(
        {
            "together_ms": 1e3 * seconds,
            "limit_ms": 1e3 * limit,
            "reached": seconds <= limit,
            "serial_ms": 1e3 * statistics.median(serial[1:]),
            "factor_over_serial": statistics.median(serial[1:]) / seconds,
        }
    )
    eager = Setup(shape, max_num_seqs=64, prefix_caching=False, enforce_eager=True)
    async with engine(options, eager) as core:
        times = [await _serially(core, count, length, number, shape) for number in range(3)]
    found(
        {
            "serial_eager_ms": 1e3 * statistics.median(times[1:]),
            "factor_over_serial_eager": statistics.median(times[1:]) / seconds,
        }
    )


async def _together(core: EngineCore, count: int, length: int, seed: int, shape: str) -> float:
    crowd = await ask_all(core, random_prompts(count, length, seed, shape), [1] * count)
    check_counts(crowd, [1] * count)
    return max(crowd.first) - crowd.asked


async def _serially(core: EngineCore, count: int, length: int, seed: int, shape: str) -> float:
    began = time.perf_counter()
    for prompt in random_prompts(count, length, seed, shape):
        await ask_all(core, [prompt], [1])
    return time.perf_counter() - began


def random_prompts(count: int, length: int, seed: int, shape: str) -> list[list[int]]:
    """All different."""
    most = min(10_000, int(shapes.SHAPES[shape]["vocab_size"]))
    found: list[list[int]] = np.random.default_rng(seed).integers(0, most, (count, length)).tolist()
    return found


def check_counts(crowd: Crowd, outputs: list[int]) -> None:
    """Raises Failed unless everybody was given what was asked for."""
    wrong = [i for i, (got, asked) in enumerate(zip(crowd.counts, outputs, strict=True)) if got != asked]
    if wrong:
        i = wrong[0]
        raise Failed(f"{len(wrong)} sequences were given another number of tokens: {i} has {crowd.counts[i]}, "
                     f"asked for {outputs[i]}")  # fmt: skip


def limits_of(options: Options) -> Limits:
    """Measured in the part's own process, whose memory is given back before an executor sizes its own."""
    limits = measure_limits(torch.device(options.device), options.tiny)
    if options.device != "cpu":
        torch.cuda.empty_cache()
    return limits


def facts(core: EngineCore, limits: Limits) -> dict[str, Any]:
    """What ran, and on what: an executor that fell back to something slower says so in its notes."""
    status: ExecutorStatus = core.executor.status()
    return {
        "executor_notes": list(status.notes),
        "fell_back": fell_back(status.notes),
        "kv_blocks": core.stats().kv_blocks_total,
        "executor_memory_bytes": status.memory.allocated_bytes,
        **limits.figures,
    }


def _target(kind: str, shape: str, rate: float, share: float) -> dict[str, Any]:
    """What is to be reached, and whether it was: a share of the roofline, and on an H200 tokens a second as well."""
    if not torch.cuda.is_available():
        return {}
    wanted = {"share of the roofline": (share, SHARES.get((kind, shape)))}
    if _H200 in torch.cuda.get_device_name():
        wanted["tokens/s on an H200"] = rate, TARGETS.get((kind, shape))
    targets = {
        of: {"target": target, "found": found, "reached": found >= target}
        for of, (found, target) in wanted.items()
        if target is not None
    }
    return {"targets": targets, "reached": all(one["reached"] for one in targets.values())} if targets else {}
