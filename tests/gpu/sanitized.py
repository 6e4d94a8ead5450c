"""Twelve launches for a program that watches memory accesses: those whose places come from the host, with padding, pieces and
parts that several programs add up.

    python -m tests.gpu.sanitized [--compile]

With --compile all are launched beside each other first, so that several processors compile. Each prints a line of JSON,
{"launch": name, "error": relative error against the formula}. Inputs are drawn on the CPU: few of torch's own kernels are
watched.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from benchmarks.gpu import interpreted

if not torch.cuda.is_available():
    interpreted.prepare()

from executors.kernels.triton.few_rows import (
    MOST_ROWS,
    FewRowsWorkspace,
    added_product,
    cut,
    normed_product,
)
from executors.kernels.triton.lora import add_lora
from executors.kernels.triton.rotary import rotate_and_store
from executors.llm.attention.key_pieces import PieceRule
from tests.gpu.lora_matrices import expected as with_loras
from tests.gpu.lora_matrices import lora_matrix, tiles_of
from tests.gpu.sanitizer import MOST_ERROR
from tests.gpu.test_attention import DEVICE, Batch, fresh
from tests.gpu.test_shared_extend import Shared, cut_at_random

DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
_COMPILERS = 8


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over that of what is expected; infinite if a number is none."""
    found, expected = found.cpu().double(), expected.cpu().double()
    far = float((found - expected).norm() / expected.norm())
    return far if math.isfinite(far) else math.inf


def decode(pieces: int, *, idle: int = 0, window: int | None = None, dim: int = 64) -> float:
    """Rows of many keys, of few and of one. `idle` pieces of padding, and with them a row without keys."""
    batch = Batch([1] * 4, [1023, 99, 3, 0], (4, 2), dim, 16, DTYPE, pieces)
    expected = batch.expected(window, None)
    if idle:
        batch.lengths[3], expected[3] = 0, 0.0
    cuts = PieceRule(1, 32, count=pieces).cut(batch.lengths)
    padded = np.concatenate((cuts, np.full((idle, cuts.shape[1]), -1)))
    out = fresh(batch)
    batch.decode(np.arange(4), padded, window, None, out, listed=pieces == 17)
    return error(out, expected)


def extend(window: int | None, padded: int) -> float:
    """Chunks of one tile, of two, and behind other keys."""
    batch = Batch([5, 70, 33], [0, 40, 150], (4, 2), 64, 16, DTYPE, 1)
    expected, out = batch.expected(window, None), fresh(batch)
    batch.extend(np.arange(3), window, None, out, padded=padded)
    return error(out, expected)


def shared_extend() -> float:
    """Keys of each tile in up to six pieces of any lengths."""
    batch = Batch([5, 70, 33], [0, 40, 250], (4, 2), 64, 16, DTYPE, 2)
    shared = Shared(batch, np.arange(3))
    pieces = cut_at_random(shared.keys, 6, np.random.default_rng(0))
    return error(shared.attend(pieces, None, None), batch.expected(None, None))


def rows_with_parts() -> float:
    """Rows of the smallest matrix instruction, their depth shared by several programs."""
    outputs, columns = 72, 2048
    assert cut(outputs, columns)[1] > 1
    x, weight, residual = drawn(MOST_ROWS, columns), drawn(outputs, columns), drawn(MOST_ROWS, outputs)
    found = residual.to(DEVICE, copy=True)
    workspace = FewRowsWorkspace([(outputs, columns)], DEVICE)
    for _ in range(2):  # the second one finds the counters as the first one leaves them
        added_product(x.to(DEVICE), weight.to(DEVICE), found, workspace)
    return error(found, residual.double() + 2.0 * (x.double() @ weight.double().T))


def one_row() -> float:
    """Gate and up behind a norm, of a number of outputs that fills no program."""
    x, norm, weight = drawn(1, 1024), drawn(1024).abs(), drawn(2 * 51, 1024)
    found = normed_product(x.to(DEVICE), norm.to(DEVICE), 1e-6, weight.to(DEVICE), activation="silu")
    wide = x.double()
    normed = wide / (wide.square().mean() + 1e-6).sqrt() * norm.double()
    gate, up = (normed @ weight.double().T).chunk(2, -1)
    return error(found, torch.nn.functional.silu(gate) * up)


def adapters(rows: int, size: int) -> float:
    """Rows of three adapters and of none, with tiles that are not used."""
    begins, outputs, inputs = (0, 64), 96, 128
    matrix = lora_matrix([(8, 8), (3, 3), (16, 16)], inputs, begins, outputs, 16, DTYPE, DEVICE)
    places = np.random.default_rng(rows).integers(-1, 3, rows)
    x, out = drawn(rows, inputs), drawn(rows, outputs)
    found = out.to(DEVICE, copy=True)
    add_lora(matrix, tiles_of(places, DEVICE, idle=2, size=size), x.to(DEVICE), found)
    return error(found, with_loras(matrix, places, x, out))


def stored_keys() -> float:
    """Keys and values to cells of a cache; rows of padding have none."""
    tokens, heads, kv_heads, dim, page = 9, 4, 2, 64, 16
    qkv, cells = drawn(tokens, (heads + 2 * kv_heads) * dim), torch.randperm(3 * page)[:tokens]
    cells[4:6] = -1
    kv = torch.zeros(2, 3, kv_heads, page, dim, dtype=DTYPE).to(DEVICE)
    q = rotate_and_store(qkv.to(DEVICE), kv, cells.to(DEVICE), heads)
    parts = qkv.view(tokens, -1, dim)
    expected = torch.zeros(2, 3 * page, kv_heads, dim, dtype=torch.float64)
    kept = cells >= 0
    for side, first in ((0, heads), (1, heads + kv_heads)):
        expected[side, cells[kept]] = parts[kept, first : first + kv_heads].double()
    found = kv.cpu().double().transpose(2, 3).reshape(2, 3 * page, kv_heads, dim)
    return max(error(q, parts[:, :heads]), error(found, expected))


def drawn(*shape: int) -> torch.Tensor:
    """Random numbers, on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DTYPE)


LAUNCHES: dict[str, Callable[[], float]] = {
    "decode in 17 pieces": lambda: decode(17),
    "decode in 49 pieces": lambda: decode(49),
    "decode with pieces of padding": lambda: decode(3, idle=5),
    "decode within a window": lambda: decode(7, window=333, dim=128),
    "extend": lambda: extend(None, 0),
    "extend with tiles of padding": lambda: extend(60, 5),
    "extend with shared keys": shared_extend,
    "16 rows with parts": rows_with_parts,
    "one row": one_row,
    "adapters of few rows": lambda: adapters(21, 16),
    "adapters of many rows": lambda: adapters(150, 64),
    "keys and values to their cells": stored_keys,
}


def main() -> int:
    """Launch all; 0 if all are right."""
    if "--compile" in sys.argv and DEVICE.type == "cuda":
        with ThreadPoolExecutor(_COMPILERS) as pool:
            list(pool.map(lambda launch: launch(), LAUNCHES.values()))
    worst = 0.0
    for name, launch in LAUNCHES.items():
        far = launch()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        print(json.dumps({"launch": name, "error": far}), flush=True)
        worst = max(worst, far)
    return 0 if worst <= MOST_ERROR else 1


if __name__ == "__main__":
    sys.exit(main())
