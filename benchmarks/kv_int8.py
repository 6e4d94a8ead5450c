"""Attention over keys and values in int8 against bfloat16: Cohort's CPU kernel, one thread, in CPU time of that thread.

    OMP_NUM_THREADS=1 python -m benchmarks.kv_int8 [--rounds 9] [--isa NAME] [--json FILE]

Shapes are those of SmolLM2-135M, Qwen3-0.6B and Gemma 3 270M. Every layer has KV of its own, so that a decode reads memory and
not cache. Rounds alternate between the two dtypes; figures are medians, in milliseconds for all layers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays
from tools.neutral_paths import neutral

BLOCK = 16
SHAPES = {"smollm2-135m": (30, 9, 3, 64), "qwen3-0.6b": (28, 16, 8, 128), "gemma3-270m": (18, 4, 1, 256)}
"""Layers, query heads, key heads, head_dim."""
STEPS = {
    "decode at 128": (1, 127), "decode at 1,024": (1, 1023), "decode at 4,096": (1, 4095), "prompt of 128": (128, 0),
    "256 after 1,024": (256, 1024),
}  # fmt: skip
"""(new tokens, tokens before them)."""


def spec_of(shape: tuple[int, int, int, int], kv_dtype: torch.dtype | None) -> KvSpec:
    layers, heads, kv_heads, dim = shape
    return KvSpec(
        layers, heads, kv_heads, dim, torch.bfloat16, torch.device("cpu"), dim**-0.5, None, (None,) * layers, kv_dtype
    )  # fmt: skip


def filled(spec: KvSpec, attention: CpuAttention, tokens: int) -> tuple[KvCache, np.ndarray]:
    """KV of one sequence of random numbers over blocks in random order, and its block table."""
    blocks = -(-tokens // BLOCK)
    cache = KvCache(spec, blocks, BLOCK)
    table = np.random.default_rng(0).permutation(blocks).astype(np.int32)[None]
    for begin in range(0, tokens, 512):
        count = min(512, tokens - begin)
        attend = attention.begin(step_of(count, begin, table), cache)
        for layer in range(spec.num_layers):
            attend(layer, *numbers(spec, count))
    return cache, table


def step_of(tokens: int, past: int, table: np.ndarray) -> StepArrays:
    return StepArrays(np.zeros(tokens, np.int64), np.array([tokens]), np.array([past]), table)


def numbers(spec: KvSpec, tokens: int) -> list[torch.Tensor]:
    heads = (spec.num_heads, spec.num_kv_heads, spec.num_kv_heads)
    return [torch.randn(tokens, count, spec.head_dim).bfloat16() for count in heads]


def measure(
    shape: tuple[int, int, int, int], tokens: int, past: int, isa: str | None, rounds: int
) -> dict[str, float]:
    """Median CPU milliseconds of all layers by dtype of KV. The first round is not counted."""
    attention = CpuAttention(isa, 1)
    made = {}
    for name, dtype in (("bfloat16", None), ("int8", torch.int8)):
        spec = spec_of(shape, dtype)
        made[name] = spec, *filled(spec, attention, past + tokens), numbers(spec, tokens)
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds + 1):
        for name, (spec, cache, table, qkv) in made.items():
            began = time.thread_time()
            attend = attention.begin(step_of(tokens, past, table), cache)
            for layer in range(spec.num_layers):
                attend(layer, *qkv)
            times[name].append(1e3 * (time.thread_time() - began))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--isa")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, dict[str, float]]] = {}
    for model, shape in SHAPES.items():
        found[model] = {}
        for name, (tokens, past) in STEPS.items():
            taken = measure(shape, tokens, past, options.isa, options.rounds)
            found[model][name] = taken
            ratio = taken["int8"] / taken["bfloat16"]
            print(
                f"{model:14} {name:17} bf16 {taken['bfloat16']:9.3f}  int8 {taken['int8']:9.3f}  ratio {ratio:.2f}",
                flush=True,
            )
    if options.json:
        isa = CpuAttention(options.isa).name
        options.json.write_text(neutral(json.dumps({"kernels": isa, "milliseconds": found}, indent=2)) + "\n")


if __name__ == "__main__":
    main()
