"""Checks that an attention backend computes correct results on this device for this model, on random sequences over shuffled
blocks against the formula in float32.

Libraries have given wrong results without an error where paging, sequences of different lengths and splits of keys are
combined, so a chosen library is checked first: prompt chunks beside decode steps, then decode steps alone, then the longest
sequence alone. Cohort's own kernels are checked with the same problem and reported in the same words: see
`kernel_support/kernel_check.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from executors.contract.faults import no_device_memory
from executors.llm.lean_torch import random_numbers
from executors.llm.memory import int8_kv
from executors.llm.memory.kv_cache import KvCache, plain
from executors.llm.model.api import Attend
from executors.llm.model.caches import KvSpec
from executors.llm.model.fp8 import narrowed
from executors.llm.step_arrays import StepArrays

LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest relative error of a token's head: about ten times what rounding to the dtype explains. Actual faults exceed it by
far."""
PAST = (300, 0, 5, 517, 1000)
CHUNKS = (1, 37, 1, 200, 8)
_SPARE = 2
_NO_NUMBER = 0xFF
"""Bytes that are NaN in e4m3, and in the float32 of peaks."""


class Backend(Protocol):
    """The part of an `AttentionBackend` that is checked."""

    def begin(self, step: StepArrays, cache: KvCache) -> Attend:
        """See `AttentionBackend`."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A sequence's queries [length, heads, head_dim], keys and values [length, kv_heads, head_dim]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor


class Problem:
    """Sequences of random queries, keys and values, and a cache that holds the first `past` tokens of each.

    Cells that no token of these sequences was written to hold NaN, except for the rest of a partly filled block: a backend
    need not expect NaN after tokens of the same sequence. There is a layer for each window of `spec`. If KV is in e4m3 or int8,
    keys and values are representable in it, so that rounding them again changes nothing.
    """

    def __init__(
        self, spec: KvSpec, block_size: int, past: Sequence[int], more: Sequence[int], seed: int = 0
    ) -> None:  # fmt: skip
        """`more`: the number of tokens that each sequence is going to get."""
        self.windows = tuple(dict.fromkeys(spec.windows))
        self._scales = spec.scales(0)
        self.spec = replace(
            spec, num_layers=len(self.windows), windows=self.windows,
            kv_scales=(self._scales,) * len(self.windows) if spec.kv_scales else (),
        )  # fmt: skip
        self.past = np.array(past, np.int64)
        lengths = self.past + np.array(more, np.int64)
        noise = random_numbers(seed)

        def random(length: int, heads: int) -> torch.Tensor:
            values = torch.randn(length, heads, spec.head_dim, generator=noise)
            return values.to(spec.dtype).to(spec.device)

        def held(length: int, side: int) -> torch.Tensor:
            scale = self._scales[side]
            values = random(length, spec.num_kv_heads)
            if spec.kv_dtype is None:
                return values
            if spec.kv_dtype is torch.int8:
                rounded = int8_kv.widened(*int8_kv.narrowed(values if side else int8_kv.turned(values)))
                return (rounded if side else int8_kv.turned(rounded)).to(spec.dtype)
            return (narrowed(values, scale).float() * scale).to(spec.dtype)

        self.items = [
            _Item(random(n, spec.num_heads), *(held(n, side) for side in range(2))) for n in lengths.tolist()
        ]
        self._sinks: torch.Tensor | None = None
        if spec.sinks:
            # About as large as the sum of some keys' weights, which neither hides the sink nor the keys.
            logits = 2.0 + torch.randn(spec.num_heads, generator=noise)
            self._sinks = logits.to(spec.dtype).to(spec.device)
        needed = -(-lengths // block_size)
        order = np.random.default_rng(seed).permutation(int(needed.sum()) + _SPARE)
        # A table's unused entries name an arbitrary block, which no kernel may read.
        self.tables = np.full((len(needed), int(needed.max())), order[-1], np.int32)
        for i, (count, end) in enumerate(zip(needed, np.cumsum(needed), strict=True)):
            self.tables[i, :count] = order[end - count : end]
        self.cache = KvCache(self.spec, len(order), block_size)
        self._fill(block_size)

    def _fill(self, block_size: int) -> None:
        device = self.spec.device
        for layer in self.cache.layers:
            if self.spec.kv_dtype is None:
                layer.fill_(torch.nan)
            else:
                layer.view(torch.uint8).fill_(_NO_NUMBER)
        for item, table, count in zip(self.items, self.tables, self.past.tolist(), strict=True):
            places = np.arange(count)
            own_blocks = torch.from_numpy(table[: -(-count // block_size)].astype(np.int64)).to(device)
            blocks = torch.from_numpy(table[places // block_size].astype(np.int64)).to(device)
            offsets = torch.from_numpy(places % block_size).to(device)
            for number, layer in enumerate(self.cache.layers):
                plain(layer).index_fill_(1, own_blocks, 0)
                self._store(number, (item.k[:count], item.v[:count]), blocks, offsets)

    def _store(
        self, layer: int, new: tuple[torch.Tensor, torch.Tensor], blocks: torch.Tensor, offsets: torch.Tensor
    ) -> None:
        """Write keys and values [n, kv_heads, head_dim] to places `offsets` of `blocks`, both int64 [n]."""
        kv, peaks = self.cache.parts(layer)
        for number, (values, scale) in enumerate(zip(new, self._scales, strict=True)):
            if peaks is not None:
                values, their_peaks = int8_kv.narrowed(values if number else int8_kv.turned(values))
                peaks[number].transpose(1, 2)[blocks, offsets] = their_peaks
            elif self.spec.kv_dtype is not None:
                values = plain(narrowed(values, scale))
            plain(kv[number]).transpose(1, 2)[blocks, offsets] = values

    def step(self, backend: Backend, counts: Sequence[int]) -> float:
        """Compute the next `counts` tokens of each sequence (0: the sequence is not in this step) in every layer. Return the
        largest relative error of a token's head; infinity if a result is not a number."""
        q_lens = np.array(counts, np.int64)
        chosen = np.flatnonzero(q_lens)
        q_lens, past = q_lens[chosen], self.past[chosen]
        step = StepArrays(np.zeros(int(q_lens.sum()), np.int64), q_lens, past, self.tables[chosen])
        ranges = list(zip(chosen.tolist(), past.tolist(), (past + q_lens).tolist(), strict=True))
        # As a decoder hands them over: parts of one tensor.
        sides = ((self.items[i].q, self.items[i].k, self.items[i].v) for i, _, _ in ranges)
        rows = [
            torch.cat([side[a:b] for side in item], 1) for item, (_, a, b) in zip(sides, ranges, strict=True)
        ]
        heads, kv_heads = self.spec.num_heads, self.spec.num_kv_heads
        q, k, v = torch.cat(rows).split((heads, kv_heads, kv_heads), 1)
        attend = backend.begin(step, self.cache)
        worst = 0.0
        for layer, window in enumerate(self.windows):
            output = attend(layer, q, k, v, self._sinks).float()
            expected = torch.cat([self._expected(i, a, b, window) for i, a, b in ranges])
            error = (output - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-6)
            worst = max(worst, float(error.nan_to_num(torch.inf).max()))
        self.past[chosen] += q_lens
        return worst

    def _expected(self, i: int, begin: int, end: int, window: int | None) -> torch.Tensor:
        """float32 [end - begin, heads, head_dim]."""
        spec, item = self.spec, self.items[i]
        # Keys are not repeated for the heads that share them: of a long sequence that would take a hundred megabytes.
        q = item.q[begin:end].float().unflatten(1, (spec.num_kv_heads, -1))
        k, v = (side[:end].float() for side in (item.k, item.v))
        scores = torch.einsum("qgsd,kgd->gsqk", q, k) * spec.scale
        if spec.softcap is not None:
            scores = spec.softcap * torch.tanh(scores / spec.softcap)
        behind = torch.arange(begin, end, device=q.device)[:, None] - torch.arange(end, device=q.device)
        hidden = behind < 0 if window is None else (behind < 0) | (behind >= window)
        scores = scores.masked_fill(hidden, -torch.inf)
        if self._sinks is not None:  # the last column, which has no value
            sinks = self._sinks.float().view(spec.num_kv_heads, -1, 1, 1)
            scores = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1)
        shares = scores.softmax(-1)[..., :end]
        return torch.einsum("gsqk,kgd->qgsd", shares, v).flatten(1, 2)


@torch.inference_mode()
def fault(backend: Backend, spec: KvSpec, block_size: int) -> str | None:
    """Describe in one line what is wrong with a backend; return None if its results are correct. Takes some ten milliseconds
    on a GPU, and some ten megabytes during that time."""

    def worst() -> float:
        problem = Problem(spec, block_size, PAST, [count + 2 for count in CHUNKS])
        longest = [int(past == max(PAST)) for past in PAST]
        return max(problem.step(backend, counts) for counts in (CHUNKS, [1] * len(PAST), longest))

    return verdict(worst, LIMITS[spec.dtype])


def verdict(worst: Callable[[], float], limit: float) -> str | None:
    """Run `worst`, which returns the largest error; describe in one line what is wrong, or return None if the error is within
    the limit. Raises an error that says the device is out of memory, because that does not make results wrong."""
    try:
        difference = worst()
    except Exception as error:  # whatever a library, or a compiler, makes of it
        if no_device_memory(error) is not None:
            raise
        return f"its self-check failed: {(str(error).splitlines() or [type(error).__name__])[0]}"
    if difference > limit:
        return f"its results are wrong here: they differ from the reference by {difference:.1%}"
    return None
