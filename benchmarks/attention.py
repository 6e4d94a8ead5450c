"""Attention over paged KV: Cohort's CPU kernel against torch's gather and SDPA, for the shape of Qwen3-0.6B in bfloat16.

    python -m benchmarks.attention [--rounds 7] [--threads N] [--isa NAME] [--json FILE] [--only WORD] [--ours]
                                    [--memory own|file] [--kv bf16|int8]

Times are of 28 layers, each with KV of its own, so that decode reads memory and not cache. Rounds alternate between the two;
figures are medians; `--ours` measures the kernel alone, and so does `--kv int8`. `--memory file`: the KV lies in a memory file,
as it does where it outlives its process, in pages as the system gives them. GFLOP/s count 4 * head_dim per query, head and
visible key; GB/s the keys and values of visible tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import mmap
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from executors.llm.attention.backend import AttentionBackend
from executors.llm.attention.cpu_attention import CpuAttention
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 28, 16, 8, 128, 16
SPEC = KvSpec(
    LAYERS,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    torch.bfloat16,
    torch.device("cpu"),
    HEAD_DIM**-0.5,
    None,
    (None,) * LAYERS,
)
MAX_CACHED = 40_000
"""Tokens of KV of one layer that are kept apart; beyond, sequences share blocks, of which there are still megabytes."""

Items = list[tuple[int, int]]
"""(new tokens, tokens before them) of each sequence."""


def workloads() -> dict[str, Items]:
    """By name."""
    found: dict[str, Items] = {}
    for batch in (1, 8, 32):
        for context in (128, 1024, 4096):
            found[f"decode {batch} x {context}"] = [(1, context - 1)] * batch
    found["decode 1 x 8000"] = [(1, 7999)]
    for chunk in (16, 64, 512):
        for context in (0, 512, 2048):
            found[f"chunk {chunk} after {context}"] = [(chunk, context)]
    for chunk in (2, 4, 13, 64):
        found[f"extend 8 x {chunk} after 7000"] = [(chunk, 7000)] * 8
    found["prefill 32 x 128"] = [(128, 0)] * 32
    return found


def make_cache(memory: str, kv: str = "bf16") -> KvCache:
    """KV of all layers in the process's own memory ("own") or in that of a memory file ("file"), filled.

    Raises TypeError where KV cannot be placed in memory that is given.
    """
    spec = replace(SPEC, kv_dtype=torch.int8) if kv == "int8" else SPEC
    cache = _empty(spec, memory)
    for layer in cache.layers:
        if kv == "int8":
            codes = BLOCK * (spec.bytes_per_cell() - torch.float32.itemsize)
            layer[..., :codes] = torch.randint(-127, 128, (*layer.shape[2:3], codes), dtype=torch.int8)
            layer[..., codes:] = torch.full((BLOCK,), 0.01).view(torch.int8)
        else:
            layer.copy_(torch.randn(layer.shape[1:]).to(spec.dtype))
    return cache


def _empty(spec: KvSpec, memory: str) -> KvCache:
    blocks = MAX_CACHED // BLOCK
    if memory == "own":
        return KvCache(spec, blocks, BLOCK)
    size = blocks * spec.bytes_per_block(BLOCK)
    file = os.memfd_create("benchmark")
    os.ftruncate(file, size)
    mapping = mmap.mmap(file, size, flags=mmap.MAP_SHARED)
    with contextlib.suppress(OSError):  # a kernel without large pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return KvCache(spec, blocks, BLOCK, memory=np.frombuffer(mapping, np.uint8))  # type: ignore[call-arg]


def make_step(items: Items, cache: KvCache) -> StepArrays:
    """The items over blocks in random order."""
    lens, past = (np.array(column, np.int64) for column in zip(*items, strict=True))
    needed = -(-(lens + past) // BLOCK)
    tables = np.zeros((len(items), int(needed.max())), np.int32)
    free = np.random.default_rng(0).permutation(cache.num_blocks)
    begin = 0
    for table, count in zip(tables, needed.tolist(), strict=True):
        if begin + count > len(free):
            begin = 0
        table[:count] = free[begin : begin + count]
        begin += count
    return StepArrays(np.zeros(lens.sum(), np.int64), lens, past, tables)


def measure(items: Items, cache: KvCache, backends: list[AttentionBackend], rounds: int) -> list[list[float]]:
    """Milliseconds of 28 layers, by backend and round; the first round is not counted."""
    step = make_step(items, cache)
    q, k, v = (
        torch.randn(len(step.token_ids), heads, HEAD_DIM).to(SPEC.dtype)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    )
    times: list[list[float]] = [[] for _ in backends]
    for _ in range(rounds + 1):
        for backend, taken in zip(backends, times, strict=True):
            taken.append(1e3 * timed(lambda backend=backend: run(backend, step, cache, q, k, v)))
    return [taken[1:] for taken in times]


def run(backend: AttentionBackend, step: StepArrays, cache: KvCache, *qkv: torch.Tensor) -> None:
    attend = backend.begin(step, cache)
    for layer in range(LAYERS):
        attend(layer, *qkv)


def timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--ours", action="store_true", help="without torch's attention")
    parser.add_argument("--memory", choices=("own", "file"), default="own")
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16", help="the dtype of keys and values")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]
    cache = make_cache(options.memory, options.kv)
    ours = CpuAttention(options.isa)
    print(
        f"{ours.name} against torch {torch.__version__}, {torch.get_num_threads()} threads; ms for {LAYERS} layers\n"
    )
    print("| step | torch | cohort | times faster | GFLOP/s | GB/s |\n|---|---|---|---|---|---|")
    results: dict[str, dict[str, list[float]]] = {}
    with torch.inference_mode():
        for name, items in workloads().items():
            if options.only not in name:
                continue
            *torchs, cohorts = measure(
                items,
                cache,
                [ours] if options.ours or options.kv == "int8" else [TorchAttention(), ours],
                options.rounds,
            )
            slow, fast = (statistics.median(torchs[0]) if torchs else math.nan), statistics.median(cohorts)
            pairs = sum(new * past + new * (new + 1) // 2 for new, past in items)
            tokens = sum(new + past for new, past in items)
            flops = 4.0 * HEAD_DIM * HEADS * pairs * LAYERS / fast / 1e6
            rate = cache.spec.bytes_per_token() * tokens / fast / 1e6
            print(
                f"| {name} | {slow:.1f} | {fast:.2f} | {slow / fast:.1f} | {flops:.0f} | {rate:.1f} |",
                flush=True,
            )
            results[name] = {"torch_ms": torchs[0] if torchs else [], "cohort_ms": cohorts}
    if options.json:
        about = {
            "commit": subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip(),
            "kernel": ours.name, "torch": torch.__version__, "threads": torch.get_num_threads(),
            "cpu": cpu_name(), "load_before": load, "memory": options.memory, "kv": options.kv,
        }  # fmt: skip
        options.json.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
