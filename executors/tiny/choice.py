"""What a step of training learns: not what is right already, and what was wrong once more.

Late in a run most conversations have next to no loss, and so next to no gradient: a fifth of the tokens has 98% of the loss. To look at
a conversation costs a third of what learning it does, and one that was wrong is worth more than one that nobody has looked at.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from executors.tiny.batches import Batch, Row, grouped, stack

_LONG = 82
"""Tokens from which on an answer is a story, most of which is drawn at random: its loss does not tell whether it is right."""

_POOL = 640
"""Wrong conversations that are gathered before they come again: so long they stay away, and rows of a batch are of similar length."""

_READY = 600
"""Batches that wait at most to come again; the oldest go."""


@dataclass
class Seen:
    """What a step, or a thread's part of it, has seen."""

    tokens: int = 0
    learned: int = 0
    loss: float = 0.0
    weight: float = 0.0
    learned_weight: float = 0.0
    """What the tokens of the learned conversations weigh."""
    scores: list[tuple[Batch, Tensor]] = field(default_factory=list)
    """Batches, and the losses of their conversations without stories, each (rows,)."""

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


class Again:
    """Conversations that were not right: they come back `times` times, a while later, until they are."""

    def __init__(self, tokens: int, times: int, seed: int) -> None:
        """Batches will have about `tokens` tokens."""
        self._tokens, self._rng = tokens, random.Random(seed)
        self._pools: list[list[Row]] = [[] for _ in range(times)]
        self._ready: deque[Batch] = deque(maxlen=_READY)

    def add(self, batch: Batch, wrong: Tensor) -> None:
        """Note those conversations of `batch` that were `wrong` (bool), unless it has come as often as it may."""
        if batch.times == len(self._pools):
            return
        pool = self._pools[batch.times]
        pool += _rows(batch, wrong.nonzero().flatten().tolist())
        if len(pool) < _POOL:
            return
        groups = grouped(pool, self._tokens)
        self._rng.shuffle(groups)
        self._ready.extend(stack(group, batch.times + 1) for group in groups)
        pool.clear()

    def take(self, count: int) -> list[Batch]:
        """Return up to `count` batches."""
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]


def _rows(batch: Batch, indexes: Iterable[int]) -> Iterable[Row]:
    """Yield these conversations of `batch` up to their last token that counts."""
    for index in indexes:
        weights = batch.weights[index].numpy()
        end = int(np.flatnonzero(weights)[-1]) + 1
        ids, skipped = batch.ids[index, :end].numpy(), batch.apart.skipped[index, :end].numpy()
        yield Row(ids, weights[:end], skipped, int(batch.apart.shared[index]))
