"""Conversations as batches of token ids, grouped by length so that little is padded."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from executors.tiny.data import training_samples
from executors.tiny.data.chat import HONEST
from executors.tiny.tokenizer import render

_POOL = 640
_MAX_TOKENS = 1024
_HONEST_KEPT = 6
"""Tokens kept of most closing honest answers: the rest of the sentence is the same every time."""


@dataclass(frozen=True)
class Batch:
    """Token ids (rows, tokens), padded with 0 on the right, and which of them are learned (answers and their end)."""

    ids: Tensor
    learned: Tensor


class Encoder:
    """Turns text of the chat template into ids and marks what the assistant says."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.start, self.end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
        self._assistant = tokenizer.encode("assistant").ids[0]

    def encode(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the ids of `text` and a mask of the tokens to learn."""
        ids = np.array(self._tokenizer.encode(text).ids, dtype=np.int64)
        learned = np.zeros(len(ids), dtype=np.bool_)
        ends = np.flatnonzero(ids == self.end)
        for start in np.flatnonzero((ids[:-1] == self.start) & (ids[1:] == self._assistant)):
            # <|im_start|> assistant \n | answer ... <|im_end|>
            learned[start + 3 : ends[np.searchsorted(ends, start)] + 1] = True
        return ids, learned


def batches(
    tokenizer: Tokenizer, seed: int, tokens: int, weights: Mapping[str, float] | None = None
) -> Iterator[Batch]:
    """Yield batches of about `tokens` ids without end; rows of one batch are of similar length."""
    encoder = Encoder(tokenizer)
    rng = random.Random(seed)
    stream = training_samples(seed, weights)
    while True:
        pool = []
        while len(pool) < _POOL:
            sample = next(stream)
            ids, learned = encoder.encode(render(sample))
            if len(ids) > _MAX_TOKENS:
                continue
            if sample.answer == HONEST and rng.random() < 0.75:
                begin = int(np.flatnonzero(np.diff(learned.astype(np.int8)) == 1)[-1]) + 1
                ids, learned = ids[: begin + _HONEST_KEPT], learned[: begin + _HONEST_KEPT]
            pool.append((ids, learned))
        pool.sort(key=lambda row: len(row[0]))
        groups: list[list[tuple[NDArray[np.int64], NDArray[np.bool_]]]] = [[]]
        for row in pool:
            if (len(groups[-1]) + 1) * len(row[0]) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from map(_stack, groups)


def _stack(rows: list[tuple[NDArray[np.int64], NDArray[np.bool_]]]) -> Batch:
    """Pad `rows` on the right and stack them."""
    width = max(len(ids) for ids, _ in rows)
    all_ids = np.zeros((len(rows), width), dtype=np.int64)
    all_learned = np.zeros((len(rows), width), dtype=np.bool_)
    for index, (ids, learned) in enumerate(rows):
        all_ids[index, : len(ids)] = ids
        all_learned[index, : len(ids)] = learned
    return Batch(torch.from_numpy(all_ids), torch.from_numpy(all_learned))
