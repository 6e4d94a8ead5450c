"""One start of Qwen3-0.6B for all that a server is asked for: steps and replays, one stream, prompts, prompts behind cached ones,
256 sequences, grammars, drafts, and load over HTTP.

Each stage has an engine of its own over the one running executor, seconds of its own, and writes its figures at once. A stage
that fails is named in `wrong`, and the next one runs; the part fails at its end.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
import statistics
import tempfile
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import replayed, shapes
from benchmarks.gpu.engine import check_counts, limits_of, random_prompts, workload
from benchmarks.gpu.lent import borrowed
from benchmarks.gpu.made_tokenizer import write_tokenizer
from benchmarks.gpu.part import Failed, Figures, Found, Options
from benchmarks.gpu.served_text import drafts, grammars
from benchmarks.gpu.serving import Crowd, Setup, ask_all, captured, executor_config, fell_back, until
from benchmarks.gpu.timing import Limits
from engine.config import EngineConfig
from engine.core.engine import EngineCore
from executors.contract import ModelExecutor
from executors.llm.model.caches import BLOCK_ALIGNMENT
from executors.process import connect
from server.system.gc_tuning import freeze_after_load

_PATIENCE = 8.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of tokens and sequences. `new` tokens of a prompt come behind each of `cached`."""

    rows: tuple[int, ...]
    keys: int
    single: tuple[int, int]
    together: tuple[int, int]
    alone: tuple[int, ...]
    cached: tuple[int, ...]
    new: tuple[int, ...]
    rounds: int
    max_model_len: int


WHOLE = Sizes(
    (1, 8, 64, 256), 512, (768, 512), (32, 128), (128, 768, 2048, 8192), (7040, 32000), (64, 512), 3, 40960
)
"""Cached lengths are multiples of 64: pages of 16, 32 and 64 tokens hold them wholly. 40,960 is the model's own length."""
SMALLEST = Sizes((1, 4), 8, (8, 6), (4, 8), (8, 16), (64,), (4,), 2, 4096)


def sizes_of(options: Options) -> Sizes:
    """Of a part with these options."""
    return SMALLEST if options.tiny else WHOLE


class Stages:
    """Runs stages over one executor. Owns what was found wrong."""

    def __init__(
        self, options: Options, executor: ModelExecutor, asking: replayed.Asking, limits: Limits, found: Found
    ) -> None:
        self.options, self.executor, self.asking, self.limits, self.found = (
            options,
            executor,
            asking,
            limits,
            found,
        )
        self.sizes = sizes_of(options)
        self.shape = shapes.TINY if options.tiny else shapes.SMALL
        self.wrong: dict[str, str] = {}

    @property
    def launches(self) -> bool:
        """Whether steps are launched on a device, which can be timed by events."""
        return any(note.startswith("graphs: ") for note in self.executor.status().notes)

    async def run(self, name: str, seconds: float, work: Callable[[Stages], Awaitable[None]]) -> None:
        """One stage, for at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await work(self)
            return
        except TimeoutError:
            why = f"not over after {seconds:g} s"
        except Failed as failed:
            why = str(failed)
        except Exception as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
        self.wrong[name] = why
        self.found({"wrong": dict(self.wrong)})

    def end(self) -> None:
        """Raises Failed if a stage went wrong."""
        if self.wrong:
            raise Failed("; ".join(f"{name}: {why}" for name, why in self.wrong.items()))

    def engine(self, **given: Any) -> Any:
        """An engine that computes prompts as fast as it can, with more settings of `EngineConfig`."""
        config = EngineConfig(
            max_num_seqs=_SEQUENCES, max_num_batched_tokens=_STEP_TOKENS, target_itl=0.0, max_queue_wait=1e6, **given
        )  # fmt: skip
        return borrowed(self.executor, config)


_SEQUENCES, _STEP_TOKENS = 256, 8192


@asynccontextmanager
async def started(
    options: Options, found: Found, kv_cache_dtype: str = "auto"
) -> AsyncIterator[tuple[Stages, Path]]:
    """The executor, and the folder of its model."""
    limits, sizes = limits_of(options), sizes_of(options)
    shape = shapes.TINY if options.tiny else shapes.SMALL
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as answers:
        folder = shapes.write(shape, Path(name))
        write_tokenizer(
            folder, int(shapes.SHAPES[shape]["vocab_size"]), int(shapes.SHAPES[shape]["eos_token_id"])
        )
        os.environ[replayed.FOLDER] = answers
        setup = Setup(
            shape, max_num_seqs=_SEQUENCES, max_num_batched_tokens=_STEP_TOKENS, max_model_len=sizes.max_model_len,
            executor=replayed.NAME if options.executor == "llm" else None, kv_cache_dtype=kv_cache_dtype,
        )  # fmt: skip
        config = executor_config(options, setup, folder)
        executor = connect(config, "inline" if options.mode == "inline" else "process")
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            await executor.warmup()
            ready = loop.time() - began
            found({"ready_seconds": ready, "capture_seconds": await captured(executor), **limits.figures})
            notes = list(executor.status().notes)
            found({"executor_notes": notes, "fell_back": fell_back(notes)})
            freeze_after_load()
            stages = Stages(options, executor, replayed.Asking(Path(answers)), limits, found)
            if options.device != "cpu" and (slow := fell_back(notes)):
                stages.wrong["executor"] = f"the slow way: {slow}"
            yield stages, folder
        finally:
            with suppress(asyncio.CancelledError):
                await executor.shutdown()
            del os.environ[replayed.FOLDER]


def run(options: Options, found: Found) -> None:
    """Raises Failed at the end for what went wrong in a stage."""
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(_run(options, found))


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the loop that a server runs in; None, for asyncio's own, where uvloop is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


async def _run(options: Options, found: Found) -> None:
    async with started(options, found) as (stages, folder):
        await stages.run("steps", 8.0, steps)
        await stages.run("single", 6.0, single)
        await stages.run("prompts", 8.0, prompts)
        await stages.run("behind cached", 8.0, behind_cached)
        await stages.run("offline", 30.0, offline)
        await stages.run("grammars", 10.0, grammars)
        await stages.run("drafts", 8.0, drafts)
        await stages.run("http", 45.0, lambda stages: _http(stages, folder))
        stages.end()


async def _http(stages: Stages, folder: Path) -> None:
    # Here only: the other stages need none of the server's packages.
    from benchmarks.gpu.served_http import over_http

    await over_http(stages, folder)


def e4m3(options: Options, found: Found) -> None:
    """KV in e4m3: 256 sequences, one round to compile and one that counts."""
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(_e4m3(options, found))


async def _e4m3(options: Options, found: Found) -> None:
    # What CPUs have of the same size.
    dtype = "int8" if options.device == "cpu" else "fp8"
    found({"kv_cache_dtype": dtype})
    async with started(options, found, dtype) as (stages, _):
        layout = stages.executor.kv_layout()
        page = BLOCK_ALIGNMENT / layout.block_size if options.device == "cpu" else 0.0
        check_small_keys(layout.num_bytes / layout.capacity_tokens, stages.shape, found, page)
        await stages.run("offline", 40.0, lambda stages: offline(stages, rounds=2, kv_bytes=0.5))
        stages.end()


def check_small_keys(per_token: float, shape: str, found: Found, page: float = 0.0) -> None:
    """Raises Failed unless keys and values take half the bytes of bf16, scales left out. `page`: bytes a token by which whole
    pages may exceed that, on a CPU."""
    share = (per_token - page) / shapes.kv_bytes(shape)
    found({"kv_bytes_per_token": per_token})
    if share > 0.6:
        raise Failed(
            f"keys and values of a token take {per_token:,.0f} bytes, {share:.2f} times those of bf16"
        )


# -- stages --------------------------------------------------------------------------------------------------------------------


async def steps(stages: Stages) -> None:
    """Device milliseconds of a decode step of so many rows, replayed alone, with `keys` and more each."""
    if not stages.launches:
        stages.found({"device_ms_by_rows": "not on a CPU: the host computes its steps"})
        return
    sizes, read = stages.sizes, shapes.step_bytes(stages.shape)
    by_rows: dict[int, float] = {}
    async with stages.engine(prefix_caching=False) as core:
        for rows in sizes.rows:
            crowd = Crowd(core)
            crowd.ask(
                random_prompts(rows, sizes.keys, rows, stages.shape), [sizes.max_model_len // 16] * rows
            )
            reading = asyncio.create_task(crowd.read())
            try:
                if not await until(lambda crowd=crowd: min(crowd.counts) >= 4, _PATIENCE):  # type: ignore[misc]
                    raise Failed(f"{rows} sequences did not begin to decode")
                seconds = await stages.asking.replay(rows, 100 if rows < 256 else 40, _PATIENCE)
            finally:
                crowd.leave()
                reading.cancel()
            by_rows[rows] = 1e3 * seconds
            stages.found({"device_ms_by_rows": dict(by_rows)})
            least = (read + rows * sizes.keys * shapes.kv_bytes(stages.shape)) / stages.limits.copy
            check_possible(f"a step of {rows} rows", 1 / seconds, 1 / least)
            await until(lambda: core.stats().running == 0, _PATIENCE)


def check_possible(what: str, rate: float, most: float) -> None:
    """Raises Failed for a rate above what the device's bandwidth allows: something else was measured then. Reading alone may be
    faster than copying, by a tenth."""
    if rate > 1.1 * most:
        raise Failed(f"{what}: {rate:,.1f} a second, and the measured bandwidth allows {most:,.1f}")


async def single(stages: Stages) -> None:
    """One stream, three times: tokens a second between its first and its last token."""
    prompt, count = stages.sizes.single
    rates, ttfts = [], []
    async with stages.engine(prefix_caching=False) as core:
        for number in range(stages.sizes.rounds):
            crowd = await ask_all(core, random_prompts(1, prompt, number, stages.shape), [count])
            check_counts(crowd, [count])
            rates.append((count - 1) / max(crowd.last[0] - crowd.first[0], 1e-9))
            ttfts.append(crowd.first[0] - crowd.asked)
            stages.found({"single_tokens_per_s_by_round": rates})
    rate = statistics.median(rates)
    read = shapes.step_bytes(stages.shape) + shapes.kv_bytes(stages.shape) * (prompt + count // 2)
    most = stages.limits.copy / read
    stages.found({
        "single_tokens_per_s": rate, "single_share_of_roofline": rate / most, "single_ttft_ms": 1e3 * min(ttfts),
    })  # fmt: skip
    if not stages.options.tiny:
        check_possible("one stream", rate, most)


async def prompts(stages: Stages) -> None:
    """Milliseconds to the last first token of prompts that come together, and of one prompt alone. The first round warms up."""
    sizes, shape = stages.sizes, stages.shape
    count, length = sizes.together
    async with stages.engine(prefix_caching=False) as core:
        for name, number, tokens in (
            (f"{count} x {length}", count, length), *((f"1 x {length}", 1, length) for length in sizes.alone)
        ):  # fmt: skip
            times = [
                await first_tokens(core, random_prompts(number, tokens, seed, shape))
                for seed in range(sizes.rounds)
            ]
            least = 2.0 * shapes.layer_weights(shape) * number * tokens / stages.limits.products
            stages.found({f"first_tokens_ms {name}": 1e3 * statistics.median(times[1:])})
            if not stages.options.tiny:
                check_possible(f"prompts {name}", 1 / min(times), 1 / least)


async def first_tokens(core: EngineCore, given: Sequence[Sequence[int]], cached: int = 0) -> float:
    """Seconds from asking to the last first token. Raises Failed unless each prompt has so many tokens in the prefix cache."""
    crowd = await ask_all(core, given, [1] * len(given))
    check_counts(crowd, [1] * len(given))
    if any(found != cached for found in crowd.cached):
        raise Failed(f"{crowd.cached} tokens were found in the prefix cache, not {cached} each")
    return max(crowd.first) - crowd.asked


async def behind_cached(stages: Stages) -> None:
    """Milliseconds to the first token of a prompt whose beginning is in the prefix cache. Rounds share the beginning and nothing
    more; the first one warms up."""
    sizes = stages.sizes
    async with stages.engine() as core:
        for cached in sizes.cached:
            [beginning] = random_prompts(1, cached, cached, stages.shape)
            await first_tokens(core, [beginning])
            for new in sizes.new:
                tails = random_prompts(sizes.rounds, new, new, stages.shape)
                times = [await first_tokens(core, [beginning + tail], cached) for tail in tails]
                stages.found({f"first_token_ms {new} behind {cached}": 1e3 * statistics.median(times[1:])})


async def offline(stages: Stages, rounds: int = 3, kv_bytes: float = 1.0) -> None:
    """256 sequences at once, to the end: output tokens a second, the share of the roofline, and a step's milliseconds against the
    device's. The first round warms up. `kv_bytes`: of a number of keys and values, as a share of bf16's."""
    work = workload(stages.options.tiny)
    least = least_seconds(stages.shape, work, stages.limits, kv_bytes)
    seconds: list[float] = []
    async with stages.engine(prefix_caching=False) as core:
        for number in range(rounds):
            before = core.stats().steps
            watched = number == rounds - 1 and stages.launches and not stages.options.tiny
            watching = asyncio.create_task(_watched(stages)) if watched else None
            crowd = await ask_all(core, work.prompts, work.outputs)
            device = {} if watching is None else await watching
            check_counts(crowd, work.outputs)
            seconds.append(max(crowd.last) - crowd.asked)
            steps_of_round = core.stats().steps - before
            stages.found(
                {"offline_seconds": seconds, "offline_step_ms": 1e3 * seconds[-1] / steps_of_round, **device}
            )
        await until(lambda: core.stats().kv_blocks_used == 0, 5.0)
        core.check_integrity()
        preemptions = core.stats().preemptions
    rate = work.output_tokens / statistics.median(seconds[1:])
    stages.found({
        "offline_tokens_per_s": rate, "offline_roofline_tokens_per_s": work.output_tokens / least,
        "offline_share_of_roofline": rate * least / work.output_tokens, "offline_preemptions": preemptions,
    })  # fmt: skip
    if not stages.options.tiny:
        check_possible("offline", rate, work.output_tokens / least)


async def _watched(stages: Stages) -> Figures:
    await asyncio.sleep(1.5)  # all prompts are computed
    return device_steps(await stages.asking.steps(0.6, _PATIENCE))


def least_seconds(shape: str, work: shapes.Workload, limits: Limits, kv_bytes: float) -> float:
    """As `shapes.least_seconds`, with KV of so many times the bytes of bf16."""
    whole = shapes.least_seconds(shape, work, limits.copy, limits.products)
    read = sum(
        shapes.kv_bytes(shape) * (count * len(prompt) + count * (count + 1) // 2)
        for prompt, count in zip(work.prompts, work.outputs, strict=True)
    )
    return whole - (1.0 - kv_bytes) * read / limits.copy


def device_steps(pairs: Sequence[tuple[float, float]]) -> Figures:
    """Figures of steps by events: median milliseconds of the device, and the share of the time between the first and the last in
    which it idles. Raises Failed for fewer than ten."""
    if len(pairs) < 10:
        raise Failed(f"{len(pairs)} steps were seen by events")
    lengths = np.array([end - begin for begin, end in pairs])
    gaps = np.array([max(0.0, begin - end) for (_, end), (begin, _) in itertools.pairwise(pairs)])
    span = pairs[-1][1] - pairs[0][0]
    return {
        "offline_device_ms": 1e3 * float(np.median(lengths)),
        "offline_idle_share_by_events": float(gaps.sum()) / span,
        "offline_steps_seen": len(pairs),
    }
