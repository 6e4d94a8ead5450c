"""Models whose layers carry states, on a CPU: beside dense ones of as many bytes, at depth, and with an MTP head; the rule alone.

    python -m benchmarks.states share [--shapes qwen3.5-0.8b,lfm2-350m] [--rounds 3]
    python -m benchmarks.states depth [--shapes ...] [--depth 8000]
    python -m benchmarks.states head [--acceptance 0.8] [--tokens 96]
    python -m benchmarks.states rule

All figures are of this process: executors are driven by hand, without a server. Weights are random; those of `share` and `depth`
are Q4_K_M files that benchmarks/peers/gguf_files.py makes, with llama-quantize. Beside llama.cpp on the same files:
`python -m benchmarks.peers --peer llamacpp --gguf qwen3.5-0.8b-q4_k_m`.

share   steps of one stream and of 16 behind 128 tokens, of a hybrid and of its dense twin in turn, and what share of the time
        that reading weights, KV and states (which are written, too) takes at least they reach at the rate measured beside
depth   tokens a second of one stream behind a deep prompt, in parts of those behind 128 tokens, and the prompt's own rate
head    one stream with drafts that are right with a given probability beside the plain one. The arithmetic
        is (1 - a^(k+1)) / ((1 - a)(1 + k c)), where c is the head's share of the model's bytes, see benchmarks/drafts.py
rule    milliseconds of one processor a token of the delta rule, convolution and norm included, for 18 layers of 16 heads of 128
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers import gguf_files, hybrid_files, limits, roofline
from benchmarks.shapes import SHAPES, write_shape
from executors.contract import ExecutorConfig, ExecutorMemoryConfig, OptimizationConfig
from executors.gguf.file import read_gguf
from executors.kernels.cpu import cpu_kernels
from executors.kernels.scan import DeltaKernel, DeltaPlaces, LayerSlots, StateStep
from executors.llm.executor import LlmExecutor
from executors.llm.model.gguf_source import header_digest
from executors.testing.driver import DrivenSequence, Driver, Feed

TWINS = {"qwen3.5-0.8b": "dense-0.8b", "lfm2-350m": "dense-350m"}
"""Shapes of benchmarks/shapes.py with states, and dense ones of as many parameters."""
STREAMS = (1, 16)
_DRAFTS = (1, 2, 3)
_BEHIND, _STEPS, _WARM, _CHUNK = 128, 16, 3, 512
_KV_BYTES = 1 << 30

Result = dict[str, Any]


async def serve(path: Path, streams: int, context: int, **more: Any) -> Driver:
    """Start an executor of a GGUF file, or of a directory, for so many sequences of so many tokens."""
    if path.suffix == ".gguf":
        folder, file = Path(tempfile.mkdtemp()), read_gguf(path)
        source = {"files": [str(part) for part in file.parts], "header": header_digest(file)}
        (folder / "gguf.json").write_text(json.dumps(source))
        path = folder
    config = ExecutorConfig(
        "llm", str(path), max_num_seqs=streams, max_num_batched_tokens=2048, max_model_len=context,
        memory=ExecutorMemoryConfig(kv_cache_memory_bytes=_KV_BYTES), **more,
    )  # fmt: skip
    return await Driver.start(LlmExecutor.from_config(config))


async def begin(driver: Driver, tokens: int, seed: int) -> tuple[DrivenSequence, float]:
    """Return a sequence behind a prompt of random tokens, and the prompt's seconds."""
    prompt = np.random.default_rng(seed).integers(100, 500, tokens).tolist()
    seq = driver.add(prompt)
    began = time.perf_counter()
    for first in range(0, tokens, _CHUNK):
        await driver.step(Feed(seq, min(_CHUNK, tokens - first)))
    return seq, time.perf_counter() - began


async def step_seconds(driver: Driver, seqs: Sequence[DrivenSequence], steps: int = _STEPS) -> float:
    """Return the median seconds of a step with one token of each sequence."""
    taken = []
    for _ in range(_WARM + steps):
        began = time.perf_counter()
        await driver.step(*(Feed(seq) for seq in seqs))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[_WARM:])


async def share(shapes: Sequence[str], rounds: int) -> list[Result]:
    """Compare each shape with its twin, in turn."""
    found = []
    for shape in shapes:
        names = (shape, TWINS[shape])
        paths = {name: gguf_files.ensure(f"{name}-q4_k_m") for name in names}
        costs = {name: roofline.of_gguf(path) for name, path in paths.items()}
        drivers = {name: await serve(path, max(STREAMS), 512) for name, path in paths.items()}
        seqs = {
            name: [(await begin(driver, _BEHIND, i))[0] for i in range(max(STREAMS))]
            for name, driver in drivers.items()
        }
        rates, taken = [], {(name, streams): list[float]() for name in names for streams in STREAMS}
        for _ in range(rounds):
            rates.append(limits.reading())
            for streams in STREAMS:
                for name in names:
                    own = seqs[name][:streams]
                    taken[name, streams].append(await step_seconds(drivers[name], own))
        rate = max(rates)
        for streams in STREAMS:
            for name in names:
                cost, seconds = costs[name], statistics.median(taken[name, streams])
                positions = _BEHIND + 1.5 * rounds * (_STEPS + _WARM)
                num_bytes = cost.weight_bytes + streams * (cost.state_bytes + positions * cost.kv_bytes)
                found.append({
                    "shape": name, "streams": streams, "ms": 1e3 * seconds, "MB": num_bytes / 1e6, "read_gb_per_s": rate,
                    "share": num_bytes / 1e9 / rate / seconds, "rounds": [1e3 * one for one in taken[name, streams]],
                })  # fmt: skip
                print(json.dumps(found[-1]), flush=True)
        for driver in drivers.values():
            await driver.executor.shutdown()
    return found


async def depth(shapes: Sequence[str], tokens: int, rounds: int) -> list[Result]:
    """Compare steps behind a short and a deep prompt, in turn."""
    found = []
    for shape in shapes:
        driver = await serve(gguf_files.ensure(f"{shape}-q4_k_m"), 2, tokens + 512)
        shallow, _ = await begin(driver, _BEHIND, 0)
        deep, prompt = await begin(driver, tokens, 1)
        near, far = list[float](), list[float]()
        for _ in range(rounds):
            near.append(await step_seconds(driver, [shallow]))
            far.append(await step_seconds(driver, [deep]))
        found.append({
            "shape": shape, "depth": tokens, "ms": 1e3 * statistics.median(near), "ms_deep": 1e3 * statistics.median(far),
            "ratio": statistics.median(near) / statistics.median(far), "prompt_tokens_per_s": tokens / prompt,
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
        await driver.executor.shutdown()
    return found


def _drafted(right: Sequence[int], count: int, acceptance: float, draw: random.Random) -> list[int]:
    """`count` drafts of a text, each of which is right with a probability."""
    return [one if draw.random() < acceptance else (one + 1) % 1000 for one in right[:count]]


async def _with_drafts(
    driver: Driver, text: Sequence[int], count: int, acceptance: float, tokens: int, seed: int
) -> list[tuple[int, float]]:
    """Return tokens and seconds of each step of a stream with `count` drafts of a text that is known."""
    draw, seq = random.Random(seed), (await begin(driver, _BEHIND, 0))[0]
    # The first step writes a state, behind which drafts begin.
    await driver.step(Feed(seq, num_drafts=count))
    steps = []
    while len(seq.output) < tokens:
        at = len(seq.output)
        drafts = _drafted(text[at:], count, acceptance, draw)
        began = time.perf_counter()
        await driver.step(Feed(seq, drafts=drafts, num_drafts=count))
        steps.append((len(seq.output) - at, time.perf_counter() - began))
    driver.release(seq)
    return steps


async def head(acceptance: float, tokens: int, rounds: int) -> list[Result]:
    """One stream of Qwen3.5-0.8B's shape in bfloat16: without an MTP head, and with one whose guesses are replaced by given ones
    once they are made; and 16 streams that draft nothing, with and without the head."""
    shape, found = "qwen3.5-0.8b", list[Result]()
    with tempfile.TemporaryDirectory() as folder:
        path = write_shape(shape, Path(folder))
        plain, headed = [
            await serve(
                path, max(STREAMS), 4 * tokens + 512, dtype="bfloat16", load_format="dummy",
                optimization=OptimizationConfig(mtp=mtp),
            )
            for mtp in (False, True)
        ]  # fmt: skip
    text, _ = await begin(plain, _BEHIND, 0)
    await plain.decode(tokens + 8, text)
    plain.release(text)
    without = list[float]()
    drafted = {count: list[tuple[int, float]]() for count in _DRAFTS}
    for number in range(rounds):
        again, _ = await begin(plain, _BEHIND, 0)
        without.append(await step_seconds(plain, [again]))
        plain.release(again)
        for count in _DRAFTS:
            drafted[count] += await _with_drafts(headed, text.output, count, acceptance, tokens, number)
    alone = statistics.median(without)
    for count, steps in drafted.items():
        made, step = (statistics.mean(one for one, _ in steps), statistics.median(one for _, one in steps))
        gained = (1 - acceptance ** (count + 1)) / (1 - acceptance)
        arithmetic = gained / (1 + count * _share_of_head(SHAPES[shape]))
        found.append({
            "drafts": count, "ms_plain": 1e3 * alone, "step_ms": 1e3 * step, "tokens_a_step": made, "expected_tokens": gained,
            "speed": made * alone / step, "arithmetic": arithmetic, "of_arithmetic": made * alone / step / arithmetic,
        })  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
    both = [[(await begin(driver, 32, i))[0] for i in range(max(STREAMS))] for driver in (plain, headed)]
    taken = [
        [await step_seconds(driver, seqs, 6) for driver, seqs in zip((plain, headed), both, strict=True)]
        for _ in range(2)
    ]
    own, beside = (1e3 * min(times) for times in zip(*taken, strict=True))
    found.append({"streams": len(both[0]), "ms_without": own, "ms_with_head_that_drafts_nothing": beside})
    print(json.dumps(found[-1]), flush=True)
    for driver in (plain, headed):
        await driver.executor.shutdown()
    return found


def _share_of_head(shape: dict[str, Any]) -> float:
    """What a guess of the head reads, of what a step of the model reads: a layer with attention, the projection of hidden state
    and token, and the output layer."""
    sizes = hybrid_files.tensor_sizes(shape)
    numbers = {name: size[0] * size[1] for name, size in sizes.items() if len(size) == 2}
    layer = f"blk.{shape['layer_types'].index('full_attention')}."
    own = sum(number for name, number in numbers.items() if name.startswith(layer))
    return (own + 2 * shape["hidden_size"] ** 2 + numbers["token_embd.weight"]) / sum(numbers.values())


def rule(rounds: int, layers: int = 18, heads: int = 16, size: int = 128, tokens: int = 256) -> list[Result]:
    """Time the rule: of a prompt, and of steps of one token whose states are read from memory and written there; by one thread
    and by all."""
    kernels, channels = cpu_kernels(), 3 * heads * size
    places = DeltaPlaces(
        [(0, 0, channels)],
        [(h * size, (heads + h) * size) for h in range(heads)],
        [
            (h * size, (heads + h) * size, (2 * heads + h) * size, (3 * heads + h) * size, h, heads + h)
            for h in range(heads)
        ],
    )
    zeros, ones = torch.zeros(heads), torch.ones(size)
    taps = torch.full((channels, 4), 0.3)
    kernel = DeltaKernel(kernels, places, size, size, taps, zeros, zeros, ones, 1e-6)
    most, threads = 16, torch.get_num_threads()
    slots = LayerSlots([torch.zeros(most, 3 * channels + heads * size * size) for _ in range(layers)])
    found = []
    for count in dict.fromkeys((1, threads)):
        torch.set_num_threads(count)
        for name, items, rows in (("a prompt", 1, tokens), ("one stream", 1, 1), ("16 streams", most, 1)):
            slot, nothing = np.arange(items), np.empty(0, np.int64)
            step, taken = StateStep(slots, [rows] * items, slot, slot, [], nothing), []
            for _ in range(rounds * (8 if rows == 1 else 1)):
                x, rates = torch.randn(items * rows, 4 * heads * size), torch.randn(items * rows, 2 * heads)
                parts = [(x.clone(), rates.clone()) for _ in range(layers)]
                began = time.perf_counter()
                for layer, (row, rate) in enumerate(parts):
                    kernel(row, rate, step, layer, torch.bfloat16)
                taken.append((time.perf_counter() - began) / items / rows)
            found.append({"of": name, "threads": count, "ms_a_token": 1e3 * statistics.median(taken)})
            print(json.dumps(found[-1]), flush=True)
    torch.set_num_threads(threads)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("share", "depth", "head", "rule"))
    parser.add_argument("--shapes", default=",".join(TWINS))
    parser.add_argument("--depth", type=int, default=8000)
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    shapes = options.shapes.split(",")
    match options.what:
        case "share":
            result = asyncio.run(share(shapes, options.rounds))
        case "depth":
            result = asyncio.run(depth(shapes, options.depth, options.rounds))
        case "head":
            result = asyncio.run(head(options.acceptance, options.tokens, options.rounds))
        case _:
            result = rule(options.rounds)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
