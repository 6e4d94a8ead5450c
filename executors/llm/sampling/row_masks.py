"""Token masks on the device: which tokens a grammar lets come next, a bit each.

    table    row 0  | bits of tokens 0 .. 31 | 32 .. 63 | ...        one row per sampled row that has a mask
             row 1  | ...
    rows     -1, 0, -1, 1, ...                                       for each sampled row, its row of the table

The host makes a mask when it knows the token before it, while the forward runs; the sampler reads it. A row without a mask reads
none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BITS = 32
"""Tokens of a word."""


def mask_words(width: int) -> int:
    """Return the number of int32 words of a mask of `width` tokens."""
    return -(-width // BITS)


@dataclass(frozen=True, slots=True)
class RowMasks:
    """Masks of n rows of logits.

    `table` int32 [m, mask_words]: token t may come if bit `t % 32` of word `t // 32` is set, the lowest first; `rows` int32 [n]:
    indices into the table, -1 for logits that are not masked.
    """

    table: torch.Tensor
    rows: torch.Tensor

    def part(self, rows: slice) -> RowMasks:
        """Return the masks of some of the rows."""
        return RowMasks(self.table, self.rows[rows])


def masked(logits: torch.Tensor, masks: RowMasks) -> torch.Tensor:
    """Return logits [n, V] of any float dtype with -inf added where a mask forbids a token: a NaN or +inf stays noticed."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    words = masks.table.index_select(0, masks.rows.clamp_min(0))[:, ids // BITS]
    forbidden = ((words >> (ids % BITS)) & 1) == 0
    forbidden &= (masks.rows >= 0)[:, None]
    return logits + torch.zeros_like(logits).masked_fill_(forbidden, -torch.inf)
