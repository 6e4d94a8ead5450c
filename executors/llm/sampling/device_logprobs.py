"""Logprobs of what a step has sampled, computed behind it: whatever chose the tokens, a graph or calls, left the raw logits.

`sampler.describe` says what they are. Nothing here waits for the device: it is described by the rows that want it, whose
numbers come back with the tokens.

    result, int32 [k, 1 + 2 most]   | its own (float32 bits) | values, largest first (float32 bits) | their ids |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executors.contract.batch import SampledToken

_BYTES = 256 << 20
"""Of copies of logits at a time: four of 8 bytes, at most, are there of each."""
_COPIES = 32


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of which of a step's sampled items, `items` int64 [k] in rising order, logprobs are wanted: each `counts` int64 [k] of the
    most likely tokens, at most `most`, beside its own. `rows` int64 [k]: theirs in the step's logits."""

    items: np.ndarray
    rows: np.ndarray
    counts: np.ndarray
    most: int

    @staticmethod
    def of(counts: np.ndarray, rows: np.ndarray, width: int) -> Wanted | None:
        """`counts` int64 of all sampled items, -1 for none, and their rows; None if nobody wants any."""
        items = np.flatnonzero(counts >= 0)
        if not len(items):
            return None
        counts = np.minimum(counts[items], width)
        return Wanted(items, rows[items], counts, int(counts.max()))

    @property
    def words(self) -> int:
        """Of the result."""
        return len(self.items) * (1 + 2 * self.most)

    def read(self, result: np.ndarray, tokens: np.ndarray) -> dict[int, SampledToken]:
        """By item: what the result, int32 [words], says of `tokens` int32, those of all sampled items."""
        lines = result[: self.words].reshape(len(self.items), -1)
        floats, ids = lines[:, : 1 + self.most].view(np.float32), lines[:, 1 + self.most :]
        found = {}
        for line, item, count in zip(
            range(len(lines)), self.items.tolist(), self.counts.tolist(), strict=True
        ):
            own, *values = floats[line, : 1 + count].tolist()
            top = tuple(zip(ids[line, :count].tolist(), values, strict=True))
            found[item] = SampledToken(int(tokens[item]), own, top)
        return found


def described(logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor, most: int) -> torch.Tensor:
    """The result for `rows` int64 [k] of raw `logits` [n, V], whose tokens are among `tokens` int32 [n]."""
    step = max(1, _BYTES // (_COPIES * logits.shape[1]))
    parts = [_described(logits, tokens, rows[i : i + step], most) for i in range(0, len(rows), step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _described(logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor, most: int) -> torch.Tensor:
    wide = logits.index_select(0, rows).float()
    own = tokens.index_select(0, rows).long()[:, None]
    ids = torch.cat((own, _first(wide, most)), 1)
    values = wide.gather(1, ids) - wide.logsumexp(-1, keepdim=True)
    return torch.cat((values.view(torch.int32), ids[:, 1:].int()), 1)


def _first(logits: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [k, count]: the ids of the largest of each row, largest first, of equal ones the lower id first."""
    if not count:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)  # 0 and -0 are one number
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    # One number for both: no two are equal, so that nobody has to look for ties.
    ids = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    best = ((order << 32) | ids).topk(count, -1).values
    return logits.shape[1] - 1 - (best & 0xFFFFFFFF)
