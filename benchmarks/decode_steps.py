"""Decode steps of n rows on a CPU, beside what reading and multiplying take at least on this machine.

    python -m benchmarks.decode_steps [--kinds bf16,int8,q4_k_m] [--rows 1,4,8,12,16,24,32,64] [--rounds 9] [--json FILE]

Steps are those of a 0.6B shape with random weights, driven by hand behind 100 tokens each; a figure is the median of the rounds,
in which numbers of rows take turns. The bound of a step is the longer of

    bytes / rate of reading             weights as they are packed, and keys and values of all rows
    operations / rate of products       by format of weights: its rate with 256 rows, measured in the same run

and a step is within the limit if it takes at most 1.2 times its bound and 4 ms. Attention's products, norms and sampling are not
part of the bound. Reading is measured before and after each kind, and the better counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from benchmarks.peers import gguf_files, limits, roofline
from benchmarks.shapes import matrix_flops, write_shape
from benchmarks.states import begin, serve
from executors.contract import OptimizationConfig
from executors.gguf.file import read_gguf
from executors.kernels.cpu import CpuKernels, PackedWeight, cpu_kernels, packed_bytes
from executors.testing.driver import Driver, Feed

KINDS = ("bf16", "int8", "q4_k_m")
ROWS = (1, 4, 8, 12, 16, 24, 32, 64)
SHAPE = "qwen3-0.6b"
_BEHIND, _FACTOR, _SLACK_S = 100, 1.2, 0.004
_OUTER, _INNER, _MANY = 6144, 1024, 256
_FLOATS = {"bf16": "bfloat16", "int8": "int8"}

Operations = Mapping[str, float]
"""Operations of one row by the format of the weights: `kind` of `PackedWeight`."""


def product_rate(kernels: CpuKernels, kind: str) -> float:
    """Return operations a second of many rows with weights of a format; the best of several rounds."""
    weight = PackedWeight(kernels, _OUTER, _INNER, kind)
    if kind in _FLOATS.values():
        weight.fill(torch.randn(_OUTER, _INNER), 0)
    else:
        numbers, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        shape = (_OUTER, _INNER // numbers * num_bytes)
        weight.fill_blocks(np.random.default_rng(0).integers(0, 60, shape, dtype=np.uint8), 0)
    x, best = torch.randn(_MANY, _INNER).bfloat16(), float("inf")
    for _ in range(12):
        began = time.perf_counter()
        weight(x)
        best = min(best, time.perf_counter() - began)
    return 2.0 * _OUTER * _INNER * _MANY / best


def costs(kernels: CpuKernels, kind: str) -> tuple[float, float, Operations]:
    """Return bytes of the weights, bytes of one position's keys and values, and operations of one row."""
    if kind in _FLOATS:
        cost, packed = roofline.of_shape(SHAPE), _FLOATS[kind]
        per_number = packed_bytes(kernels, _OUTER, _INNER, packed) / (_OUTER * _INNER)
        operations = matrix_flops(SHAPE, 1) + cost.head_operations
        return operations / 2 * per_number, cost.kv_bytes, {packed: operations}
    path = gguf_files.ensure(f"{SHAPE}-{kind}")
    cost, found = roofline.of_gguf(path), Counter[str]()
    tensors = read_gguf(path, arrays=False).tensors
    for name, tensor in tensors.items():
        if len(tensor.shape) > 1 and (name != "token_embd.weight" or "output.weight" not in tensors):
            found[tensor.type] += 2 * int(np.prod(tensor.shape, dtype=np.int64))
    return cost.weight_bytes, cost.kv_bytes, {name: float(number) for name, number in found.items()}


async def _started(kind: str, streams: int, folder: Path) -> Driver:
    if kind not in _FLOATS:
        return await serve(gguf_files.ensure(f"{SHAPE}-{kind}"), streams, 1024)
    how = OptimizationConfig(quantization="int8") if kind == "int8" else OptimizationConfig()
    path = write_shape(SHAPE, folder)
    return await serve(path, streams, 1024, dtype="bfloat16", load_format="dummy", optimization=how)


async def steps(kind: str, rows: Sequence[int], rounds: int) -> dict[int, list[float]]:
    """Return seconds of steps by the number of their rows."""
    taken = {count: list[float]() for count in rows}
    with tempfile.TemporaryDirectory() as folder:
        driver = await _started(kind, max(rows), Path(folder))
        for thread in threading.enumerate():
            if (
                thread.name == "kv-memory"
            ):  # makes memory of blocks resident, which servers do before the first request
                thread.join()
        seqs = [(await begin(driver, _BEHIND, number))[0] for number in range(max(rows))]
        for number in range(rounds + 1):
            for count in rows:
                began = time.perf_counter()
                await driver.step(*(Feed(seq) for seq in seqs[:count]))
                if number:
                    taken[count].append(time.perf_counter() - began)
        await driver.executor.shutdown()
    return taken


def measure(kind: str, rows: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure a kind's steps and their bounds, and print a line for each number of rows."""
    kernels = cpu_kernels()
    weights, per_position, operations = costs(kernels, kind)
    rates = {name: product_rate(kernels, name) for name in operations}
    before = limits.reading()
    taken = asyncio.run(steps(kind, rows, rounds))
    rate, found = 1e9 * max(before, limits.reading()), list[dict[str, Any]]()
    told = ", ".join(f"{name} {1e-9 * of:.0f} GOP/s" for name, of in rates.items())
    print(f"\n{kind}: reading {1e-9 * rate:.1f} GB/s; products {told}\n")
    print("| rows | ms | read | multiply | limit | of the limit |\n|---|---|---|---|---|---|")
    for count, seconds in taken.items():
        reading = (weights + count * (_BEHIND + rounds) * per_position) / rate
        multiplying = count * sum(number / rates[name] for name, number in operations.items())
        limit = _FACTOR * max(reading, multiplying) + _SLACK_S
        step = statistics.median(seconds)
        found.append({
            "kind": kind, "rows": count, "ms": 1e3 * step, "read_ms": 1e3 * reading, "multiply_ms": 1e3 * multiplying,
            "limit_ms": 1e3 * limit, "within": step <= limit, "rounds": [1e3 * one for one in seconds],
        })  # fmt: skip
        print(
            f"| {count} | {1e3 * step:.1f} | {1e3 * reading:.1f} | {1e3 * multiplying:.1f} | {1e3 * limit:.1f} "
            f"| {step / limit:.2f} |",
            flush=True,
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows = [int(one) for one in options.rows.split(",")]
    found = [line for kind in options.kinds.split(",") for line in measure(kind, rows, options.rounds)]
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
