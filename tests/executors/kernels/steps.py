"""Steps over paged KV, and attention over them as plainly as possible."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from executors.llm.attention.backend import AttentionBackend
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec
from executors.llm.step_arrays import StepArrays


def to_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows [..., n] to int8 [..., n] with a float32 scale [..., 1] each; of a row that is not finite it is NaN."""
    x = x.float()
    largest = x.abs().amax(-1, keepdim=True)
    scale = torch.where(largest.isfinite(), largest / 127, torch.nan)
    inverse = torch.where(
        largest > 0, torch.tensor(127.0).div(largest), 0
    )  # 127 / largest is 127 * (1 / largest) in torch
    codes = (x * inverse).round().nan_to_num(0)
    return codes.to(torch.int8), scale


def spec(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, **changes) -> KvSpec:
    """Of one layer."""
    values = {"scale": head_dim**-0.5, "softcap": None, "windows": (None,), **changes}
    return KvSpec(1, heads, kv_heads, head_dim, dtype, torch.device("cpu"), **values)


@dataclass
class Sequences:
    """Whole sequences with queries, keys and values of every token, and blocks in random order that no other has.

    Cells that no token was written to are NaN. If the layer has sinks, `sinks` [heads] are as large as the sum of some keys'
    weights, which neither hides them nor the keys.
    """

    spec: KvSpec
    lengths: list[int]
    block_size: int = 16
    seed: int = 0
    q: list[torch.Tensor] = field(default_factory=list)
    k: list[torch.Tensor] = field(default_factory=list)
    v: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        noise = torch.Generator().manual_seed(self.seed)
        s = self.spec
        self.sinks: torch.Tensor | None = None
        if s.sinks:
            self.sinks = (2.0 + torch.randn(s.num_heads, generator=noise)).to(s.dtype)
        for length in self.lengths:
            for kept, heads in ((self.q, s.num_heads), (self.k, s.num_kv_heads), (self.v, s.num_kv_heads)):
                kept.append(torch.randn(length, heads, s.head_dim, generator=noise).to(s.dtype))
        needed = [-(-length // self.block_size) for length in self.lengths]
        self.num_blocks = sum(needed) + 2
        order = np.random.default_rng(self.seed).permutation(self.num_blocks)
        self.tables = np.full((len(needed), max(needed, default=0) + 1), order[-1], np.int32)
        for i, count in enumerate(needed):
            self.tables[i, :count] = order[sum(needed[:i]) :][:count]

    def cache(self, past: list[int]) -> KvCache:
        """KV in which the first `past` tokens of each sequence are computed."""
        cache = KvCache(self.spec, self.num_blocks, self.block_size)
        if self.spec.kv_dtype is torch.int8:
            self._fill_int8(cache.layers[0], past)
            return cache
        cache.layers[0].fill_(torch.nan)
        for i, count in enumerate(past):
            where = np.arange(count)
            blocks = torch.from_numpy(self.tables[i, where // self.block_size].astype(np.int64))
            offsets = torch.from_numpy(where % self.block_size)
            cache.layers[0][0][blocks, :, offsets] = self.k[i][:count]
            cache.layers[0][1][blocks, :, offsets] = self.v[i][:count]
        return cache

    def _fill_int8(self, layer: torch.Tensor, past: list[int]) -> None:
        """As attention_int8.h lays cells out: written number by number."""
        size, even = self.block_size, -(-self.spec.head_dim // 2) * 2
        layer.fill_(-1)  # as a scale: NaN
        planes = layer.numpy()
        for index, (plane, kept) in enumerate(zip(planes, (self.k, self.v), strict=True)):
            codes, scales = plane[..., : size * even], plane[..., size * even :].view(np.float32)
            for i, count in enumerate(past):
                rounded, factors = (part.numpy() for part in to_int8(kept[i][:count]))
                for token in range(count):
                    block, at = self.tables[i, token // size], token % size
                    scales[block, :, at] = factors[token, :, 0]
                    for head in range(self.spec.num_kv_heads):
                        numbers = codes[block, head]
                        if index == 0:
                            cell = numbers.reshape(size // 16, even // 2, 16, 2)[at // 16, :, at % 16]
                            cell[...] = np.resize(np.append(rounded[token, head], [0]), even).reshape(-1, 2)
                        else:
                            numbers.reshape(size // 2, even, 2)[at // 2, : self.spec.head_dim, at % 2] = (
                                rounded[token, head]
                            )

    def run(
        self, items: list[tuple[int, int, int]], attention: AttentionBackend, cache: KvCache | None = None
    ) -> torch.Tensor:
        """One step of (sequence, first position, tokens): [T, heads, head_dim]."""
        if cache is None:
            past = [0] * len(self.lengths)
            for i, begin, _ in items:
                past[i] = max(past[i], begin)
            cache = self.cache(past)
        seqs, begins, counts = np.array(items, np.int64).reshape(-1, 3).T
        step = StepArrays(np.zeros(counts.sum(), np.int64), counts, begins, self.tables[seqs])
        # As the decoder hands them over: parts of one tensor.
        parts = [torch.cat([x[i][b : b + n] for x in (self.q, self.k, self.v)], 1) for i, b, n in items]
        qkv = torch.cat(parts) if parts else torch.cat([x[0][:0] for x in (self.q, self.k, self.v)], 1)
        q, k, v = qkv.split((self.spec.num_heads, self.spec.num_kv_heads, self.spec.num_kv_heads), 1)
        return attention.begin(step, cache)(0, q, k, v, self.sinks)

    def expected(self, items: list[tuple[int, int, int]], sinks: bool = True) -> torch.Tensor:
        """The same by the formula: in float32; over int8 in float64, of what the cells hold. `sinks` False: without those
        that the layer has."""
        s, out = self.spec, []
        shared, window = s.num_heads // s.num_kv_heads, s.windows[0]
        for i, begin, count in items:
            end = begin + count
            q, k, v = self.q[i][begin:end].float(), self.k[i][:end].float(), self.v[i][:end].float()
            if s.kv_dtype is torch.int8:
                q, (k, v) = q.double(), (codes.double() * scale for codes, scale in map(to_int8, (k, v)))
            k, v = (x.repeat_interleave(shared, 1) for x in (k, v))
            scores = torch.einsum("qhd,khd->hqk", q, k) * s.scale
            if s.softcap is not None:
                scores = s.softcap * torch.tanh(scores / s.softcap)
            behind = torch.arange(begin, end)[:, None] - torch.arange(end)
            hidden = (behind < 0) | (behind >= window) if window else behind < 0
            scores = scores.masked_fill(hidden, -torch.inf)
            if self.sinks is not None and sinks:
                column = self.sinks.to(scores.dtype)[:, None, None].expand(-1, count, 1)
                scores = torch.cat((scores, column), -1)
            weights = scores.softmax(-1)[..., :end]
            out.append(torch.einsum("hqk,khd->qhd", weights, v))
        return torch.cat(out) if out else torch.empty(0, s.num_heads, s.head_dim)
