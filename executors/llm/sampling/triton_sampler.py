"""`TritonSampler`: a token for every row of a step, chosen on the device: what a captured graph can hold.

What the token is, `executors/contract/reference_sampler.py` fixes: the first id, in vocabulary order, at which the
cumulative weight of the processed distribution exceeds u x total, u the noise of (seed, choice, position). Temperature,
top-k, top-p and min-p are done here, together, and mixed with greedy rows, over logits that `RowShaping` and `RowMasks` may
change. Typical-p is not: a step with such a row samples with `executors/llm/sampling/sampler.py`.

Cumulative weights agree with those of float64 to about 1e-6 of their total: where a target, or the end of a top-p set, lies
nearer to a border than that, the neighbour may be drawn. A row's token is the same alone and in any batch.
"""

from __future__ import annotations

import torch
import triton

from executors.kernels.shaping_layout import result_words, row_words
from executors.kernels.triton import sampling
from executors.kernels.triton.tuning import choose
from executors.llm.sampling.columns import SamplingColumns
from executors.llm.sampling.device_shaping import RowShaping
from executors.llm.sampling.row_masks import RowMasks

MAX_WIDTH = 1 << 20
"""Sums of more weights would not fit: see `sampling.ONE`."""
_TILES = 256
"""Tiles of a row at most: their maxima bound a top-k of up to so many."""
_CAPACITY = 4096
"""Candidates that are taken out of a row. The limits of a row with more are found in the row: right, and slower."""
_DROPPED = {torch.float32: 0, torch.float16: 12, torch.bfloat16: 16}
"""Lowest bits of a float32 that tell no two numbers of a type apart, in groups of four."""


class TritonSampler:
    """Samples up to `max_rows` rows of `width` logits at a time. All memory is its own and made here, about `capacity` x 8 bytes
    a row; one sampler serves one stream. A `capacity` other than the usual one changes no token.

    Raises ValueError for a width that the kernels cannot sum, or rows that a launch cannot have.
    """

    name = "triton"

    def __init__(
        self, max_rows: int, width: int, device: torch.device | str, *, capacity: int = _CAPACITY
    ) -> None:
        if not 0 < width <= MAX_WIDTH:
            raise ValueError(f"a vocabulary of {width} logits: 1 to {MAX_WIDTH} can be sampled")
        if not 0 < max_rows < 1 << 16:
            raise ValueError(f"{max_rows} rows: 1 to {(1 << 16) - 1} can be sampled")
        self.max_rows, self.width, self.capacity = max_rows, width, capacity
        self._tile = max(16, triton.next_power_of_2(-(-width // _TILES)))
        self._num_tiles = -(-width // self._tile)

        def make(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(max_rows, *shape, dtype=dtype, device=device)

        self._maxima, self._sums = (make(torch.float32, self._num_tiles) for _ in range(2))
        self._bests, self._totals = make(torch.float32), make(torch.int64)
        self._lengths = make(torch.int32)
        self._candidates, self._ids = make(torch.float32, capacity), make(torch.int32, capacity)
        minus_one, zero = (
            torch.full((max_rows,), value, dtype=torch.int32, device=device) for value in (-1, 0)
        )
        none = torch.zeros(1, row_words(1), dtype=torch.int32, device=device)
        results = torch.zeros(1, result_words(1), dtype=torch.float32, device=device)
        self._unshaped = RowShaping(none, minus_one, zero, zero, zero, results)
        self._unmasked = RowMasks(none, minus_one)

    def sample(
        self, logits: torch.Tensor, settings: SamplingColumns[torch.Tensor], tokens: torch.Tensor, bad: torch.Tensor,
        shaping: RowShaping | None = None, masks: RowMasks | None = None,
    ) -> None:  # fmt: skip
        """Write to `tokens` int32 [n] the token of each row of raw `logits` [n, width], and to `bad`, int8 or bool [n], whether
        its logits were not finite (a NaN, +inf, or nothing but -inf); its token is 0 then. `shaping` changes logits as they are
        read, and its inputs are counted; then `masks` forbid tokens; 2 in `bad`, int8: of a finite row they have left nothing.

        `logits` float32, fp16 or bf16 of unit stride within a row; they are not changed. Raises ValueError for others, and
        for more rows than the sampler was made for.
        """
        n = self._check(logits, tokens, bad)
        if not n:
            return
        compiled = {"WIDTH": self.width, "TILE": self._tile}
        tiles = triton.next_power_of_2(self._num_tiles)
        of_tiles, of_rows, of_limits = (choose("sample", "", name) for name in ("tiles", "rows", "limits"))
        parts, group = (min(max(1, one.depth // self._tile), tiles) for one in (of_tiles, of_rows))
        flags, drop = bad.view(torch.int8), _DROPPED[logits.dtype]
        shaping = shaping or self._unshaped
        masks = masks or self._unmasked
        shape = (
            shaping.table, shaping.table.stride(0), shaping.rows, shaping.lengths, shaping.inputs, shaping.guessed,
            shaping.results, shaping.results.stride(0),
            masks.table, masks.table.stride(0), masks.rows,
        )  # fmt: skip
        sampling.tiles_kernel[(-(-self._num_tiles // parts), n)](
            logits, settings.temperature, settings.top_k, settings.min_p, self._maxima, self._sums,
            logits.stride(0), self._num_tiles, *shape, PARTS=parts, num_warps=of_tiles.warps,
            enable_fp_fusion=False,  # penalties, as the host computes them
            **compiled,
        )  # fmt: skip
        sampling.rows_kernel[(n,)](
            logits, settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.u,
            self._maxima, self._sums, tokens, flags, self._bests, self._totals, self._lengths, self._candidates, self._ids,
            logits.stride(0), self._num_tiles, *shape,
            TILES=tiles, GROUP=group, CAPACITY=self.capacity, DROP=drop,
            num_warps=of_rows.warps, **compiled,
        )  # fmt: skip
        sampling.limits_kernel[(n,)](
            logits, settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.u, tokens,
            self._bests, self._totals, self._lengths, self._candidates, self._ids, logits.stride(0), *shape,
            WIDTH=self.width, CAPACITY=self.capacity, DROP=drop,
            LIST=min(of_limits.depth, triton.next_power_of_2(self.width)), num_warps=of_limits.warps,
        )  # fmt: skip

    def _check(self, logits: torch.Tensor, tokens: torch.Tensor, bad: torch.Tensor) -> int:
        """How many rows. Raises ValueError as `sample`."""
        if logits.dtype not in _DROPPED:
            raise ValueError(f"logits are {logits.dtype}; float32, float16 and bfloat16 can be sampled")
        n, width = logits.shape
        if width != self.width or (width > 1 and logits.stride(1) != 1):
            raise ValueError(f"logits are {width} wide, strides {logits.stride()}; made for {self.width}")
        if n > self.max_rows or len(tokens) < n or len(bad) < n:
            raise ValueError(
                f"{n} rows; made for {self.max_rows}, with room for {len(tokens)} and {len(bad)}"
            )
        return n
