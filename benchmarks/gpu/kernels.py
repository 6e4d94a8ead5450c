"""Each kernel alone: bytes against the measured copy bandwidth, operations against the measured matrix product.

Shapes are those of Qwen3-0.6B, dtype bf16. Attention goes through the interface that the executor uses, so that every backend
is measured that can be had here; others are reported as not run. Bytes are those that must be moved: each input read once, each
output written once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.gpu import interpreted, timing
from benchmarks.gpu import sampling as check_sampling
from benchmarks.gpu.part import Found, Options
from benchmarks.gpu.timing import Limits, measure_limits, noise, seconds_of
from executors.contract.errors import ConfigError
from executors.kernels.device_layouts import DeviceRows, table_of
from executors.kernels.triton.activation import gated
from executors.kernels.triton.few_rows import MOST_ROWS, FewRowsWorkspace, added_product, normed_product
from executors.kernels.triton.norms import rms_norm
from executors.kernels.triton.rotary import rotate_and_store
from executors.kernels.triton.stored import matmul
from executors.llm.kernel_support import kernel_check
from executors.llm.kernel_support.kernel_choice import choose_attention
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 1024, 3072, 16, 8, 128
STORED = ("Q4_0", "Q4_K", "Q6_K", "Q8_0", "uint4-g128")
"""Formats of weights as files hold them."""
SETS = 4
"""Copies of the operands that calls take in turn, where one of them fills a cache."""
_BEYOND_CACHES, _MOST_COPIES = 256 << 20, 128
PRODUCTS = (
    ("qkv", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    ("o", HIDDEN, HEADS * HEAD_DIM),
    ("gate and up", 2 * INNER, HIDDEN),
    ("down", HIDDEN, INNER),
    ("lm_head", check_sampling.WIDTH, HIDDEN),
)
"""Of a step, each with (out, in) of its weights."""
DECODE_TARGET = 0.8
"""Share of the bandwidth that decode attention of 256 sequences is to reach."""
BACKENDS = (
    ("triton", 16),
    ("triton", 32),
    ("triton", 64),
    ("flash-attn", 16),
    ("flash-attn", 256),
    ("varlen", 256),
    ("torch", 16),
)
"""By the names of `--attention-backend`, with tokens a page: flash-attn 3 takes those of 16, its second version those of 256."""
SERVED = (("flash-attn", 16), ("triton", 16))
"""What a server takes that is told nothing, the first that is there: the target is for that one."""
_JUDGED = "decode 256 x 1024"

Items = list[tuple[int, int]]
"""(new tokens, tokens before them) of each sequence."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how kernels are timed, and what was found so far."""

    device: torch.device
    dtype: torch.dtype
    limits: Limits
    tiny: bool
    found: Found
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def sets(self) -> int:
        """Copies of the operands."""
        return 1 if self.tiny else SETS

    def copies(self, num_bytes: int) -> int:
        """Of operands that take so many bytes: so many that no cache keeps them all."""
        return 1 if self.tiny else max(SETS, min(_MOST_COPIES, -(-_BEYOND_CACHES // num_bytes)))

    def add(
        self, name: str, calls: list[Callable[[], object]], num_bytes: float, flops: float = 0.0
    ) -> float:
        """Time the calls; returns the share of the copy bandwidth."""
        seconds = seconds_of(calls, self.device)
        row: dict[str, Any] = {"us": 1e6 * seconds}
        share = num_bytes / seconds / self.limits.copy
        if num_bytes:
            row |= {"gb_per_s": num_bytes / seconds / 1e9, "share_of_copy": share}
        if flops:
            row |= {
                "tflops": flops / seconds / 1e12,
                "share_of_product": flops / seconds / self.limits.products,
            }
        self.put(name, row)
        return share

    def put(self, name: str, row: dict[str, Any]) -> None:
        """Keep a row and write it down."""
        self.rows[name] = row if timing.captured else row | {"captured": False}
        self.found({"kernels": self.rows})


def prepared(options: Options, found: Found) -> Bench:
    """Measure the device's limits, and return where to time kernels."""
    device = torch.device(options.device)
    if device.type == "cpu":
        interpreted.prepare()
    limits = measure_limits(device, options.tiny)
    found(limits.figures)
    # The interpreter computes products of bf16 operands wrongly.
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return Bench(device, dtype, limits, options.tiny, found)


def run(options: Options, found: Found) -> None:
    """What is measured first matters most."""
    bench = prepared(options, found)
    device = bench.device
    with torch.inference_mode():
        broken = _attention(bench)
        _fused(bench)
        _products(bench)
        _few_rows(bench)
        _stored(bench)
        check_sampling.measure(device, bench.dtype, options.tiny, bench.limits, bench.put)
    if broken:
        raise broken


# -- attention -----------------------------------------------------------------------------------------------------------


def attention_items(tiny: bool) -> dict[str, Items]:
    """By name."""
    if tiny:
        return {"decode 1 x 20": [(1, 19)], "extend 1 x 5": [(5, 0)]}
    return {
        "decode 256 x 1024": [(1, 1023)] * 256,
        "decode 1 x 32768": [(1, 32_767)],
        "decode 32 x 4096": [(1, 4_095)] * 32,
        "decode 255 x 500 and 1 x 32768": [(1, 32_767)] + [(1, 499)] * 255,
        "extend 1 x 8192": [(8_192, 0)],
        "extend 32 x 128": [(128, 0)] * 32,
        "extend 8 x 512 after 1024": [(512, 1_024)] * 8,
    }


def _attention(bench: Bench) -> Exception | None:
    """What went wrong with torch's, which the others can do without. Raises what goes wrong with ours."""
    shares: dict[tuple[str, int], float] = {}
    broken = None
    heads = (2, 1, 16) if bench.tiny else (HEADS, KV_HEADS, HEAD_DIM)
    for backend, page in BACKENDS[2:] if bench.tiny else BACKENDS:
        name = f"{backend}, pages of {page}"
        try:
            for case, items in attention_items(bench.tiny).items():
                share = _attend(bench, f"attention {case}, {name}", backend, page, items, heads)
                if backend != "torch" and case == _JUDGED:
                    shares[backend, page] = share
        except ConfigError as absent:
            bench.put(f"attention, {name}", {"not run": str(absent)})
            if backend == "triton":  # ours is there: it was tried, and is wrong
                raise
        except (RuntimeError, NotImplementedError) as error:
            # A library that fails is a finding of its own, and the other backends are measured all the same.
            said = str(error) or type(error).__name__
            bench.put(f"attention, {name}", {"failed": said.splitlines()[0][:300]})
            if backend == "triton":
                raise
            if backend == "torch":
                broken = error
    bench.found(judged(shares))
    return broken


def judged(shares: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    """Figures of decode attention's shares of the copy bandwidth, by (backend, tokens a page); none for none."""
    served = next((one for one in SERVED if one in shares), None)
    if served is None:
        return {}
    best = max(shares, key=lambda one: shares[one])
    return {
        "decode_attention": f"{served[0]}, pages of {served[1]}",
        "decode_attention_share_of_copy": shares[served],
        "best_decode_attention": f"{best[0]}, pages of {best[1]}",
        "best_decode_attention_share_of_copy": shares[best],
        "reached": shares[served] >= DECODE_TARGET,
    }


def _attend(
    bench: Bench, name: str, backend: str, page: int, items: Items, heads: tuple[int, int, int]
) -> float:
    q_heads, kv_heads, dim = heads
    sets = bench.sets
    spec = KvSpec(sets, q_heads, kv_heads, dim, bench.dtype, bench.device, dim**-0.5, None, (None,) * sets)
    pages = sum(-(-(new + past) // page) for new, past in items)
    chosen = choose_attention(spec, backend, block_size=page)
    cache = KvCache(spec, pages, page)
    drawn = noise(bench.device)
    for layer in cache.layers:
        layer.normal_(generator=drawn)
    step = step_of(items, pages, page)
    tokens = len(step.token_ids)
    q, k, v = (_random(bench, drawn, tokens, count, dim) for count in (q_heads, kv_heads, kv_heads))
    attend: Any = chosen.begin(step, cache)
    # Where keys and values are written by a kernel of its own, attention is timed without it.
    alone = getattr(attend, "attend", None)
    calls: list[Callable[[], object]] = [
        functools.partial(alone, layer, q) if alone else functools.partial(attend, layer, q, k, v)
        for layer in range(bench.sets)
    ]
    size = bench.dtype.itemsize
    visible = sum(new + past for new, past in items)
    moved = size * dim * (2 * kv_heads * visible + 2 * q_heads * tokens)
    pairs = sum(new * past + new * (new + 1) // 2 for new, past in items)
    decode = all(new == 1 for new, _ in items)
    return bench.add(name, calls, moved if decode else 0, 0.0 if decode else 4.0 * dim * q_heads * pairs)


def step_of(items: Items, pages: int, page: int) -> StepArrays:
    """The items over pages in random order."""
    lens, past = (np.array(column, np.int64) for column in zip(*items, strict=True))
    needed = -(-(lens + past) // page)
    tables = np.zeros((len(items), int(needed.max())), np.int32)
    order = np.random.default_rng(0).permutation(pages).astype(np.int32)
    ends = np.cumsum(needed)
    for table, end, count in zip(tables, ends.tolist(), needed.tolist(), strict=True):
        table[:count] = order[end - count : end]
    return StepArrays(np.zeros(int(lens.sum()), np.int64), lens, past, tables)


# -- what lies between products ------------------------------------------------------------------------------------------


def _fused(bench: Bench) -> None:
    hidden, inner, heads = (
        (64, 64, (2, 1, 16)) if bench.tiny else (HIDDEN, INNER, (HEADS, KV_HEADS, HEAD_DIM))
    )
    for rows in (3,) if bench.tiny else (256, 8_192):
        _norms(bench, rows, hidden)
        _gated(bench, rows, inner)
        _rotary(bench, rows, heads)


def _norms(bench: Bench, rows: int, hidden: int) -> None:
    weight = torch.ones(hidden, dtype=bench.dtype, device=bench.device)
    moved = 4 * rows * hidden * bench.dtype.itemsize
    drawn = noise(bench.device)
    both = [_random(bench, drawn, 2, rows, hidden) for _ in range(bench.copies(moved))]
    calls = [
        functools.partial(rms_norm, x, weight, 1e-6, residual=residual) for x, residual in both
    ]  # fmt: skip
    bench.add(f"add and norm, {rows} rows", [*calls], moved)


def _gated(bench: Bench, rows: int, inner: int) -> None:
    moved = 3 * rows * inner * bench.dtype.itemsize
    drawn = noise(bench.device)
    calls = [
        functools.partial(gated, _random(bench, drawn, rows, 2 * inner), "silu")
        for _ in range(bench.copies(moved))
    ]
    bench.add(f"silu and multiply, {rows} rows", [*calls], moved)


def _rotary(bench: Bench, rows: int, heads: tuple[int, int, int]) -> None:
    """Norms of heads, rotation and writing to the cache."""
    q_heads, kv_heads, dim = heads
    page = 16
    pages = -(-rows // page)
    drawn = noise(bench.device)
    angles = torch.rand(rows, dim // 2, device=bench.device, generator=drawn)
    table = torch.stack((angles.cos(), angles.sin()), 1)
    positions = torch.arange(rows, device=bench.device)
    cells = torch.randperm(pages * page, device=bench.device, generator=drawn)[:rows].to(torch.int32)
    norms = torch.ones(q_heads + kv_heads, dim, dtype=bench.dtype, device=bench.device)
    moved = 2 * rows * (q_heads + 2 * kv_heads) * dim * bench.dtype.itemsize
    calls = [
        functools.partial(
            rotate_and_store, _random(bench, drawn, rows, (q_heads + 2 * kv_heads) * dim),
            _random(bench, drawn, 2, pages, kv_heads, page, dim), cells, q_heads,
            positions=positions, table=table, norms=norms, eps=1e-6,
        )
        for _ in range(bench.copies(moved))
    ]  # fmt: skip
    bench.add(f"norm heads, rotate and write KV, {rows} rows", [*calls], moved)


# -- products ------------------------------------------------------------------------------------------------------------


def _products(bench: Bench) -> None:
    """With weights: over 90% of the bytes of a step with one sequence, whose speed is theirs.

    Inputs are counted and so are of their own, as weights are. Of all weights those of lm_head take most: four times 311 MB. A
    row takes some 30 ms, all of them a second or two.
    """
    for name, wide, deep in (("tiny", 64, 64),) if bench.tiny else PRODUCTS:
        drawn, size = noise(bench.device), bench.dtype.itemsize
        weights = [_random(bench, drawn, wide, deep) for _ in range(bench.copies(size * wide * deep))]
        for rows in (3,) if bench.tiny else (1, 32, 256):
            calls = [
                functools.partial(F.linear, _random(bench, drawn, rows, deep), weight) for weight in weights
            ]
            moved = size * (wide * deep + rows * (wide + deep))
            bench.add(f"product {name}, {rows} rows", [*calls], moved, 2.0 * rows * wide * deep)


def _few_rows(bench: Bench) -> None:
    """The products of a layer in steps of few tokens: with what lies around them in one launch, and launch by launch. The
    residual is added to behind a product in the one form, by the next norm in the other."""
    drawn, size = noise(bench.device), bench.dtype.itemsize
    for name, wide, deep in PRODUCTS[:-1]:  # not lm_head
        if bench.tiny:
            wide, deep = 128, 64
        adds, activation = name in ("o", "down"), "silu" if name == "gate and up" else None
        before, behind = (
            "" if adds else "norm and ",
            " and add" if adds else " and silu" if activation else "",
        )
        workspace = FewRowsWorkspace([(wide, deep)], bench.device)
        norm = torch.ones(deep, dtype=bench.dtype, device=bench.device)
        # One launch for a norm and a product is of one row.
        for rows in (1, 3) if bench.tiny else (1, MOST_ROWS):
            if rows > 1 and not adds:
                continue
            ways: dict[str, list[Callable[[], object]]] = {"in one launch": [], "launch by launch": []}
            for _ in range(bench.copies(size * wide * deep)):
                weight, residual = _random(bench, drawn, wide, deep), _random(bench, drawn, rows, wide)
                x, former = _random(bench, drawn, 2, rows, deep)
                one, apart = ways.values()
                if adds:
                    one.append(functools.partial(added_product, x, weight, residual, workspace))
                    apart.append(functools.partial(F.linear, x, weight))
                else:
                    one.append(
                        functools.partial(normed_product, x, norm, 1e-6, weight, activation=activation)
                    )
                    apart.append(functools.partial(_apart, x, former, norm, weight, activation))
            out = 2 * wide if adds else wide // 2 if activation else wide
            moved = size * (wide * deep + rows * (deep + out))
            for way, calls in ways.items():
                title = f"{before}product {name}{behind}, {rows} rows, {way}"
                bench.add(title, calls, moved, 2.0 * rows * wide * deep)


def _stored(bench: Bench) -> None:
    """Products with weights as files hold them, beside those of bf16 of the same sizes in `_products`: with few rows they should
    take as much less time as they have fewer bytes, with many a copy of the weight in bf16 more."""
    drawn, size = noise(bench.device), bench.dtype.itemsize
    for kind in STORED[1:2] if bench.tiny else STORED:
        for name, wide, deep in (
            (("tiny", 64, 256),) if bench.tiny else (*PRODUCTS[:-1], ("large", 4096, 4096))
        ):
            one = DeviceRows.empty(kind, wide, deep, torch.device("cpu"))
            weights = [
                kernel_check.random_rows(drawn, kind, wide, deep, bench.device)
                for _ in range(bench.copies(one.num_bytes))
            ]
            table = table_of(one.layout, bench.device)
            for rows in (3,) if bench.tiny else (1, 4, 16, 256):
                out = torch.empty(rows, wide, dtype=bench.dtype, device=bench.device)
                calls = [
                    functools.partial(matmul, _random(bench, drawn, rows, deep), weight, table, None, out)
                    for weight in weights
                ]
                moved = one.num_bytes + size * rows * (wide + deep)
                bench.add(f"product {name} in {kind}, {rows} rows", [*calls], moved, 2.0 * rows * wide * deep)


def _apart(
    x: torch.Tensor, residual: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, activation: str | None
) -> torch.Tensor:
    found = F.linear(rms_norm(x, norm, 1e-6, residual=residual), weight)
    return found if activation is None else gated(found, activation)


def _random(bench: Bench, drawn: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=bench.device, generator=drawn).to(bench.dtype)
