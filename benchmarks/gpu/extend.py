"""Extend attention: chunks behind long histories with all keys of a tile read by one program, with a tile's keys shared by
programs, as steps launch them, with other loops over keys, and torch's dense attention by cuDNN as a yardstick.

A figure counts if the same call gives what one program gives: each way is compared before it is timed. "Masks" is the loop of
the kernel that was recorded before, alone and with shared keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.kernels import Bench
from benchmarks.gpu.part import Failed
from benchmarks.gpu.timing import noise
from executors.kernels.triton.extend_attention import (
    FASTEST,
    MASKED,
    LoopOptions,
    extend_attention,
    is_plain,
    query_tiles,
    rows_per_tile,
)
from executors.kernels.triton.shared_extend import (
    ExtendWorkspace,
    shared_extend_attention,
    tile_keys,
    tuned,
)
from executors.llm.attention.tile_pieces import TileRule, num_places

Heads = tuple[int, int, int]
"""Query heads, key heads, numbers of a head."""
SHAPES: dict[str, Heads] = {"0.6B": (16, 8, 128), "8B": (32, 8, 128)}
CHUNKS = ((64, 7_000), (512, 7_000), (64, 32_000), (512, 32_000))
"""(new tokens, tokens before them) of one sequence: an agent's turn, and a chunk of a long prompt."""
LONG = (8_192, 0)
"""A prompt whose tiles fill the device: what the loop gains is seen here, sharing keys gains nothing."""
TINY_CHUNKS = ((3, 300),)
LOOPS: dict[str, tuple[LoopOptions, dict[str, int]]] = {
    "masks": (MASKED, {}),
    "no masks": (replace(MASKED, skip_masks=True), {}),
    "no masks, base 2": (replace(FASTEST, near=False), {}),
    "no masks, base 2, near": (FASTEST, {}),
    "tiles of 32": (FASTEST, {"depth": 32}),
    "tiles of 128": (FASTEST, {"depth": 128}),
    "rows of 64": (FASTEST, {"rows": 64, "warps": 4, "stages": 4}),
}
"""Of the first shape: the loop, and what differs from the table's row."""
LOOPS_OF_OTHERS = ("no masks, base 2, near",)
TINY_LOOPS = ("masks", "no masks, base 2, near", "rows of 64")
PROGRAMS = {"half of the programs": 0.5, "twice the programs": 2.0}
"""The row as it stands with another number of pieces than the device has programs: adding pieces up costs time, and so does a
program that reads more keys than others."""
PAGE = 16
MOST_DIFFERENCE = 0.02
"""Relative difference to today's kernel, in bf16."""
_CPU_PROGRAMS = 3
"""For each key head, where kernels are interpreted."""
_COMPILERS = 8
"""Threads that compile at once: a kernel takes some 3 s of one processor."""


class Problem:
    """One sequence's chunk over shuffled pages, of as many layers as fill the caches of the device."""

    def __init__(self, bench: Bench, heads: Heads, new: int, past: int) -> None:
        self.bench, self.new, self.past = bench, new, past
        self.heads, self.kv_heads, self.dim = heads
        self.keys = new + past
        size, drawn = bench.dtype.itemsize, noise(bench.device)
        pages = -(-self.keys // PAGE)
        layers = bench.copies(2 * self.keys * self.kv_heads * self.dim * size)
        self.layers = [
            _random(bench, drawn, 2, pages, self.kv_heads, PAGE, self.dim) for _ in range(layers)
        ]  # fmt: skip
        self.q = _random(bench, drawn, new, self.heads, self.dim)
        self.tables = self.there(np.random.default_rng(0).permutation(pages)[None, :])
        self.items = [self.there(np.array([number])) for number in (0, new, past)]
        """First row, rows and tokens before them of the only item."""
        # Read once: all keys and values. Written and read once: queries and results.
        self.num_bytes = size * self.dim * (2 * self.kv_heads * self.keys + 2 * self.heads * new)
        self.flops = 4.0 * self.dim * self.heads * (new * past + new * (new + 1) // 2)

    def there(self, values: np.ndarray) -> torch.Tensor:
        """An int32 array on the device."""
        return torch.from_numpy(values.astype(np.int32)).to(self.bench.device)

    def tiles(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Tiles of so many rows, and how many keys each sees."""
        queries = rows // (self.heads // self.kv_heads)
        q_lens, past = np.array([self.new]), np.array([self.past])
        tiles = query_tiles(q_lens, past, np.arange(1), queries)
        return tiles, tile_keys(tiles, q_lens, past, queries)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute a problem. `calls` for each layer, each of which returns [new, heads, head_dim]; `pieces` that its
    programs take, 0: one for each tile."""

    name: str
    calls: list[Callable[[], torch.Tensor]]
    pieces: int = 0


def today(problem: Problem, name: str = "today", loop: LoopOptions | None = None) -> Way:
    """The kernel that steps launch where no tile is cut; `loop`: None for the table's."""
    tiles = problem.there(problem.tiles(rows_per_tile(problem.heads // problem.kv_heads, problem.dim))[0])
    out, scale = torch.empty_like(problem.q), problem.dim**-0.5
    calls = [
        functools.partial(
            extend_attention, problem.q, kv, out, tiles, *problem.items, problem.tables, scale, loop=loop
        )
        for kv in problem.layers
    ]
    return Way(name, calls)


def shared(
    problem: Problem, name: str, loop: LoopOptions, changes: Mapping[str, int], processors: int, factor: float = 1.0
) -> Way:  # fmt: skip
    """Keys of a tile in pieces, as many as the device runs programs at once, times `factor`; `changes` of the table's row.
    Without any it is the row that a step of as many queries takes."""
    dtype, heads = problem.q.dtype, (problem.heads, problem.kv_heads, problem.dim)
    plain = is_plain(problem.new, *heads, dtype, window=None, softcap=None, sinks=False)
    general = replace(tuned(problem.dim, dtype, dtype), **changes)
    row = tuned(problem.dim, dtype, dtype, plain and loop == FASTEST) if not changes else general
    tiles, keys = problem.tiles(row.rows or rows_per_tile(problem.heads // problem.kv_heads, problem.dim))
    # A tile of 128 rows takes the registers of a multiprocessor, of 64 half of them (tests/gpu/compiled.py).
    programs = int(factor * processors * (2 if row.rows == 64 else 1)) // problem.kv_heads
    pieces = TileRule(programs, general.depth, parts=max(2, row.parts), least=row.least).cut(keys)
    if len(tiles) < programs and len(pieces) == len(tiles):
        raise Failed(f"{name}: no key is shared by {len(pieces)} pieces of {problem.keys} keys")
    workspace = ExtendWorkspace(
        max(1, num_places(pieces)), problem.heads, problem.kv_heads, problem.dim, problem.q.device, dtype
    )
    out, scale = torch.empty_like(problem.q), problem.dim**-0.5
    there = problem.there(tiles), problem.there(pieces)
    calls = [
        functools.partial(
            shared_extend_attention, problem.q, kv, out, *there, *problem.items, problem.tables, scale, workspace,
            loop=loop, row=row,
        )
        for kv in problem.layers
    ]  # fmt: skip
    return Way(f"shared, {name}", calls, len(pieces))


def dense(problem: Problem, grouped: bool) -> Way:
    """torch's attention by cuDNN over contiguous keys, whose heads are first: what a library reaches without pages. A chunk
    behind others sees all its keys, for torch's mask begins at the first key: up to `new` / 2 more than ours. `grouped`: key
    heads are shared by query heads, else each query head has a copy."""
    bench, drawn = problem.bench, noise(problem.bench.device)
    heads = problem.kv_heads if grouped else problem.heads
    q = problem.q.transpose(0, 1)[None]
    both = [_random(bench, drawn, 2, 1, heads, problem.keys, problem.dim) for _ in problem.layers]
    calls = [functools.partial(_by_cudnn, q, kv[0], kv[1], not problem.past, grouped) for kv in both]
    return Way("dense, torch's cuDNN", calls)


def _by_cudnn(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, causal: bool, grouped: bool
) -> torch.Tensor:
    """RuntimeError where it does not take the problem: no other kernel may take its place."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, keys, values, is_causal=causal, enable_gqa=grouped)


def measure(bench: Bench) -> None:
    """All rows; Failed names the first way whose results are wrong."""
    processors = processors_of(bench.device)
    shapes = {"tiny": (2, 1, 16)} if bench.tiny else SHAPES
    problems: list[tuple[str, Problem, list[Way]]] = []
    for number, (shape, heads) in enumerate(shapes.items()):
        for new, past in TINY_CHUNKS if bench.tiny else (*CHUNKS, LONG):
            problem = Problem(bench, heads, new, past)
            chosen = TINY_LOOPS if bench.tiny else LOOPS if not number else LOOPS_OF_OTHERS
            loops = {name: LOOPS[name] for name in chosen}
            ways = [
                today(problem),
                today(problem, "masks", MASKED),
                *(shared(problem, name, *loop, processors) for name, loop in loops.items()),
            ]
            if past and not bench.tiny:
                ways += [
                    shared(problem, name, FASTEST, {}, processors, one) for name, one in PROGRAMS.items()
                ]
            problems.append((f"extend {shape}, {new} behind {past}", problem, ways))
    compiled = compile_all([way.calls[0] for _, _, ways in problems for way in ways], bench.device)
    failures = iter(compiled)
    fit = [
        (title, problem, [way for way in ways if _compiled(bench, f"{title}, {way.name}", next(failures))])
        for title, problem, ways in problems
    ]
    wrong: list[str] = []
    for title, problem, ways in fit:
        wrong += _timed(bench, title, problem, ways)
    if wrong:
        raise Failed(f"{len(wrong)} ways of extend attention are wrong: {'; '.join(wrong[:3])}")


def measure_library(bench: Bench) -> None:
    """Rows of the yardstick, for the first shape."""
    shape, heads = ("tiny", (2, 1, 16)) if bench.tiny else next(iter(SHAPES.items()))
    for new, past in TINY_CHUNKS if bench.tiny else (LONG, CHUNKS[-1], CHUNKS[0]):
        problem = Problem(bench, heads, new, past)
        library(bench, f"extend {shape}, {new} behind {past}, dense, torch's cuDNN", problem)
    bench.put("extend, paged, cuDNN", {"not run": "cuDNN's frontend for Python is not used yet"})


def _compiled(bench: Bench, name: str, failure: Exception | None) -> bool:
    """Whether a way can be timed; its row says why it cannot. Raises for today's kernel, which all others are held against."""
    if failure is not None and name.endswith("today"):
        raise failure
    if failure is not None:
        bench.put(name, {"not run": f"{type(failure).__name__}: {failure!s:.300}"})
    return failure is None


def _timed(bench: Bench, title: str, problem: Problem, ways: list[Way]) -> list[str]:
    """Rows of the ways, the first of which the others are compared with; those that are wrong."""
    wrong = []
    expected = ways[0].calls[0]().clone()
    for way in ways:
        name = f"{title}, {way.name}"
        found = way.calls[0]()
        difference = distance(found, expected)
        if not difference <= MOST_DIFFERENCE:  # NaN is not
            wrong.append(f"{name}: {difference:.3g}")
            bench.put(name, {"failed": f"differs from today's by {difference:.3g}"})
            continue
        bench.add(name, [*way.calls], problem.num_bytes, problem.flops)
        bench.put(name, bench.rows[name] | {"pieces": way.pieces, "difference": difference})
    return wrong


def library(bench: Bench, name: str, problem: Problem) -> None:
    """A row of `dense`, or why there is none."""
    if bench.device.type != "cuda":
        bench.put(name, {"not run": "cuDNN's attention is for CUDA devices"})
        return
    for grouped in (True, False):
        try:
            calls = dense(problem, grouped).calls
            calls[0]()  # before a capture, which an error would end for good
        except RuntimeError as error:
            bench.put(name, {"not run": (str(error) or type(error).__name__).splitlines()[0][:300]})
        else:
            bench.add(name, [*calls], problem.num_bytes, problem.flops)
            bench.put(name, bench.rows[name] | {"heads_share_keys": grouped})
            return


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over that of `expected`; NaN if a number is missing."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def processors_of(device: torch.device) -> int:
    """Multiprocessors of the device."""
    if device.type != "cuda":
        return _CPU_PROGRAMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compile_all(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[Exception | None]:
    """Call each once, several at a time, and return what each raised: the compiler leaves other threads alone for most of its
    time. Interpreted kernels need no compiler and are not called."""
    if device.type != "cuda":
        return [None] * len(calls)
    with ThreadPoolExecutor(_COMPILERS) as pool:
        found = list(pool.map(_called, calls))
    torch.cuda.synchronize(device)
    return found


def _called(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:  # a kernel that does not fit is a finding, and no reason to time nothing
        return error
    return None


def _random(bench: Bench, drawn: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=bench.device, generator=drawn).to(bench.dtype)
