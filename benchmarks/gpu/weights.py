"""Products whose weights are narrower than bf16, at the rows of a few streams, and mixtures of experts: beside bf16's own.

Sizes are those of Qwen3-8B, and of Qwen3-30B-A3B for experts. What quantizes the activations is a launch of its own and is in
the times, as it is in a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.extend import compile_all
from benchmarks.gpu.kernels import Bench
from benchmarks.gpu.timing import noise
from executors.kernels.device_layouts import DeviceRows, table_of
from executors.kernels.triton.experts import ExpertWeights
from executors.kernels.triton.few_rows import (
    MOST_NARROW_ROWS,
    FewRowsWorkspace,
    added_product,
    normed_product,
)
from executors.kernels.triton.stored import matmul
from executors.llm.fused.triton_experts import TritonExperts
from executors.llm.kernel_support import kernel_check
from executors.llm.model import fp8

ROWS = (1, 8, 16, 64)
PRODUCTS = {"o": (4096, 4096), "gate and up": (24_576, 4096)}
"""(out, in) of Qwen3-8B's narrowest and widest products."""
STORED = ("Q4_K", "Q6_K", "uint4-g128")
EXPERTS, TOP_K, HIDDEN, INNER = 128, 8, 2048, 768
"""Of Qwen3-30B-A3B."""

Product = Callable[[torch.Tensor], torch.Tensor]


def measure(bench: Bench) -> None:
    """All rows, those of narrow weights first."""
    _products(bench)
    _few_rows(bench)
    _experts(bench)


def _products(bench: Bench) -> None:
    for name, (wide, deep) in ({"tiny": (64, 256)} if bench.tiny else PRODUCTS).items():
        drawn = noise(bench.device)
        for kind, (num_bytes, products) in weights_of(bench, drawn, wide, deep).items():
            rows_calls: dict[int, list[Callable[[], object]]] = {}
            for rows in (3, 6) if bench.tiny else ROWS:
                xs = [_random(bench, drawn, rows, deep) for _ in products]
                if (
                    bench.tiny and kind in STORED
                ):  # float32 has no matrix instruction, and stored weights another way
                    xs = [x.half() for x in xs]
                rows_calls[rows] = [
                    functools.partial(one, x) for one, x in zip(products, xs, strict=True)
                ]  # fmt: skip
            compile_all([calls[0] for calls in rows_calls.values()], bench.device)
            for rows, calls in rows_calls.items():
                title = f"product {name} of 8B in {kind}, {rows} rows"
                if kind == "e4m3":
                    calls[0]()
                    # Known only when it was tried: cuBLASLt has no kernel with scales per row for some sizes.
                    title += ", one scale and a pass" if (rows, wide, deep) in fp8._REFUSED else ""
                moved = num_bytes + bench.dtype.itemsize * rows * (wide + deep)
                bench.add(title, calls, moved, 2.0 * rows * wide * deep)


def _few_rows(bench: Bench) -> None:
    """Norm and product with e4m3 in one launch, and a product that adds to a residual: steps of one and four tokens."""
    name, (wide, deep) = ("tiny", (64, 256)) if bench.tiny else ("o", PRODUCTS["o"])
    drawn = noise(bench.device)
    weights = [
        fp8.Fp8Weight(wide, deep, bench.device, False, triton=True) for _ in range(bench.copies(wide * deep))
    ]
    for weight in weights:
        weight.fill(_random(bench, drawn, wide, deep).float(), 0)
    norm, workspace = _random(bench, drawn, deep), FewRowsWorkspace([(wide, deep)], bench.device)
    for rows in (1, MOST_NARROW_ROWS):
        x, residual = _random(bench, drawn, rows, deep), _random(bench, drawn, rows, wide)
        ways: dict[str, list[Callable[[], object]]] = {
            f"norm and product {name} of 8B in e4m3, {rows} rows, in one launch": [
                functools.partial(normed_product, x, norm, 1e-6, one.data, scales=one.scales) for one in weights
            ],
            f"product {name} and add of 8B in e4m3, {rows} rows, in one launch": [
                functools.partial(added_product, x, one.data, residual, workspace, scales=one.scales)
                for one in weights
            ],
        }  # fmt: skip
        compile_all([calls[0] for calls in ways.values()], bench.device)
        for title, calls in ways.items():
            moved = weights[0].num_bytes + bench.dtype.itemsize * rows * (wide + deep)
            bench.add(title, calls, moved, 2.0 * rows * wide * deep)


def weights_of(
    bench: Bench, drawn: torch.Generator, wide: int, deep: int
) -> dict[str, tuple[int, list[Product]]]:
    """By kind: bytes of a weight, and products with as many weights as no cache keeps."""
    found: dict[str, tuple[int, list[Product]]] = {}
    size = bench.dtype.itemsize * wide * deep
    plain = [_random(bench, drawn, wide, deep) for _ in range(bench.copies(size))]
    found["bf16"] = size, [functools.partial(F.linear, weight=weight) for weight in plain]
    for kind, blocks in (("e4m3", False), ("e4m3 blocks", True)):
        narrow = [
            fp8.Fp8Weight(wide, deep, bench.device, blocks, fp8.GROUP if blocks else 1, triton=True)
            for _ in range(bench.copies(wide * deep))
        ]
        for number, weight in enumerate(narrow):
            weight.fill(plain[number % len(plain)].float(), 0)
        found[kind] = narrow[0].num_bytes, [functools.partial(one, bias=None) for one in narrow]
    for kind in STORED[:1] if bench.tiny else STORED:
        one = DeviceRows.empty(kind, wide, deep, torch.device("cpu"))
        rows = [
            kernel_check.random_rows(drawn, kind, wide, deep, bench.device)
            for _ in range(bench.copies(one.num_bytes))
        ]
        table = table_of(one.layout, bench.device)
        found[kind] = one.num_bytes, [functools.partial(_stored, weight, table) for weight in rows]
    return found


def _stored(weight: DeviceRows, table: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(len(x), weight.rows)
    matmul(x, weight, table, None, out)
    return out


def _experts(bench: Bench) -> None:
    """A whole mixture: routing, two products and the sum. Bytes are those of the experts that were chosen, and of no other."""
    count, top_k, hidden, inner = (4, 2, 64, 32) if bench.tiny else (EXPERTS, TOP_K, HIDDEN, INNER)
    drawn, size = noise(bench.device), bench.dtype.itemsize
    one = 3 * hidden * inner * size
    routing: Any = SimpleNamespace(
        top_k=top_k, num_experts=count, normalized=True, softmax_last=False, alpha=0.0, limit=0.0
    )
    about: Any = SimpleNamespace(moe=routing, activation="silu", steady=False)
    layers = [
        TritonExperts(
            about,
            ExpertWeights(_random(bench, drawn, count, 2 * inner, hidden)),
            ExpertWeights(_random(bench, drawn, count, hidden, inner)),
            bench.dtype,
        )
        for _ in range(1 if bench.tiny else 2)
    ]
    cases: dict[str, tuple[list[Callable[[], object]], float, float]] = {}
    for rows in (3,) if bench.tiny else (*ROWS, 256):
        calls: list[Callable[[], object]] = []
        used = 0
        for layer in layers:
            x, logits = _random(bench, drawn, rows, hidden), _random(bench, drawn, rows, count)
            used += len(logits.float().topk(top_k, 1).indices.unique())
            calls.append(functools.partial(layer.mix, x, logits))
        moved = one * used / len(layers) + size * 2 * rows * hidden
        cases[f"experts of 30B-A3B, {rows} rows"] = calls, moved, 2.0 * rows * top_k * 3 * hidden * inner
    compile_all([calls[0] for calls, _, _ in cases.values()], bench.device)
    for title, (calls, moved, flops) in cases.items():
        bench.add(title, calls, moved, flops)


def _random(bench: Bench, drawn: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=bench.device, generator=drawn).to(bench.dtype)
