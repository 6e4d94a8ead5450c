"""Sampling without the host: settings and noise arrive as tensors, tokens stay on the device. Nothing is read back here.

Handles temperature, top-k, top-p and min-p, shaped logits (`device_shaping.py`) and masks (`row_masks.py`);
`contract/reference_sampler.py` defines the token. Rows that need more (typical-p) are sampled by `sampler.py` with the host's
help.
"""

from __future__ import annotations

from typing import Protocol

import torch

from executors.llm.sampling.columns import MIN_TEMPERATURE, SamplingColumns
from executors.llm.sampling.device_shaping import RowShaping, count_inputs, shaped
from executors.llm.sampling.row_masks import RowMasks, masked

_ROWS = 32
"""Rows sampled at a time: each takes a few float64 copies of its logits."""


class DeviceSampler(Protocol):
    """Samples the rows of a step that need no help from the host."""

    name: str
    """Name for `status()`."""

    def sample(
        self, logits: torch.Tensor, settings: SamplingColumns[torch.Tensor], tokens: torch.Tensor, bad: torch.Tensor,
        shaping: RowShaping | None = None, masks: RowMasks | None = None,
    ) -> None:  # fmt: skip
        """Write the token of each row of raw `logits` [n, V] to `tokens` int32 [n].

        `bad` int8 [n] receives 1 for a row without a finite maximum and 2 for a row in which `shaping` and `masks` forbid every
        token; the token of such a row is an arbitrary one of the vocabulary. Inputs that `shaping` has not counted yet are
        counted.
        """


class TorchDeviceSampler:
    """A `DeviceSampler` of torch calls. It sorts whole rows in float64, because its purpose is correctness."""

    name = "torch"

    def sample(
        self, logits: torch.Tensor, settings: SamplingColumns[torch.Tensor], tokens: torch.Tensor, bad: torch.Tensor,
        shaping: RowShaping | None = None, masks: RowMasks | None = None,
    ) -> None:  # fmt: skip
        """See `DeviceSampler`."""
        for begin in range(0, len(logits), _ROWS):
            part = slice(begin, begin + _ROWS)
            wide = logits[part]
            wide = (wide if shaping is None else shaped(wide, shaping, part)).double()
            wide = wide if masks is None else masked(wide, masks.part(part))
            best, greedy = wide.max(-1)[0], wide.argmax(-1)
            broken = ~torch.isfinite(best)
            weights = _weights(wide - best[:, None], wide, settings, part)
            sums = weights.cumsum(-1)
            target = settings.u[part, None] * sums[:, -1:]
            # Rounding may leave the last sum at or below the target: the last token that is not masked is meant.
            last = weights.shape[1] - 1 - (weights > 0).flip(-1).to(torch.int8).argmax(-1)
            drawn = torch.minimum((sums <= target).sum(-1), last)
            chosen = torch.where(settings.temperature[part] > 0, drawn, greedy)
            tokens[part] = chosen.masked_fill_(broken, 0).int()
            bad[part] = broken.to(torch.int8)
            for altering in (shaping, masks):
                if altering is not None:
                    emptied = (best == -torch.inf) & (altering.rows[part] >= 0)
                    bad[part] = torch.where(emptied, 2, bad[part])
        if shaping is not None:
            count_inputs(shaping)


def _weights(
    below: torch.Tensor, wide: torch.Tensor, settings: SamplingColumns[torch.Tensor], part: slice
) -> torch.Tensor:
    """Return float64 [n, V] weights, not normalised: 0 for tokens that a setting removes. `below`: `wide` minus each row's
    maximum."""
    width = wide.shape[1]
    temperature = settings.temperature[part].clamp_min(MIN_TEMPERATURE)
    weights = (below / temperature[:, None]).exp()
    dropped = weights < settings.min_p[part, None]
    k = settings.top_k[part].long()
    kth = torch.where(k > 0, k.clamp_max(width), width) - 1
    # Logits, not weights: two different logits may give one rounded weight, which would look like a tie.
    least = wide.sort(-1, descending=True)[0].gather(1, kth[:, None])
    weights = weights.masked_fill(dropped | (wide < least), 0.0)
    ordered, ids = weights.sort(
        dim=-1, descending=True, stable=True
    )  # of equally likely tokens, the lower id first
    before = ordered.cumsum(-1) - ordered
    top_p = settings.top_p[part, None]
    # The first of them has nothing before it and stays, whatever top_p is.
    past = (before >= top_p * ordered.sum(-1, keepdim=True)) & (top_p < 1.0) & (before > 0)
    return weights.masked_fill(torch.zeros_like(past).scatter_(1, ids, past), 0.0)
