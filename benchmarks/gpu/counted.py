"""Three kernels of a decode and a prompt step, each launched once, for a program that reads the hardware's counters.

    python -m benchmarks.gpu.counted [--tiny]

Prints, a line of JSON each, {"kernel": name, "read": bytes of inputs that it has to read}.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from benchmarks.gpu import interpreted

if not torch.cuda.is_available():
    interpreted.prepare()

from benchmarks.gpu.extend import Problem, processors_of, today
from benchmarks.gpu.kernels import HIDDEN, INNER, Bench
from benchmarks.gpu.timing import Limits, noise
from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention
from executors.kernels.triton.few_rows import normed_product
from executors.llm.attention.triton_attention import piece_rule
from executors.llm.model.caches import KvSpec

HEADS = (16, 8, 128)
DECODED, CHUNK = 32_767, (512, 7_000)
"""Keys before the one row's, and a chunk behind others."""


def main(tiny: bool) -> None:
    """Launch each; what they are compiled for is in Triton's cache if this ran before."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    # Of one layer: no launch is repeated.
    bench = Bench(device, dtype, Limits(1.0, 1.0, "none"), True, lambda figures: None)
    heads = (2, 1, 16) if tiny else HEADS
    with torch.inference_mode():
        _split(Problem(bench, heads, 1, 200 if tiny else DECODED))
        problem = Problem(bench, heads, *((3, 70) if tiny else CHUNK))
        today(problem).calls[0]()
        _told("_extend_kernel", problem.layers[0].nbytes + problem.q.nbytes)
        deep, wide = (64, 64) if tiny else (HIDDEN, 2 * INNER)
        drawn = noise(device)
        x, weight = (torch.randn(rows, deep, device=device, generator=drawn).to(dtype) for rows in (1, wide))
        normed_product(x, torch.ones_like(x[0]), 1e-6, weight, activation="silu")
        _told("_one_row_kernel", weight.nbytes)
    if device.type == "cuda":
        torch.cuda.synchronize()


def _split(problem: Problem) -> None:
    """Decode attention of one row, whose keys are shared by all processors."""
    device, dtype, sizes = problem.q.device, problem.q.dtype, (problem.heads, problem.kv_heads, problem.dim)
    spec = KvSpec(1, *sizes, dtype, device, problem.dim**-0.5, None, (None,))
    pieces = piece_rule(spec, processors_of(device), False).cut(np.array([problem.keys]))
    lengths = problem.there(np.array([problem.keys]))
    decode_attention(
        problem.q, problem.layers[0], torch.empty_like(problem.q), problem.tables, lengths, spec.scale,
        problem.there(pieces), DecodeWorkspace(len(pieces), *sizes, device),
    )  # fmt: skip
    _told("_split_kernel", problem.layers[0].nbytes)


def _told(kernel: str, num_bytes: int) -> None:
    print(json.dumps({"kernel": kernel, "read": num_bytes}), flush=True)


if __name__ == "__main__":
    main("--tiny" in sys.argv)
