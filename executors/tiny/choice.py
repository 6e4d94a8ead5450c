"""What a step of training learns: not what is right already.

Late in a run most conversations have next to no loss, and so next to no gradient: a fifth of the tokens has 98% of the loss. To look at
a conversation costs a third of what learning it does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from executors.tiny.batches import Batch

_LONG = 82
"""Tokens from which on an answer is a story, most of which is drawn at random: its loss does not tell whether it is right."""


@dataclass
class Seen:
    """What a step, or a thread's part of it, has seen."""

    tokens: int = 0
    learned: int = 0
    loss: float = 0.0
    weight: float = 0.0
    learned_weight: float = 0.0
    """What the tokens of the learned conversations weigh."""

    def add(self, other: "Seen") -> None:
        """Add what was seen elsewhere."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class Easy:
    """Tells which conversations are right already: those whose loss is below `limit`.

    What stories say is drawn at random and stays unlikely: they do not count, and of the conversations that have one at least
    `share` is learned whatever else is in them.
    """

    limit: float
    share: float

    def learned(self, batch: Batch, scores: Tensor) -> Tensor:
        """Return which conversations of `batch` to learn, bool (rows,), by what `scores` says of them."""
        stories = ((batch.weights > 0) & (batch.weights < _LONG**-0.5)).any(dim=1)
        return (scores >= self.limit) | (stories & (torch.rand(len(stories)) < self.share))


def scores(batch: Batch, losses: Tensor) -> Tensor:
    """Return the loss of each conversation of `batch` without stories (rows,), from that of each token (rows, tokens - 1)."""
    total: Tensor = (losses * (batch.weights[:, 1:] >= _LONG**-0.5)).sum(dim=1)
    return total
