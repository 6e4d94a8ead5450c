"""`TritonAttention`: attention over paged KV by Cohort's own Triton kernels.

begin     once a step: everything that kernels must know of the step goes to the device in one copy
attend    per layer: writes keys and values to their cells, then one kernel for decode steps, one for prompt chunks
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention
from executors.kernels.triton.extend_attention import extend_attention, query_tiles, rows_per_tile
from executors.kernels.triton.rotary import rotate_and_store
from executors.llm.attention import TRITON
from executors.llm.kv_cache import KvCache
from executors.llm.models.decoder import KvSpec
from executors.llm.step import StepArrays

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_HEAD_DIM = 256
STEADY_SPLIT = 512
"""Keys of a split where a row's result may not depend on its batch."""
_PROGRAMS_PER_PROCESSOR = 4
_MIN_SPLIT = 256
"""Keys below which another split costs more than it saves."""
_ALIGN = 4
"""Parts of the packed array begin at multiples of 16 bytes: the compiler asks whether pointers do."""


def supports(spec: KvSpec) -> bool:
    """Whether the kernels have code for this model."""
    return spec.dtype in DTYPES and spec.head_dim <= MAX_HEAD_DIM and spec.num_heads % spec.num_kv_heads == 0


@dataclass(frozen=True, slots=True)
class StepMeta:
    """A step as the kernels see it, int32 on the device. Per token [T]: `cells`, negative where nothing is kept. Per item:
    `q_starts`, `q_lens`, `pos_offsets`, `lengths` (tokens with this step's), `tables` [n, pages]. `tiles` [m, 2] of the items
    that go to `extend_attention`, `decodes` [d, 2] (item, row of q) of the others, None if those are all, in order."""

    cells: torch.Tensor
    q_starts: torch.Tensor
    q_lens: torch.Tensor
    pos_offsets: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    tiles: torch.Tensor
    decodes: torch.Tensor | None
    num_decodes: int
    num_splits: int


class TritonAttention:
    """An `AttentionBackend`."""

    name = TRITON

    def __init__(self, spec: KvSpec, deterministic: bool = False) -> None:
        """`deterministic`: a row's result is bitwise the same in any batch."""
        self.deterministic = deterministic
        self.note = f"attention: {self.name}"
        self._group = spec.num_heads // spec.num_kv_heads
        self._queries = rows_per_tile(self._group, spec.head_dim) // self._group
        cuda = spec.device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(spec.device).multi_processor_count if cuda else 4
        self._pinned = cuda
        self._workspace: DecodeWorkspace | None = None
        self._room = 0

    def begin(self, step: StepArrays, cache: KvCache) -> TritonAttend:
        """See `AttentionBackend`."""
        spec, page = cache.spec, cache.block_size
        blocks = step.tables[step.item_of_row, step.positions // page].astype(np.int64)
        lengths = step.pos_offsets + step.q_lens
        single = step.q_lens == 1
        tiles = query_tiles(step.q_lens, np.flatnonzero(~single), self._queries)
        decodes = np.flatnonzero(single)
        named = np.stack((decodes, step.q_starts[decodes]), 1)
        splits = self._splits(len(decodes), int(lengths[decodes].max(initial=1)), spec.num_kv_heads)
        parts = (
            blocks * page + step.positions % page, step.q_starts, step.q_lens, step.pos_offsets, lengths, step.tables, tiles,
            named,
        )  # fmt: skip
        cells, q_starts, q_lens, pos_offsets, ends, tables, tiles_there, named_there = self._to_device(
            parts, spec.device
        )
        meta = StepMeta(
            cells, q_starts, q_lens, pos_offsets, ends, tables, tiles_there,
            None if single.all() else named_there, len(decodes), splits,
        )  # fmt: skip
        self._reserve(len(decodes) * splits, spec)
        return TritonAttend(meta, cache, self)

    def _splits(self, rows: int, longest: int, kv_heads: int) -> int:
        """Programs that share a sequence's keys: as many as keep the device busy, unless that would decide the sums."""
        if self.deterministic:
            return -(-longest // STEADY_SPLIT)
        wanted = self._processors * _PROGRAMS_PER_PROCESSOR // max(1, rows * kv_heads)
        return max(1, min(wanted, -(-longest // _MIN_SPLIT), 64))

    def _reserve(self, rows: int, spec: KvSpec) -> None:
        if self._workspace is None or rows > self._room:
            self._room = max(rows, 64)
            self._workspace = DecodeWorkspace(self._room, spec.num_heads, 1, spec.head_dim, spec.device)

    @property
    def workspace(self) -> DecodeWorkspace:
        """Large enough for the step that was begun last."""
        assert self._workspace is not None
        return self._workspace

    def _to_device(self, parts: tuple[np.ndarray, ...], device: torch.device) -> list[torch.Tensor]:
        """int32 views, of the parts' shapes, of one tensor on the device."""
        ends = np.cumsum([-(-part.size // _ALIGN) * _ALIGN for part in parts]).tolist()
        packed = torch.empty(ends[-1], dtype=torch.int32, pin_memory=self._pinned)
        flat = packed.numpy()
        for part, end in zip(parts, ends, strict=True):
            begin = end - -(-part.size // _ALIGN) * _ALIGN
            flat[begin : begin + part.size] = part.ravel()
        there = packed.to(device, non_blocking=True)
        begins = [0, *ends[:-1]]
        return [
            there[begin : begin + part.size].view(part.shape)
            for part, begin in zip(parts, begins, strict=True)
        ]


class TritonAttend:
    """An `Attend`; `GpuForward` calls its two halves."""

    def __init__(self, meta: StepMeta, cache: KvCache, backend: TritonAttention) -> None:
        self.meta = meta
        self.cache = cache
        self.backend = backend

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """See `Attend`."""
        tokens = len(q)
        qkv = torch.cat((q.reshape(tokens, -1), k.reshape(tokens, -1), v.reshape(tokens, -1)), 1)
        return self.attend(
            layer, rotate_and_store(qkv, self.cache.layers[layer], self.meta.cells, q.shape[1])
        )

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """[T, heads, head_dim] of queries whose keys and values are in the cache."""
        meta, spec, kv = self.meta, self.cache.spec, self.cache.layers[layer]
        out = torch.empty_like(q)
        if len(meta.tiles):
            extend_attention(
                q, kv, out, meta.tiles, meta.q_starts, meta.q_lens, meta.pos_offsets, meta.tables, spec.scale,
                window=spec.windows[layer], softcap=spec.softcap,
            )  # fmt: skip
        if meta.num_decodes:
            decode_attention(
                q, kv, out, meta.tables, meta.lengths, spec.scale, meta.num_splits, self.backend.workspace,
                window=spec.windows[layer], softcap=spec.softcap, items=meta.decodes, rows=meta.num_decodes,
                split_tokens=STEADY_SPLIT if self.backend.deterministic else 0,
            )  # fmt: skip
        return out
