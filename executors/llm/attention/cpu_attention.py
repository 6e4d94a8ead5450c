"""`CpuAttention`: attention of a whole step in one call per layer, by `attention.h`.

    begin     once a step: assigns work to threads (`plan`) and computes where new keys and values go
    attend    per layer: writes them, then computes; Python does not process the step again

A token's result is bitwise the same in a whole prefill, a chunk or a decode, in any batch, on any number of threads.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from executors.contract.errors import OutOfMemory
from executors.kernels.compiler import KernelUnavailable
from executors.kernels.cpu import I64, MODEL_DTYPES, OUT_OF_MEMORY, POINTER, CpuKernels, cpu_kernels
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays

MAX_HEAD_DIM = 576
SPLIT = 512
"""Keys of one split, as in attention.h."""
TILE_ROWS = 128
"""Rows (tokens times query heads of a key head) that share a packed tile of keys."""
SERIAL_COST = 40_000
"""Cost below which a step is too small to wake other threads (see `plan` for the unit)."""
INT8_BLOCK = 16
"""Blocks of keys and values in int8 have a multiple of so many tokens: `BESIDE` of attention_int8.h."""
_SAME_WORK = 64
"""Keys by which a sequence may grow before its work is divided anew: a split has a multiple of so many."""
_ROW_COST = 32
"""Cost of packing a key, in rows whose products with it cost as much."""


class _Step(ctypes.Structure):
    """`Step` of attention.h."""

    _fields_ = [
        *((name, I64) for name in (
            "dtype", "int8", "heads", "kv_heads", "head_dim", "block_size", "block_stride", "side_stride", "head_stride",
            "table_stride", "window", "tokens", "num_work", "num_groups", "max_rows", "partial_rows", "threads",
        )),
        *((name, POINTER) for name in ("tables", "work", "cells", "partials", "counters")),
        ("scale", ctypes.c_float), ("softcap", ctypes.c_float),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """`work` int64 [n, 10]: `Work` of attention.h, most expensive first. Each piece is done once per key head.

    `groups` pieces of work are cut into `slots` splits in all, of at most `partial_rows` rows. The partial results are kept
    until the last split of a group merges them.
    """

    work: np.ndarray
    groups: int
    slots: int
    max_rows: int
    partial_rows: int
    threads: int


def plan(step: StepArrays, heads: int, kv_heads: int, window: int | None, threads: int) -> Plan:
    """Divide a step's attention among `threads`. The division does not change results, see attention.h.

    A piece's cost is its keys times (rows + `_ROW_COST`). A piece that would keep a thread busy for over half its share is
    cut into its splits.
    """
    group = heads // kv_heads
    tile = max(1, TILE_ROWS // group)
    counts = -(-step.q_lens // tile)
    item = np.repeat(np.arange(len(step)), counts)
    begin = (np.arange(len(item)) - np.repeat(np.cumsum(counts) - counts, counts)) * tile
    tokens = np.minimum(tile, step.q_lens[item] - begin)
    pos = step.pos_offsets[item] + begin
    first_key = np.maximum(0, pos + 1 - window) if window else np.zeros_like(pos)
    first = first_key // SPLIT
    splits = (pos + tokens - 1) // SPLIT + 1 - first
    cost = (pos + tokens - first_key) * (tokens * group + _ROW_COST)
    total = int(cost.sum()) * kv_heads
    if total < SERIAL_COST:
        threads = 1
    cut = (splits > 1) & (2 * threads * cost > total) & (threads > 1)
    pieces = np.where(cut, splits, 1)
    unit = np.repeat(np.arange(len(item)), pieces)
    index = np.arange(len(unit)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    slots = np.where(cut, splits, 0)
    group_slot = np.cumsum(slots) - slots
    rows = tokens * group
    work = np.empty((len(unit), 10), np.int64)
    work[:, 0] = (step.q_starts[item] + begin)[unit]
    work[:, 1], work[:, 2], work[:, 3] = tokens[unit], pos[unit], item[unit]
    work[:, 4] = first[unit] + index
    work[:, 5] = work[:, 4] + np.where(cut, 1, splits)[unit]
    work[:, 6] = np.where(cut, np.cumsum(cut) - 1, -1)[unit]
    work[:, 7], work[:, 8], work[:, 9] = group_slot[unit] + index, group_slot[unit], splits[unit]
    order = np.argsort(-(cost / pieces)[unit], kind="stable")
    return Plan(
        work[order],
        int(cut.sum()),
        int(slots.sum()),
        int(rows.max(initial=0)),
        int(rows[cut].max(initial=0)),
        threads,
    )


class Plans:
    """The last plan, which serves the next step too where sequences have only become longer by a few tokens.

    A step of one token a sequence differs from the one before it by a position each: while these stay within the same
    `_SAME_WORK` keys, so does the work.
    """

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._plan: Plan | None = None

    def get(self, step: StepArrays, heads: int, kv_heads: int, window: int | None, threads: int) -> Plan:
        """Return a plan, as `plan`."""
        begins = step.pos_offsets
        first = np.maximum(0, begins + 1 - window) if window else np.zeros_like(begins)
        grown = np.concatenate((step.q_lens, begins // _SAME_WORK, first // _SAME_WORK))
        key = (heads, kv_heads, window, threads, grown.tobytes())
        if key != self._key or self._plan is None or (step.q_lens != 1).any():
            self._key, self._plan = key, plan(step, heads, kv_heads, window, threads)
            return self._plan
        work = self._plan.work.copy()  # that of the step before may be in use
        work[:, 2] = begins[work[:, 3]]
        return replace(self._plan, work=work)


def supports(spec: KvSpec) -> bool:
    """Return whether the kernel supports this model."""
    return (
        spec.device.type == "cpu"
        and spec.dtype in MODEL_DTYPES
        and spec.kv_dtype in (None, torch.int8)
        and 1 <= spec.head_dim <= MAX_HEAD_DIM
        and spec.num_heads % spec.num_kv_heads == 0
    )


class CpuAttend:
    """One step's attention: called per layer, or read by `CpuForward`, which computes all layers in one call.

    `steps` and `kv` have one address per layer: of its `_Step`, and of its keys and values. The result of a call is valid
    until the next call.
    """

    def __init__(
        self, kernels: CpuKernels, steps: dict[int | None, _Step], arrays: list[np.ndarray], cache: KvCache
    ) -> None:  # fmt: skip
        spec = cache.spec
        self._kernels = kernels
        self._pointees: object = (arrays, steps, cache)
        """What the pointers point at."""
        self._dtype, self._halves = spec.dtype, spec.dtype is torch.float16
        self._out: torch.Tensor | None = None
        pointers = POINTER * spec.num_layers
        self.steps = pointers(*(ctypes.addressof(steps[window]) for window in spec.windows))
        self.kv = pointers(*(layer.data_ptr() for layer in cache.layers))

    @classmethod
    def joined(cls, parts: Mapping[int, CpuAttend], places: Sequence[tuple[int, int]]) -> CpuAttend:
        """Return the attention of one step over several groups of layers. `places`: (group, index in it) of each layer."""
        whole = copy.copy(next(iter(parts.values())))
        whole._pointees, whole._out = parts, None
        pointers = POINTER * len(places)
        whole.steps = pointers(*(parts[group].steps[index] for group, index in places))
        whole.kv = pointers(*(parts[group].kv[index] for group, index in places))
        return whole

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attend`."""
        if self._out is None or self._out.numel() < q.numel():
            # One for all layers: the system maps each new large tensor page by page.
            self._out = torch.empty(q.numel(), dtype=torch.float32 if self._halves else self._dtype)
        out = self._out[: q.numel()].view(q.shape)
        q, k, v = (_dense(x.float() if self._halves else x) for x in (q, k, v))
        sinks = None if sinks is None else sinks.float()
        if self._kernels.attend(
            self.steps[layer], self.kv[layer], q.data_ptr(), q.stride(0), k.data_ptr(), k.stride(0),
            v.data_ptr(), v.stride(0), out.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
        ):  # fmt: skip
            raise OutOfMemory(OUT_OF_MEMORY)
        return out.to(self._dtype)


class CpuAttention:
    """An `AttentionBackend`. `threads` None: as many as torch uses."""

    def __init__(self, isa: str | None = None, threads: int | None = None) -> None:
        """`isa` is one of compiler.ISAS; the default is the best that the CPU has. Raises KernelUnavailable."""
        self._kernels = cpu_kernels(isa)
        self.name = f"cohort-cpu {self._kernels.isa}"
        self.note = f"attention: {self.name}"
        self._threads = threads
        self._partials = np.empty(0, np.float32)
        self._plans: dict[tuple[int, int, int | None], Plans] = {}

    def begin(self, step: StepArrays, cache: KvCache) -> CpuAttend:
        """See `AttentionBackend`. The result is valid until the next call."""
        spec, block_size = cache.spec, cache.block_size
        threads = self._threads or torch.get_num_threads()
        tables = np.ascontiguousarray(step.tables, np.int32)
        blocks = tables[step.item_of_row, step.positions // block_size].astype(np.int64)
        cells = blocks * block_size + step.positions % block_size
        side_stride, block_stride, head_stride = cache.layers[0].stride()[:3]
        steps: dict[int | None, _Step] = {}
        arrays: list[np.ndarray] = [tables, cells]  # what the pointers point at
        for window in set(spec.windows):
            plans = self._plans.setdefault((spec.num_heads, spec.num_kv_heads, window), Plans())
            cut = plans.get(step, spec.num_heads, spec.num_kv_heads, window, threads)
            padded = -(-spec.head_dim // 16) * 16
            num_floats = cut.slots * spec.num_kv_heads * cut.partial_rows * (padded + 2)
            if len(self._partials) < num_floats:
                self._partials = np.empty(num_floats, np.float32)
            counters = np.zeros(cut.groups * spec.num_kv_heads, np.int32)
            arrays += [cut.work, counters, self._partials]
            steps[window] = _Step(
                MODEL_DTYPES[spec.dtype], int(spec.kv_dtype is torch.int8), spec.num_heads, spec.num_kv_heads, spec.head_dim,
                block_size, block_stride, side_stride, head_stride, tables.shape[1], window or 0, len(step.token_ids),
                len(cut.work), cut.groups, cut.max_rows, cut.partial_rows, cut.threads, tables.ctypes.data, cut.work.ctypes.data,
                cells.ctypes.data, self._partials.ctypes.data, counters.ctypes.data, spec.scale, spec.softcap or 0.0,
            )  # fmt: skip
        return CpuAttend(self._kernels, steps, arrays, cache)


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Make a token's heads contiguous in [T, heads, head_dim]."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


__all__ = ["CpuAttend", "CpuAttention", "KernelUnavailable", "Plan", "plan", "supports"]
