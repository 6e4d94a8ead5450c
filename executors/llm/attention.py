"""Attention over paged KV, behind a seam: `AttentionBackend` makes, once a step, the function the model calls per layer.

The backend here is torch only and runs anywhere. Items of a step fall into three kinds:

    short   up to SHORT_QUERY tokens (decode, verification): items of like length are batched, their KV gathered
    fresh   a prompt's first chunk: attends to its own keys only, causal; equal neighbours are batched
    long    a later chunk: its KV gathered, queries in tiles under a band mask
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from executors.llm.kv_cache import KvCache
from executors.llm.models.decoder import Attend, KvSpec
from executors.llm.step import StepArrays

SHORT_QUERY = 8
QUERY_TILE = 128
_MERGE_SLACK = 4
"""Blocks of padding that are cheaper than one more call."""


class AttentionBackend(Protocol):
    """How attention is computed. Later kernels take this place."""

    name: str

    def begin(self, step: StepArrays, cache: KvCache) -> Attend:
        """Prepare a step: everything that is the same for all layers is computed here, once."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Items that go into one SDPA call: `rows` of the step, b items of `length` queries, blocks `gather`ed for keys.

    `gather` indexes the cache viewed as [2 * num_blocks * kv_heads, block_size * head_dim]; None: keys are the rows'
    own. `tiles` (begin, end, keys, mask) cut the queries; a mask is additive, None where nothing is hidden.
    """

    items: int
    length: int
    rows: torch.Tensor | slice
    gather: torch.Tensor | None
    folded: bool
    tiles: tuple[tuple[int, int, int, torch.Tensor | None], ...]


class TorchAttention:
    """Gather over block tables, then torch's scaled dot product attention."""

    name = "torch"

    def __init__(self) -> None:
        self._band: torch.Tensor | None = None

    def begin(self, step: StepArrays, cache: KvCache) -> Attend:
        """See `AttentionBackend`."""
        device, spec = cache.spec.device, cache.spec
        kv_heads, block_size = spec.num_kv_heads, cache.block_size
        blocks = step.tables[step.item_of_row, step.positions // block_size].astype(np.int64)
        offsets = (step.positions % block_size).astype(np.int64)
        heads = np.arange(kv_heads)
        write = ((blocks[:, None] * kv_heads + heads) * block_size + offsets[:, None]).ravel()
        write_rows = torch.from_numpy(write).to(device)
        fresh_blocks = torch.from_numpy(self._fresh_blocks(step, block_size)).to(device)
        groups = list(self._groups(step, cache))
        whole = len(groups) == 1
        scale = spec.head_dim**-0.5

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            kv = cache.layers[layer]
            if len(fresh_blocks):
                kv.index_fill_(1, fresh_blocks, 0)
            flat = kv.view(2, -1, spec.head_dim)
            flat[0].index_copy_(0, write_rows, k.reshape(-1, spec.head_dim))
            flat[1].index_copy_(0, write_rows, v.reshape(-1, spec.head_dim))
            if whole:
                return _attend_group(groups[0], q, k, v, kv, scale)
            out = torch.empty_like(q, memory_format=torch.contiguous_format)
            for group in groups:
                rows = group.rows
                out[rows] = _attend_group(group, q[rows], k[rows], v[rows], kv, scale)
            return out

        return attend

    def _fresh_blocks(self, step: StepArrays, block_size: int) -> np.ndarray:
        """Blocks that a sequence begins in this step and does not fill. What their last owner left behind is read, with
        weight 0, as padding; should it be NaN or infinite, 0 times it would still be NaN. So they are zeroed first."""
        ends = step.pos_offsets + step.q_lens
        last = (ends - 1) // block_size
        begun = (last * block_size >= step.pos_offsets) & (ends % block_size != 0)
        return step.tables[begun, last[begun]].astype(np.int64)

    def _groups(self, step: StepArrays, cache: KvCache) -> Iterator[_Group]:
        num_blocks = -(-(step.pos_offsets + step.q_lens) // cache.block_size)
        short = step.q_lens <= SHORT_QUERY
        if short.any():
            yield from self._short_groups(step, cache, np.flatnonzero(short), num_blocks)
        fresh = ~short & (step.pos_offsets == 0)
        run: list[int] = []
        for i in np.flatnonzero(~short).tolist():
            # A run of neighbours with equal length is one batch.
            if run and (not fresh[i] or i != run[-1] + 1 or step.q_lens[i] != step.q_lens[run[0]]):
                yield self._fresh_group(step, run)
                run = []
            if fresh[i]:
                run.append(i)
            else:
                yield self._long_group(step, cache, i, int(num_blocks[i]))
        if run:
            yield self._fresh_group(step, run)

    def _short_groups(
        self, step: StepArrays, cache: KvCache, items: np.ndarray, num_blocks: np.ndarray
    ) -> Iterator[_Group]:
        """Items of one query length and like KV length together: at most a third of what is gathered is padding."""
        items = items[np.lexsort((num_blocks[items], step.q_lens[items]))]
        begin = 0
        for i in range(1, len(items) + 1):
            if i < len(items) and step.q_lens[items[i]] == step.q_lens[items[begin]]:
                smallest, largest = num_blocks[items[begin]], num_blocks[items[i]]
                if largest - smallest <= _MERGE_SLACK or 3 * largest <= 4 * smallest:
                    continue
            yield self._short_group(step, cache, np.sort(items[begin:i]), int(num_blocks[items[i - 1]]))
            begin = i

    def _short_group(self, step: StepArrays, cache: KvCache, items: np.ndarray, width: int) -> _Group:
        spec = cache.spec
        length = int(step.q_lens[items[0]])
        ends = step.pos_offsets[items] + length
        keys = width * cache.block_size
        used = -(-ends // cache.block_size)
        # Padding repeats the item's own first block: its values are finite if the item's are.
        tables = np.where(
            np.arange(width) < used[:, None], step.tables[items, :width], step.tables[items, :1]
        )
        gather = _gather_index(tables.astype(np.int64), cache)
        mask = None
        if length > 1 or ends.min() < keys:
            # Key j is visible to query r of an item iff j <= pos_offset + r; a row of the mask serves all heads.
            visible = step.pos_offsets[items][:, None] + np.arange(length)
            if length > 1:
                visible = np.repeat(visible, spec.num_heads // spec.num_kv_heads, axis=1)
            hidden = np.arange(keys) > visible[:, None, :, None]
            mask = torch.zeros(hidden.shape, dtype=spec.dtype)
            mask.masked_fill_(torch.from_numpy(hidden), -torch.inf)
            mask = mask.to(spec.device)
        rows = _rows(step.q_starts[items], length, spec.device)
        index = torch.from_numpy(gather).to(spec.device)
        return _Group(len(items), length, rows, index, True, ((0, length, keys, mask),))

    def _fresh_group(self, step: StepArrays, run: list[int]) -> _Group:
        length = int(step.q_lens[run[0]])
        begin = int(step.q_starts[run[0]])
        rows = slice(begin, begin + length * len(run))
        return _Group(len(run), length, rows, None, False, ((0, length, length, None),))

    def _long_group(self, step: StepArrays, cache: KvCache, item: int, num_blocks: int) -> _Group:
        spec = cache.spec
        length, past = int(step.q_lens[item]), int(step.pos_offsets[item])
        gather = _gather_index(step.tables[item : item + 1, :num_blocks].astype(np.int64), cache)
        begin = int(step.q_starts[item])
        tiles = []
        for first in range(0, length, QUERY_TILE):
            last = min(first + QUERY_TILE, length)
            tiles.append(
                (first, last, past + last, self._causal_mask(last - first, past + first, past + last, spec))
            )
        index = torch.from_numpy(gather).to(spec.device)
        return _Group(1, length, slice(begin, begin + length), index, False, tuple(tiles))

    def _causal_mask(self, queries: int, past: int, keys: int, spec: KvSpec) -> torch.Tensor:
        """Additive mask [1, 1, queries, keys] that hides key j from query r iff j > past + r.

        A window of one band matrix `band[r, x] = -inf iff x > middle + r`, kept and grown as needed.
        """
        band = self._band
        if band is None or past > band.shape[1] - QUERY_TILE:
            middle = max(2 * past, 1024)
            columns = torch.arange(middle + QUERY_TILE, device=spec.device)
            hidden = columns > middle + torch.arange(QUERY_TILE, device=spec.device)[:, None]
            band = torch.zeros(hidden.shape, dtype=spec.dtype, device=spec.device).masked_fill_(
                hidden, -torch.inf
            )
            self._band = band
        first = band.shape[1] - QUERY_TILE - past
        return band[None, None, :queries, first : first + keys]


def _gather_index(tables: np.ndarray, cache: KvCache) -> np.ndarray:
    """int64 [2 * b * kv_heads * width]: where the blocks of `tables` [b, width] lie, keys first, then values."""
    kv_heads = cache.spec.num_kv_heads
    index = (tables[:, None, :] * kv_heads + np.arange(kv_heads)[None, :, None]).ravel()
    return np.concatenate((index, index + cache.num_blocks * kv_heads))


def _rows(starts: np.ndarray, length: int, device: torch.device) -> torch.Tensor | slice:
    """The query rows of items that begin at `starts`: a slice where they are neighbours."""
    if (np.diff(starts) == length).all():
        return slice(int(starts[0]), int(starts[0]) + length * len(starts))
    return torch.from_numpy((starts[:, None] + np.arange(length)).ravel().astype(np.int64)).to(device)


def _attend_group(
    group: _Group, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one group; q [b * length, heads, head_dim], and the result likewise."""
    items, length = group.items, group.length
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads = k.shape[1]
    if group.gather is None:
        keys = k.view(items, length, kv_heads, head_dim).transpose(1, 2)
        values = v.view(items, length, kv_heads, head_dim).transpose(1, 2)
    else:
        block_size = kv.shape[3]
        taken = kv.view(-1, block_size * head_dim).index_select(0, group.gather)
        keys, values = taken.view(2, items, kv_heads, -1, head_dim)
    if group.folded:
        # The query heads that share a key head become rows beside the tokens: keys are read once for all of them.
        shared = heads // kv_heads
        folded = (
            q.view(items, length, kv_heads, shared, head_dim)
            .transpose(1, 2)
            .reshape(items, kv_heads, -1, head_dim)
        )
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.tiles[0][3], scale=scale)
        return (
            out.reshape(items, kv_heads, length, shared, head_dim)
            .transpose(1, 2)
            .reshape(-1, heads, head_dim)
        )
    q = q.view(items, length, heads, head_dim).transpose(1, 2)
    parts = []
    for begin, end, seen, mask in group.tiles:
        part = F.scaled_dot_product_attention(
            q[:, :, begin:end], keys[:, :, :seen], values[:, :, :seen],
            attn_mask=mask, is_causal=mask is None, enable_gqa=heads != kv_heads, scale=scale,
        )  # fmt: skip
        parts.append(part.transpose(1, 2))
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return out.reshape(-1, heads, head_dim)
