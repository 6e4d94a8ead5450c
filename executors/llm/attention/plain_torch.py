"""`TorchAttention`: attention over paged KV with torch alone, on any device.

Items of a step fall into three kinds:

    short   up to SHORT_QUERY tokens (decode, verification): items of similar length are batched, their KV gathered
    fresh   a prompt's first chunk: attends to its own keys only, causal; equal neighbours are batched
    long    a later chunk: its KV gathered, queries in tiles under a band mask

Layers with a sliding window get groups of their own, in which only the blocks of the window are gathered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from executors.llm.device.table import device_of
from executors.llm.memory import int8_kv
from executors.llm.memory.kv_cache import KvCache, plain
from executors.llm.model.api import Attend
from executors.llm.model.caches import KvSpec
from executors.llm.model.fp8 import narrowed
from executors.llm.step_arrays import StepArrays

SHORT_QUERY = 8
QUERY_TILE = 128
_MERGE_SLACK = 4
"""Number of blocks of padding that cost less than one more call."""
_WIDE = torch.complex128


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries begin..end against keys first..last of the gathered keys. `mask` is additive; None: causal from the start."""

    begin: int
    end: int
    first: int
    last: int
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Group:
    """Items of one SDPA call: `rows` of the step, b items of `length` queries, blocks `gather`ed for keys.

    `gather` int64 [b, blocks]: tables of the keys; None: the keys are those of the rows themselves. `tiles` divide the queries.
    """

    items: int
    length: int
    rows: torch.Tensor | slice
    gather: torch.Tensor | None
    folded: bool
    tiles: tuple[_Tile, ...]


class TorchAttention:
    """Gather over block tables, then torch's scaled dot product attention."""

    name = "torch"

    def __init__(self, why: str = "") -> None:
        """`why`: the reason why no faster backend is used, for `status()`."""
        self.note = "attention: torch (gathers KV before each call)" + (f"; {why}" if why else "")
        self._band: torch.Tensor | None = None

    def begin(self, step: StepArrays, cache: KvCache) -> Attend:
        """See `AttentionBackend`."""
        device, spec = cache.spec.device, cache.spec
        device_of(device).prepare_torch_attention()
        block_size = cache.block_size
        blocks = step.tables[step.item_of_row, step.positions // block_size].astype(np.int64)
        offsets = (step.positions % block_size).astype(np.int64)
        cells = torch.from_numpy(blocks).to(device), torch.from_numpy(offsets).to(device)
        fresh = torch.from_numpy(_fresh_blocks(step, block_size)).to(device)
        groups_of = {window: list(self._groups(step, cache, window)) for window in set(spec.windows)}

        def attend(
            layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None = None
        ) -> torch.Tensor:
            if len(fresh):
                plain(cache.layers[layer]).index_fill_(1, fresh, 0)
            kv, peaks = cache.parts(layer)
            scales = spec.scales(layer)
            sides = plain(kv).transpose(2, 3)
            if peaks is not None:
                q = int8_kv.turned(q).to(q.dtype)
                stored = [int8_kv.narrowed(new) for new in (int8_kv.turned(k), v)]
                for side, side_peaks, (codes, new_peaks) in zip(
                    sides, peaks.transpose(2, 3), stored, strict=True
                ):
                    side.index_put_(cells, codes)
                    side_peaks.index_put_(cells, new_peaks)
                k, v = (int8_kv.widened(*new).to(q.dtype) for new in stored)
            elif spec.kv_dtype is not None:
                # What a token sees is what is stored, whether it is read from there or not.
                narrow = [narrowed(new, scale) for new, scale in zip((k, v), scales, strict=True)]
                for side, new in zip(sides, narrow, strict=True):
                    side.index_put_(cells, plain(new))
                k, v = ((new.float() * scale).to(q.dtype) for new, scale in zip(narrow, scales, strict=True))
            else:
                sides[0].index_put_(cells, k)
                sides[1].index_put_(cells, v)
            groups = groups_of[spec.windows[layer]]
            if len(groups) == 1:
                return _attend_group(groups[0], q, k, v, kv, peaks, spec, scales, sinks)
            out = torch.empty_like(q, memory_format=torch.contiguous_format)
            for group in groups:
                rows = group.rows
                out[rows] = _attend_group(group, q[rows], k[rows], v[rows], kv, peaks, spec, scales, sinks)
            return out

        return attend

    def _groups(self, step: StepArrays, cache: KvCache, window: int | None) -> Iterator[_Group]:
        # The first block that any of an item's queries sees.
        seen_from = (
            np.maximum(0, step.pos_offsets + 1 - window) if window else np.zeros_like(step.pos_offsets)
        )
        firsts = seen_from // cache.block_size
        num_blocks = -(-(step.pos_offsets + step.q_lens) // cache.block_size) - firsts
        short = step.q_lens <= SHORT_QUERY
        if short.any():
            yield from self._short_groups(step, cache, np.flatnonzero(short), firsts, num_blocks, window)
        fresh = ~short & (step.pos_offsets == 0)
        run: list[int] = []
        for i in np.flatnonzero(~short).tolist():
            # A run of neighbours with equal length is one batch.
            if run and (not fresh[i] or i != run[-1] + 1 or step.q_lens[i] != step.q_lens[run[0]]):
                yield self._fresh_group(step, run, cache.spec, window)
                run = []
            if fresh[i]:
                run.append(i)
            else:
                yield self._long_group(step, cache, i, int(firsts[i]), int(num_blocks[i]), window)
        if run:
            yield self._fresh_group(step, run, cache.spec, window)

    def _short_groups(
        self,
        step: StepArrays,
        cache: KvCache,
        items: np.ndarray,
        firsts: np.ndarray,
        num_blocks: np.ndarray,
        window: int | None,
    ) -> Iterator[_Group]:
        """Group items of one query length and similar KV length: at most a third of the gathered KV is padding.

        Item i needs `num_blocks[i]` blocks of its table, from `firsts[i]` on.
        """
        items = items[np.lexsort((num_blocks[items], step.q_lens[items]))]
        begin = 0
        for i in range(1, len(items) + 1):
            if i < len(items) and step.q_lens[items[i]] == step.q_lens[items[begin]]:
                smallest, largest = num_blocks[items[begin]], num_blocks[items[i]]
                if largest - smallest <= _MERGE_SLACK or 3 * largest <= 4 * smallest:
                    continue
            part = np.sort(items[begin:i])
            yield self._short_group(step, cache, part, firsts[part], int(num_blocks[items[i - 1]]), window)
            begin = i

    def _short_group(
        self,
        step: StepArrays,
        cache: KvCache,
        items: np.ndarray,
        firsts: np.ndarray,
        width: int,
        window: int | None,
    ) -> _Group:
        spec = cache.spec
        length = int(step.q_lens[items[0]])
        ends = step.pos_offsets[items] + length
        keys = width * cache.block_size
        # Padding repeats the item's own first block: its values are finite if the item's are.
        columns = firsts[:, None] + np.arange(width)
        used = columns < -(-ends // cache.block_size)[:, None]
        tables = step.tables[items[:, None], np.where(used, columns, firsts[:, None])]
        mask = None
        if length > 1 or ends.min() < keys or (window and ends.max() > window):
            # Key j is visible to query r of an item iff j <= pos_offset + r; a row of the mask serves all heads.
            visible = step.pos_offsets[items][:, None] + np.arange(length)
            if length > 1:
                visible = np.repeat(visible, spec.num_heads // spec.num_kv_heads, axis=1)
            places = (firsts[:, None] * cache.block_size + np.arange(keys))[:, None, None, :]
            hidden = places > visible[:, None, :, None]
            if window:
                hidden |= places <= visible[:, None, :, None] - window
            mask = torch.zeros(hidden.shape, dtype=spec.dtype)
            mask.masked_fill_(torch.from_numpy(hidden), -torch.inf)
            mask = mask.to(spec.device)
        rows = _rows(step.q_starts[items], length, spec.device)
        index = torch.from_numpy(tables.astype(np.int64)).to(spec.device)
        return _Group(len(items), length, rows, index, True, (_Tile(0, length, 0, keys, mask),))

    def _fresh_group(self, step: StepArrays, run: list[int], spec: KvSpec, window: int | None) -> _Group:
        length = int(step.q_lens[run[0]])
        begin = int(step.q_starts[run[0]])
        rows = slice(begin, begin + length * len(run))
        tiles: tuple[_Tile, ...] = (_Tile(0, length, 0, length, None),)
        if window and length > window:
            tiles = self._windowed(length, 0, 0, window, spec)
        elif (spec.softcap is not None or spec.sinks) and length > QUERY_TILE:
            # Scores are written out, see `_attention`: a tile at a time, or they are as large as the square of the chunk.
            tiles = self._unlimited(length, 0, spec)
        return _Group(len(run), length, rows, None, False, tiles)

    def _long_group(
        self, step: StepArrays, cache: KvCache, item: int, first: int, num_blocks: int, window: int | None
    ) -> _Group:
        spec = cache.spec
        length, past = int(step.q_lens[item]), int(step.pos_offsets[item])
        table = step.tables[item : item + 1, first : first + num_blocks]
        begin = int(step.q_starts[item])
        if window and past + length > window:
            tiles = self._windowed(length, past, first * cache.block_size, window, spec)
        else:
            tiles = self._unlimited(length, past, spec)
        index = torch.from_numpy(table.astype(np.int64)).to(spec.device)
        return _Group(1, length, slice(begin, begin + length), index, False, tiles)

    def _unlimited(self, length: int, past: int, spec: KvSpec) -> tuple[_Tile, ...]:
        """Make tiles of `length` queries after `past` tokens; keys start at position 0."""
        tiles = []
        for begin in range(0, length, QUERY_TILE):
            end = min(begin + QUERY_TILE, length)
            mask = self._causal_mask(end - begin, past + begin, past + end, spec)
            tiles.append(_Tile(begin, end, 0, past + end, mask))
        return tuple(tiles)

    def _windowed(self, length: int, past: int, origin: int, window: int, spec: KvSpec) -> tuple[_Tile, ...]:
        """Do the same as `_unlimited`, but each query sees at most `window` keys, and keys start at position `origin`."""
        tiles = []
        for begin in range(0, length, QUERY_TILE):
            end = min(begin + QUERY_TILE, length)
            places = torch.arange(max(0, past + begin + 1 - window), past + end, device=spec.device)
            queries = torch.arange(past + begin, past + end, device=spec.device)[:, None]
            hidden = (places > queries) | (places <= queries - window)
            mask = torch.zeros(hidden.shape, dtype=spec.dtype, device=spec.device)
            first = int(places[0]) - origin
            tiles.append(
                _Tile(
                    begin, end, first, past + end - origin, mask.masked_fill_(hidden, -torch.inf)[None, None]
                )
            )
        return tuple(tiles)

    def _causal_mask(self, queries: int, past: int, keys: int, spec: KvSpec) -> torch.Tensor:
        """Return an additive mask [1, 1, queries, keys] that hides key j from query r iff j > past + r.

        The mask is a view of one band matrix `band[r, x] = -inf iff x > middle + r`, which is kept and grown as needed.
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
        mask = band[None, None, :queries, first : first + keys]
        # A GPU's kernels read masks 16 bytes at a time: a copy begins at a multiple of that, a slice anywhere.
        return mask if spec.device.type == "cpu" else mask.clone(memory_format=torch.contiguous_format)


def _fresh_blocks(step: StepArrays, block_size: int) -> np.ndarray:
    """Return the blocks that a sequence begins in this step and does not fill. Their old contents are read as padding with
    weight 0; a NaN or infinity times 0 would still be NaN, so the blocks are zeroed first."""
    ends = step.pos_offsets + step.q_lens
    last = (ends - 1) // block_size
    partial = (last * block_size >= step.pos_offsets) & (ends % block_size != 0)
    return step.tables[partial, last[partial]].astype(np.int64)


def _gathered(kv: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return keys and values [2, b, kv_heads, width * block_size, head_dim] of the blocks `tables` [b, width]."""
    heads = plain(kv).flatten(3)
    # Torch copies an element at a time here: 16 bytes take as long as 2. (`index_select` would copy all blocks first.)
    size = heads.element_size()
    places = (*heads.stride()[:-1], heads.shape[-1], heads.storage_offset())
    if all(place * size % _WIDE.itemsize == 0 for place in places):
        heads = heads.view(_WIDE)
    copied = heads[:, tables[:, None, :], torch.arange(kv.shape[2], device=kv.device)[None, :, None]]
    return copied.view(kv.dtype).reshape(2, len(tables), kv.shape[2], -1, kv.shape[4])


def _gathered_peaks(peaks: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Return the peaks [2, b, kv_heads, width * block_size] of the blocks `tables` [b, width]."""
    copied = peaks[:, tables[:, None, :], torch.arange(peaks.shape[2], device=peaks.device)[None, :, None]]
    return copied.flatten(3)


def _rows(starts: np.ndarray, length: int, device: torch.device) -> torch.Tensor | slice:
    """Return the query rows of items that begin at `starts`; a slice if they are adjacent."""
    if (np.diff(starts) == length).all():
        return slice(int(starts[0]), int(starts[0]) + length * len(starts))
    return torch.from_numpy((starts[:, None] + np.arange(length)).ravel().astype(np.int64)).to(device)


def _attend_group(
    group: _Group, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv: torch.Tensor, peaks: torch.Tensor | None, spec: KvSpec,
    scales: tuple[float, float], sinks: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Compute attention of one group; q [b * length, heads, head_dim], and the result likewise. `scales` are those of the
    stored `kv`, and `peaks` those in int8 have; `sinks` [heads]: see `Attend`."""
    items, length = group.items, group.length
    heads, head_dim = q.shape[1], q.shape[2]
    kv_heads = k.shape[1]
    if group.gather is None:
        keys = k.view(items, length, kv_heads, head_dim).transpose(1, 2)
        values = v.view(items, length, kv_heads, head_dim).transpose(1, 2)
    else:
        keys, values = _gathered(kv, group.gather)
        if peaks is not None:
            keys, values = int8_kv.widened(
                torch.stack((keys, values)), _gathered_peaks(peaks, group.gather)
            ).to(q.dtype)
        elif kv.dtype is not q.dtype:
            keys, values = (keys.float() * scales[0]).to(q.dtype), (values.float() * scales[1]).to(q.dtype)
    if group.folded:
        # The query heads that share a key head become rows beside the tokens: keys are read once for all of them.
        shared = heads // kv_heads
        folded = (
            q.view(items, length, kv_heads, shared, head_dim)
            .transpose(1, 2)
            .reshape(items, kv_heads, -1, head_dim)
        )
        if sinks is not None:
            sinks = sinks.view(kv_heads, shared).repeat(1, length)
        out = _attention(folded, keys, values, group.tiles[0].mask, False, spec, sinks)
        return (
            out.reshape(items, kv_heads, length, shared, head_dim)
            .transpose(1, 2)
            .reshape(-1, heads, head_dim)
        )
    q = q.view(items, length, heads, head_dim).transpose(1, 2)
    sinks = None if sinks is None else sinks[:, None]
    parts = []
    for tile in group.tiles:
        visible = slice(tile.first, tile.last)
        part = _attention(
            q[:, :, tile.begin : tile.end],
            keys[:, :, visible],
            values[:, :, visible],
            tile.mask,
            tile.mask is None,
            spec,
            sinks,
        )
        parts.append(part.transpose(1, 2))
    out = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return out.reshape(-1, heads, head_dim)


def _attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    spec: KvSpec,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """softmax(q k^T) v per head; q [b, heads, n, head_dim], keys and values [b, kv_heads, m, head_dim], `sinks` [heads, n or 1]
    the logits without values."""
    shared = q.shape[1] // keys.shape[1]
    if spec.softcap is None and sinks is None:
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=shared > 1, scale=spec.scale
        )
    # No fused kernel bounds the scores or adds a logit, so they are written out.
    if shared > 1:
        keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
    # In fp32: rounded to bf16 three times on the way the result was off by 0.8 to 1.1%, now 0.4 to 0.8; without bounds 0.3.
    scores = (q @ keys.mT).float()
    if spec.softcap is None:
        scores = scores * spec.scale
    else:
        scores = torch.tanh(scores * (spec.scale / spec.softcap)) * spec.softcap
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    shares = scores.softmax(-1)
    if sinks is not None:
        # With total T = sum(exp(score)), exp(score) / (T + exp(sink)) = exp(score) / T * sigmoid(log(T) - sink).
        shares = shares * torch.sigmoid(scores.logsumexp(-1, keepdim=True) - sinks.float()[..., None])
    return shares.to(q.dtype) @ values
