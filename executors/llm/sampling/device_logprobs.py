"""Logprobs of the tokens that a step sampled, computed after it. Graphs and calls alike leave the raw logits for this.

`sampler.describe` defines the values. Nothing here waits for the device: logprobs are computed only for the rows that request
them, and the numbers return with the tokens.

    result, int32 [k, 1 + 2 most]   | its own (float32 bits) | values, largest first (float32 bits) | their ids |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executors.contract.batch import SampledToken

_BYTES = 256 << 20
"""Memory for copies of logits at a time, in bytes; each logit takes at most four copies of 8 bytes."""
_COPIES = 32


@dataclass(frozen=True, slots=True)
class LogprobRows:
    """The sampled items of a step that request logprobs.

    `items` int64 [k], ascending; `counts` int64 [k], at most `most`: how many of the most likely tokens each item gets beside
    its own; `rows` int64 [k]: the items' rows in the step's logits.
    """

    items: np.ndarray
    rows: np.ndarray
    counts: np.ndarray
    most: int

    @staticmethod
    def of(counts: np.ndarray, rows: np.ndarray, width: int) -> LogprobRows | None:
        """`counts` int64 of all sampled items, -1 for none, and their rows. Return None if no item requests logprobs."""
        items = np.flatnonzero(counts >= 0)
        if not len(items):
            return None
        counts = np.minimum(counts[items], width)
        return LogprobRows(items, rows[items], counts, int(counts.max()))

    @property
    def words(self) -> int:
        """Number of int32 words of the result."""
        return len(self.items) * (1 + 2 * self.most)

    def read(self, result: np.ndarray, tokens: np.ndarray) -> dict[int, SampledToken]:
        """Return the logprobs by item, read from the result, int32 [words]. `tokens` int32 are those of all sampled items."""
        lines = result[: self.words].reshape(len(self.items), -1)
        floats, ids = lines[:, : 1 + self.most].view(np.float32), lines[:, 1 + self.most :]
        sampled = {}
        for line, item, count in zip(
            range(len(lines)), self.items.tolist(), self.counts.tolist(), strict=True
        ):
            own, *values = floats[line, : 1 + count].tolist()
            top = tuple(zip(ids[line, :count].tolist(), values, strict=True))
            sampled[item] = SampledToken(int(tokens[item]), own, top)
        return sampled


def described(logits: torch.Tensor, tokens: torch.Tensor, rows: torch.Tensor, most: int) -> torch.Tensor:
    """Compute the result for `rows` int64 [k] of raw `logits` [n, V]; their tokens are among `tokens` int32 [n]."""
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
    """Return int64 [k, count]: the ids of the largest logits of each row, largest first; equal ones in ascending order of
    ids."""
    if not count:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    bits = (logits + 0.0).view(torch.int32)  # 0 and -0 are one number
    order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    # One number for both: no two are equal, so there are no ties to look for.
    ids = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    best = ((order << 32) | ids).topk(count, -1).values
    return logits.shape[1] - 1 - (best & 0xFFFFFFFF)
