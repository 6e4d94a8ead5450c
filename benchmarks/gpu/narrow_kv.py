"""Decode attention over keys and values of 8 bits, in the forms that the kernels' table can choose among.

    tiles     keys that a program processes at a time: 64, which have as many bytes as 32 in bf16, or 128
    widened   values lie in 16 bits in shared memory before they are multiplied, or are read byte by byte

Bytes are those of keys, values and their peaks, each read once. The row of the table is one of these; `make gpu-tune` prints the
fastest as a row.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from benchmarks.gpu.kernels import HEAD_DIM, HEADS, KV_HEADS, Bench, Items, step_of
from benchmarks.gpu.timing import noise
from benchmarks.gpu.tuning import fill
from executors.kernels.triton.tuning import choose, head_class, kind_of, trying
from executors.llm.attention.triton_attention import TritonAttention
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec

PAGE = 16
STORED = {"e4m3": torch.float8_e4m3fn, "int8": torch.int8}
FORMS = {"e4m3": ((64, 0), (64, 1), (128, 1)), "int8": ((32, 0), (64, 0), (64, 1), (128, 1))}
"""(keys of a tile, whether values are widened) that are timed, by dtype. Others in e4m3 spill registers."""


def measure(bench: Bench) -> None:
    """Put a row for each form. Interpreted, forms that need queries of 16 bits are left out: its queries are float32."""
    items: Items = [(1, 19)] * 2 if bench.tiny else [(1, 1023)] * 256
    for name, stored in STORED.items():
        for tile, widened in FORMS[name]:
            if bench.dtype == torch.float32 and (widened or tile > 64):
                continue
            form = f"tiles of {tile}" + (", values widened" if widened else "")
            _time(bench, f"decode 256 x 1024 in {name}, {form}", items, stored, tile, widened)


def _time(bench: Bench, name: str, items: Items, stored: torch.dtype, tile: int, widened: int) -> None:
    heads, kv_heads, dim = (2, 1, 16) if bench.tiny else (HEADS, KV_HEADS, HEAD_DIM)
    sets = bench.sets
    spec = KvSpec(
        sets, heads, kv_heads, dim, bench.dtype, bench.device, dim**-0.5, None, (None,) * sets, stored
    )
    pages = sum(-(-(new + past) // PAGE) for new, past in items)
    cache = KvCache(spec, pages, PAGE)
    for layer in range(sets):
        fill(cache, layer, 1.0)
    step = step_of(items, pages, PAGE)
    q = torch.randn(len(items), heads, dim, device=bench.device, generator=noise(bench.device)).to(
        bench.dtype
    )
    key = "decode_attention", kind_of(bench.dtype, stored), head_class(dim)
    changed = choose(*key) if bench.tiny else replace(choose(*key), depth=tile, widened=widened)
    with trying({key: changed}):
        attend = TritonAttention(spec).begin(step, cache)
        calls = [functools.partial(attend.attend, layer, q) for layer in range(sets)]
        visible = sum(new + past for new, past in items)
        moved = (
            2 * kv_heads * visible * spec.bytes_per_cell()
            + 2 * heads * len(items) * dim * bench.dtype.itemsize
        )
        bench.add(name, calls, moved, 0.0)
