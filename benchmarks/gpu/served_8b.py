"""Qwen3-8B with random weights, one start for all: the start by stage from an empty kernel cache, steps on the device alone, one
stream, a long prompt, 32 streams, two kills under streams, and the offline workload. In bf16, and shorter in e4m3.

Each figure is written at once. Shares are of the rates of copies and products that were measured on the device. What is not what
its name says (a rate beyond those, a step without its graph, streams that are not theirs) fails the part in the end, after
everything else was measured.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.gpu import last_step, shapes
from benchmarks.gpu.engine import check_counts, facts, limits_of, random_prompts, workload
from benchmarks.gpu.part import Failed, Found, Options
from benchmarks.gpu.recovery import Load, recovery
from benchmarks.gpu.serving import Crowd, Setup, ask_all, engine, settled, until
from benchmarks.gpu.shapes import BF16, E4M3, Stored, Workload
from benchmarks.gpu.stages import StageLog, check_stages, start_seconds
from benchmarks.gpu.timing import Limits
from engine.core.engine import EngineCore
from executors.contract import Tensor

KERNEL_CACHE = "TRITON_CACHE_DIR"
MOST, MOST_OF_COPY = 1.05, 1.10
"""Shares of a measured rate that nothing reaches: what is above was measured wrong, or the rate was. Reading alone may be a
little faster than copying."""
_FP8_PRODUCTS = 2.0
"""Times as many operations a second as in bf16, by the data sheets of Hopper: that rate is not measured."""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure is to reach: at the least, or with `most` at the most. Bytes a second decide most of them: those which are no
    shares are of an H200."""

    words: str
    figure: str
    value: float
    most: bool = False
    everywhere: bool = False


_H200 = "H200"
AIMS = {
    BF16: (
        Aim("tokens/s of one stream on an H200", "tokens_per_s_of_one", 255.0),
        Aim("32 streams, share of a copy's rate", "share_of_copy_of_32", 0.85, everywhere=True),
        Aim("seconds of a start from an empty kernel cache on an H200", "start_seconds", 30.0, most=True),
        Aim("seconds of the longest pause after a kill on an H200", "pause_seconds", 5.0, most=True),
        Aim("tokens/s offline on an H200", "output_tokens_per_s", 11_000.0),
    ),
    E4M3: (
        Aim("tokens/s of one stream on an H200", "tokens_per_s_of_one", 430.0),
        Aim("tokens/s offline on an H200", "output_tokens_per_s", 15_000.0),
    ),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of each is measured; tokens. `rows`: of steps on the device alone."""

    rows: tuple[int, ...] = (1, 8, 64, 256)
    single: tuple[int, int] = (768, 256)
    prompt: int = 8192
    streams: tuple[int, int, int] = (32, 900, 200)
    killed: tuple[int, int, int] = (16, 128, 400)
    kills: tuple[int, ...] = (64, 192)
    most_in_warm_up: int = 64


FULL = Sizes()
_TINY = Sizes((1, 4), (8, 12), 64, (3, 24, 12), (4, 16, 200), (10, 60), 4)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the figures of one start have in common."""

    core: EngineCore
    found: Found
    shape: str
    stored: Stored
    sizes: Sizes
    limits: Limits
    tiny: bool
    problems: list[str] = field(default_factory=list)
    """What is to fail the part."""

    @contextmanager
    def problem(self) -> Iterator[None]:
        """What fails within it is a problem, and the part goes on."""
        try:
            yield
        except Failed as failed:
            self.problems.append(str(failed))

    def share_of_copy(self, what: str, num_bytes: float, seconds: float) -> float:
        """Of the rate of copies. More than there can be is a problem; tiny shapes lie in caches."""
        return self._share(what, num_bytes / seconds / self.limits.copy, MOST_OF_COPY)

    def share_of_products(self, what: str, operations: float, seconds: float) -> float:
        """Likewise of products."""
        times = 1.0 if self.stored.layers == BF16.layers else _FP8_PRODUCTS
        return self._share(what, operations / seconds / self.limits.products / times, MOST)

    def _share(self, what: str, share: float, most: float) -> float:
        if not self.tiny and not 0 < share < most:
            self.problems.append(f"{what}: {share:.2f} of the measured rate of the device is no measurement")
        return share


def run(options: Options, found: Found) -> None:
    """In bf16, with kills. Raises Failed where something measured is not what its name says."""
    asyncio.run(_run(options, found, BF16))


def run_e4m3(options: Options, found: Found) -> None:
    """Weights of the layers and KV in e4m3: one stream, the long prompt and the offline workload."""
    asyncio.run(_run(options, found, E4M3))


async def _run(options: Options, write: Found, stored: Stored) -> None:
    figures: dict[str, Any] = {}

    def found(more: dict[str, Any]) -> None:
        figures.update(more)
        write(more)

    on_device = options.device != "cpu"
    shape, sizes = (shapes.TINY, _TINY) if options.tiny else (shapes.LARGE, FULL)
    if stored != BF16:
        sizes = replace(sizes, kills=())
    limits, log, kills = limits_of(options), StageLog(), len(sizes.kills)
    setup = _setup(options, shape, sizes, stored, log)
    with empty_kernel_cache(enabled=kills > 0):
        began = time.monotonic()
        async with engine(_in_a_process(options), setup) as core:
            stages = start_seconds(log.entries, began, time.monotonic())
            cache = "empty" if kills else "as it was"
            found(
                {
                    "start_seconds": sum(stages.values()),
                    "start_seconds_by_stage": stages,
                    "kernel_cache": cache,
                }
            )
            check_notes(core.executor.status().notes, stored)
            found({"capture_seconds": await settled(core), **facts(core, limits)})
            of = Measured(core, found, shape, stored, sizes, limits, options.tiny)
            with of.problem():
                check_stages(stages, on_device)
            await _single(of)
            await _prompt(of)
            if kills:
                await _rows(of, on_device)
                await _streams(of)
                streams, length, tokens = sizes.killed
                load = Load(
                    random_prompts(streams, length, 7, shape), tokens, sizes.kills, 8 if on_device else 0
                )
                with of.problem():
                    await recovery(core, found, log, load, exact=not on_device, on_device=on_device)
                found({"capture_seconds_after_kills": await settled(core)})
            await _offline(of, options.tiny)
            about = facts(core, limits)
            found(about)
            if torch.cuda.is_available():
                found(targets(figures, stored, torch.cuda.get_device_name()))
            if on_device and about["fell_back"]:
                of.problems.append(f"an executor that fell back was measured: {about['fell_back']}")
            if of.problems:
                raise Failed("; ".join(of.problems))


def targets(figures: dict[str, Any], stored: Stored, card: str) -> dict[str, Any]:
    """What was to be reached on this card, what was found, and whether it was; what was not measured was not reached."""
    named = {}
    for aim in AIMS[stored]:
        if aim.everywhere or _H200 in card:
            value = figures.get(aim.figure)
            reached = value is not None and (value <= aim.value if aim.most else value >= aim.value)
            named[aim.words] = {"target": aim.value, "found": value, "reached": reached}
    return {"targets": named, "reached": all(one["reached"] for one in named.values())} if named else {}


def _in_a_process(options: Options) -> Options:
    """A thread cannot be killed."""
    return replace(options, mode="process", executor="llm")


def _setup(options: Options, shape: str, sizes: Sizes, stored: Stored, log: StageLog) -> Setup:
    e4m3 = stored.layers == E4M3.layers
    return Setup(
        shape, max_num_seqs=4 if options.tiny else 256, max_model_len=sizes.prompt + 256, prefix_caching=False,
        executor=last_step.NAME, deaths=len(sizes.kills), progress=log.report,
        kv_cache_dtype="fp8" if e4m3 else "auto", quantization="fp8" if e4m3 else None,
        # A CPU multiplies e4m3 where torch attends alone.
        backend="torch" if e4m3 and options.device == "cpu" else "auto",
    )  # fmt: skip


@contextmanager
def empty_kernel_cache(enabled: bool) -> Iterator[None]:
    """Processes that are started meanwhile keep Triton's kernels in a folder that is empty at first."""
    if not enabled:
        yield
        return
    before = os.environ.get(KERNEL_CACHE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[KERNEL_CACHE] = folder
        try:
            yield
        finally:
            del os.environ[KERNEL_CACHE]
            if before is not None:
                os.environ[KERNEL_CACHE] = before


def check_notes(notes: Sequence[str], stored: Stored) -> None:
    """Raises Failed where an executor does not hold e4m3 as it was told to: its figures would be those of bf16."""
    if stored == BF16:
        return
    told = "; ".join(notes)
    layers = re.search(r"fp8: (\d+) of (\d+) linear layers, a scale per row", told)
    # All but lm_head.
    if layers is None or int(layers[1]) != int(layers[2]) - 1 or "KV in fp8 (e4m3)" not in told:
        raise Failed(f"not all layers and KV are in e4m3: {told}")


# -- figures -----------------------------------------------------------------------------------------------------------------


async def _single(of: Measured) -> None:
    """One sequence around a context of 1,000 tokens: tokens a second between its first and its last, three times."""
    prompt, count = of.sizes.single
    rates = []
    for number in range(4):  # the first is not counted
        crowd = await ask_all(of.core, random_prompts(1, prompt, number, of.shape), [count])
        check_counts(crowd, [count])
        rates.append((count - 1) / max(crowd.last[0] - crowd.first[0], 1e-9))
    rate = statistics.median(rates[1:])
    read = shapes.step_bytes(of.shape, of.stored) + shapes.kv_bytes(of.shape, of.stored) * (
        prompt + count // 2
    )
    of.found(
        {
            "tokens_per_s_of_one": rate,
            "tokens_per_s_of_one_by_round": rates,
            "share_of_copy_of_one": of.share_of_copy("one stream", read, 1 / rate),
        }
    )


async def _prompt(of: Measured) -> None:
    """The first token of one long prompt: milliseconds."""
    length = of.sizes.prompt
    seconds = []
    for number in range(4):
        crowd = await ask_all(of.core, random_prompts(1, length, 10 + number, of.shape), [1])
        check_counts(crowd, [1])
        seconds.append(crowd.first[0] - crowd.asked)
    median = statistics.median(seconds[1:])
    products = 2.0 * shapes.layer_weights(of.shape) * length
    of.found(
        {
            "prompt_tokens": length,
            "ttft_ms_of_prompt": 1e3 * median,
            "share_of_products_of_prompt": of.share_of_products("a long prompt", products, median),
        }
    )


async def _rows(of: Measured, on_device: bool) -> None:
    """Steps of so many rows with few keys each, replayed alone: milliseconds on the device."""
    rows: dict[int, dict[str, Any]] = {}
    for count in of.sizes.rows:
        await ask_all(of.core, random_prompts(count, 16, 20, of.shape), [8] * count)
        await until(lambda: of.core.stats().kv_blocks_used == 0, 5.0)
        answer = (await of.core.executor.forward(Tensor.of([count], "int32"))).numpy()
        seconds, free = float(answer[0]), float(answer[1])
        if math.isnan(seconds):
            if on_device:
                of.problems.append(f"the last step of {count} sequences had no graph of as many rows")
            rows[count] = {"not run": "no graph"}
            continue
        read = shapes.step_bytes(of.shape, of.stored)
        rows[count] = {"ms": 1e3 * seconds, "share_of_copy": of.share_of_copy(f"{count} rows", read, seconds)}
    of.found({"device_step_by_rows": rows})
    if not math.isnan(free):
        of.found({"idle_bytes": free})


async def _streams(of: Measured) -> None:
    """Streams around 1,000 keys: output tokens a second, from the last of the first tokens to the end."""
    streams, prompt, count = of.sizes.streams
    rates = []
    for number in range(3):
        crowd = Crowd(of.core)
        crowd.ask(random_prompts(streams, prompt, 30 + number, of.shape), [count] * streams)
        await crowd.read()
        check_counts(crowd, [count] * streams)
        rates.append(streams * (count - 1) / max(max(crowd.last) - max(crowd.first), 1e-9))
    rate = statistics.median(rates[1:])
    keys = streams * (prompt + count // 2)
    read = shapes.step_bytes(of.shape, of.stored) + shapes.kv_bytes(of.shape, of.stored) * keys
    share = of.share_of_copy(f"{streams} streams", read, streams / rate)
    of.found({f"tokens_per_s_of_{streams}": rate, f"share_of_copy_of_{streams}": share})


async def _offline(of: Measured, tiny: bool) -> None:
    """All sequences at once, to the end; before them the same prompts with fewer tokens, so that everything is compiled."""
    work = workload(tiny)
    most = of.sizes.most_in_warm_up
    await ask_all(of.core, work.prompts, [min(most, count) for count in work.outputs])
    preemptions = of.core.stats().preemptions
    crowd = await ask_all(of.core, work.prompts, work.outputs)
    check_counts(crowd, work.outputs)
    seconds = max(crowd.last) - crowd.asked
    await until(lambda: of.core.stats().kv_blocks_used == 0, 5.0)
    of.core.check_integrity()
    of.found(offline_figures(of, work, seconds) | {"preemptions": of.core.stats().preemptions - preemptions})


def offline_figures(of: Measured, work: Workload, seconds: float) -> dict[str, Any]:
    """Tokens a second of the offline workload, and the share of its roofline."""
    products = of.limits.products * (1.0 if of.stored.layers == BF16.layers else _FP8_PRODUCTS)
    least = shapes.least_seconds(of.shape, work, of.limits.copy, products, of.stored)
    if not of.tiny and least > MOST * seconds:
        of.problems.append(f"offline took {seconds:.2f} s, its bytes and operations take {least:.2f} s")
    return {
        "sequences": len(work.prompts), "output_tokens_per_s": work.output_tokens / seconds,
        "roofline_tokens_per_s": work.output_tokens / least, "share_of_roofline": least / seconds,
    }  # fmt: skip
