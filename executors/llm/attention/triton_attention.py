"""`TritonAttention`: attention over paged KV by Cohort's own Triton kernels.

begin     once a step: everything that the kernels need to know of the step goes to the device in one copy
attend    per layer: writes keys and values to their cells, then one kernel for decode steps, one for prompt chunks

Prompt chunks have two kernels: where few tiles of queries have many keys, programs share a tile's keys (`tile_pieces.py`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from executors.kernels.triton.decode_attention import DecodeWorkspace, decode_attention, tuned
from executors.kernels.triton.extend_attention import extend_attention, query_tiles, rows_per_tile
from executors.kernels.triton.rotary import rotate_and_store
from executors.kernels.triton.shared_extend import ExtendWorkspace, shared_extend_attention, tile_keys
from executors.kernels.triton.shared_extend import tuned as tuned_shared
from executors.llm.attention.backend import TRITON
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.packed import StepMeta, StoredKv
from executors.llm.attention.tile_pieces import TileRule, num_places
from executors.llm.device.table import device_of
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MIN_HEAD_DIM, MAX_HEAD_DIM = 9, 512
"""Supported head sizes in elements. Heads are padded to a power of two, and the inner dimension of a product on a GPU is at
least 16."""
STEADY_SPLIT = 512
"""Keys of a piece if a row's result must not depend on its batch."""
_PROCESSORS = 4
"""Number of processors to assume if kernels are interpreted on a CPU: it sets how many programs share the keys."""
_ALIGN = 4
"""Alignment of parts of the packed array, in int32 words: the compiler checks whether pointers are multiples of 16 bytes."""


def supports(spec: KvSpec) -> bool:
    """Return whether the kernels support this model."""
    fits = MIN_HEAD_DIM <= spec.head_dim <= MAX_HEAD_DIM
    # Peaks lie behind codes, at a multiple of four bytes.
    fits = fits and (spec.kv_dtype is not torch.int8 or spec.head_dim % 2 == 0)
    return spec.dtype in DTYPES and fits and spec.num_heads % spec.num_kv_heads == 0


def piece_rule(spec: KvSpec, processors: int, deterministic: bool) -> PieceRule:
    """Return the rule for cutting this model's keys on a device of `processors` multiprocessors."""
    windows = [window for window in spec.windows if window is not None]
    tile = tuned(spec.head_dim, spec.dtype, spec.kv_dtype or spec.dtype, spec.softcap)
    return PieceRule(
        max(1, processors * tile.programs // spec.num_kv_heads),
        tile.depth,
        max(windows) if len(windows) == len(spec.windows) else None,
        STEADY_SPLIT if deterministic else 0,
        least=tile.least,
    )


def tile_rule(spec: KvSpec, processors: int, queries: int, deterministic: bool) -> TileRule:
    """Return the rule for cutting the keys of tiles of so many `queries`. If a row's result must not depend on its batch, no tile
    is cut."""
    windows = [window for window in spec.windows if window is not None]
    tile = tuned_shared(spec.head_dim, spec.dtype, spec.kv_dtype or spec.dtype)
    return TileRule(
        max(1, processors * tile.programs // spec.num_kv_heads),
        tile.depth,
        max(windows) + queries if len(windows) == len(spec.windows) else None,
        1 if deterministic else tile.parts,
        tile.least,
    )


class TritonAttention:
    """An `AttentionBackend` and `PackedAttention`."""

    name = TRITON

    def __init__(self, spec: KvSpec, deterministic: bool = False) -> None:
        """`deterministic`: a row's result is bitwise the same in any batch."""
        self.deterministic = deterministic
        self.note = f"attention: {self.name}"
        self._group = spec.num_heads // spec.num_kv_heads
        self.queries_per_tile = rows_per_tile(self._group, spec.head_dim, spec.dtype) // self._group
        device = device_of(spec.device)
        self.rule = piece_rule(spec, device.processors or _PROCESSORS, deterministic)
        """Rule for cutting keys. Must not change once steps are captured."""
        self.tile_rule = tile_rule(
            spec, device.processors or _PROCESSORS, self.queries_per_tile, deterministic
        )
        """Rule for cutting the keys of tiles, likewise."""
        self._pinned = device.pinned
        self._workspaces: list[DecodeWorkspace] = []
        """Workspaces; the last is the largest. All are kept, because captured graphs refer to their addresses."""
        self._shared: list[ExtendWorkspace] = []
        """Those of tiles' pieces, likewise."""

    def begin(self, step: StepArrays, cache: KvCache) -> TritonAttend:
        """See `AttentionBackend`."""
        spec, page = cache.spec, cache.block_size
        blocks = step.tables[step.item_of_row, step.positions // page].astype(np.int64)
        lengths = step.pos_offsets + step.q_lens
        single = step.q_lens == 1
        tiles = self.tiles(step.q_lens, step.pos_offsets, np.flatnonzero(~single))
        tile_pieces = self.tile_pieces(tiles, step.q_lens, step.pos_offsets)
        if not num_places(tile_pieces):
            tile_pieces = tile_pieces[:0]
        decodes = np.flatnonzero(single)
        rows = np.stack((decodes, step.q_starts[decodes]), 1)
        parts = (
            blocks * page + step.positions % page, step.q_starts, step.q_lens, step.pos_offsets, lengths, step.tables, tiles,
            rows, self.pieces(lengths[decodes]), tile_pieces,
        )  # fmt: skip
        cells, q_starts, q_lens, pos_offsets, ends, tables, tiles_there, named_there, pieces, shared = (
            self._to_device(parts, spec.device)
        )
        meta = StepMeta(
            cells, q_starts, q_lens, pos_offsets, ends, tables, tiles_there,
            None if single.all() else named_there, len(decodes), pieces, shared,
        )  # fmt: skip
        return self.bind(meta, cache)

    def tiles(self, q_lens: np.ndarray, pos_offsets: np.ndarray, items: np.ndarray) -> np.ndarray:
        """See `PackedAttention`."""
        return query_tiles(q_lens, pos_offsets, items, self.queries_per_tile)

    def most_pieces(self, rows: int, longest: int) -> int:
        """See `PackedAttention`."""
        return self.rule.most(rows, longest)

    def pieces(self, lengths: np.ndarray) -> np.ndarray:
        """See `PackedAttention`."""
        return self.rule.cut(lengths)

    def pieces_last(self, lengths: np.ndarray) -> int:
        """See `PackedAttention`."""
        return self.rule.lasts(lengths)

    def most_tile_pieces(self, tiles: int, longest: int) -> int:
        """See `PackedAttention`."""
        return self.tile_rule.most(tiles, longest)

    def tile_pieces(self, tiles: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray) -> np.ndarray:
        """See `PackedAttention`."""
        return self.tile_rule.cut(tile_keys(tiles, q_lens, pos_offsets, self.queries_per_tile))

    def share_no_tiles(self, why: str) -> None:
        """Let one program read all keys of a tile. Called before any step is captured; `why` is in the note."""
        self.tile_rule = replace(self.tile_rule, parts=1, count=0)
        self.note = f"{self.note}; keys of prompts are not shared by programs: {why}"

    def reserve(self, pieces: int, tile_pieces: int, cache: KvCache) -> None:
        """See `PackedAttention`. Attention that was bound before keeps its memory."""
        self._reserve_shared(tile_pieces, cache.spec)
        if not self._workspaces or pieces > self._workspaces[-1].pieces:
            spec, room = cache.spec, max(pieces, 64)
            self._workspaces.append(
                DecodeWorkspace(room, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.device)
            )

    def _reserve_shared(self, pieces: int, spec: KvSpec) -> None:
        """Reserve memory for steps with so many pieces of tiles, of which only those of shared tiles take any."""
        places = pieces if self.tile_rule.count else min(pieces, self.tile_rule.most_places)
        if places and (not self._shared or places > self._shared[-1].places):
            self._shared.append(
                ExtendWorkspace(
                    places, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.device, spec.dtype
                )
            )

    def bind(self, meta: StepMeta, cache: KvCache) -> TritonAttend:
        """See `PackedAttention`."""
        self.reserve(len(meta.pieces), len(meta.tile_pieces), cache)
        shared = self._shared[-1] if len(meta.tile_pieces) else None
        return TritonAttend(meta, cache, self._workspaces[-1], shared, self.deterministic)

    def _to_device(self, parts: tuple[np.ndarray, ...], device: torch.device) -> list[torch.Tensor]:
        """Copy the parts to the device as one tensor; return int32 views of the parts' shapes."""
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
    """A `PagedAttend`."""

    def __init__(
        self, meta: StepMeta, cache: KvCache, workspace: DecodeWorkspace, shared: ExtendWorkspace | None = None,
        steady: bool = False,
    ) -> None:  # fmt: skip
        """`workspace` has room for at least the step's pieces, and `shared` for those of tiles, if there are any. `steady`: a
        row's result must not depend on the step."""
        self.meta = meta
        self.cache = cache
        self._workspace = workspace
        self._shared = shared
        self._steady = steady

    def stored(self, layer: int) -> StoredKv:
        """See `PagedAttend`."""
        kv, peaks = self.cache.parts(layer)
        return StoredKv(kv, self.meta.cells, self.cache.spec.scales(layer), peaks)

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `Attend`."""
        tokens = len(q)
        qkv = torch.cat((q.reshape(tokens, -1), k.reshape(tokens, -1), v.reshape(tokens, -1)), 1)
        to = self.stored(layer)
        q = rotate_and_store(qkv, to.kv, to.cells, q.shape[1], kv_scales=to.scales, peaks=to.peaks)
        return self.attend(layer, q, sinks)

    def attend(self, layer: int, q: torch.Tensor, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """See `PagedAttend`."""
        meta, spec, (kv, peaks) = self.meta, self.cache.spec, self.cache.parts(layer)
        out = torch.empty_like(q)
        if self._shared is not None:
            shared_extend_attention(
                q, kv, out, meta.tiles, meta.tile_pieces, meta.q_starts, meta.q_lens, meta.pos_offsets, meta.tables, spec.scale,
                self._shared, window=spec.windows[layer], softcap=spec.softcap, kv_scales=spec.scales(layer), sinks=sinks,
                peaks=peaks,
            )  # fmt: skip
        elif len(meta.tiles):
            extend_attention(
                q, kv, out, meta.tiles, meta.q_starts, meta.q_lens, meta.pos_offsets, meta.tables, spec.scale,
                window=spec.windows[layer], softcap=spec.softcap, kv_scales=spec.scales(layer), sinks=sinks,
                peaks=peaks, steady=self._steady,
            )  # fmt: skip
        if meta.num_decodes:
            decode_attention(
                q, kv, out, meta.tables, meta.lengths, spec.scale, meta.pieces, self._workspace,
                window=spec.windows[layer], softcap=spec.softcap, items=meta.decodes, kv_scales=spec.scales(layer),
                sinks=sinks, peaks=peaks,
            )  # fmt: skip
        return out
