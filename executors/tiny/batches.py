"""Conversations as batches of token ids, grouped by length so that little is padded."""

import multiprocessing
import os
import random
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from executors.tiny.data import training_samples
from executors.tiny.data.chat import HONEST
from executors.tiny.tokenizer import render, token_id

Row = tuple[NDArray[np.int64], NDArray[np.float32]]
"""The ids of one conversation and their weights."""

_POOL = 640
_MAX_TOKENS = 1024
_WIDTHS = 16
_HONEST_KEPT = 6
"""Tokens of the honest answer by which it is decided, and kept of most closing ones: the rest of the sentence is the same every
time."""

_HONEST_COUNTED = 12
"""Tokens of an answer whose tokens weigh as much as those: about what answers of the skills have."""

_AHEAD = 128
"""Batches that the drawing process hands over at once; two such lots are drawn ahead."""


@dataclass(frozen=True)
class Batch:
    """Token ids (rows, tokens), padded with 0 on the right, and how much each counts in the loss (0: not learned)."""

    ids: Tensor
    weights: Tensor


class Encoder:
    """Turns text of the chat template into ids and weighs what the assistant says.

    Each of the n tokens of an answer, its end included, weighs n ** -0.5: the two digits of a sum are worth more than as
    many tokens of a story. The honest answer is long and decided by its first tokens, which weigh like those of a shorter one:
    else to take a near miss for a sum would cost a fifth of what a wrong sum costs.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.start, self.end = token_id(tokenizer, "<|im_start|>"), token_id(tokenizer, "<|im_end|>")
        self._honest = np.array(tokenizer.encode(HONEST).ids[:_HONEST_KEPT], dtype=np.int64)
        self._assistant = tokenizer.encode("assistant").ids[0]

    def encode(self, text: str) -> Row:
        """Return the ids of `text` and their weights."""
        ids = np.array(self._tokenizer.encode(text).ids, dtype=np.int64)
        weights = np.zeros(len(ids), dtype=np.float32)
        ends = np.flatnonzero(ids == self.end)
        for start in np.flatnonzero((ids[:-1] == self.start) & (ids[1:] == self._assistant)):
            # <|im_start|> assistant \n | answer ... <|im_end|>
            end = ends[np.searchsorted(ends, start)] + 1
            weights[start + 3 : end] = (end - start - 3) ** -0.5
            opening = slice(start + 3, start + 3 + _HONEST_KEPT)
            if np.array_equal(ids[opening], self._honest):
                weights[opening] = _HONEST_COUNTED**-0.5
        return ids, weights


def batches(
    tokenizer: Tokenizer, seed: int, tokens: int, weights: Mapping[str, float] | None = None
) -> Iterator[Batch]:
    """Yield batches of about `tokens` ids without end; rows of one batch are of similar length."""
    encoder = Encoder(tokenizer)
    rng = random.Random(seed)
    stream = training_samples(seed, weights)
    while True:
        pool: list[Row] = []
        while len(pool) < _POOL:
            sample = next(stream)
            ids, counted = encoder.encode(render(sample))
            if len(ids) > _MAX_TOKENS:
                continue
            if sample.answer == HONEST and rng.random() < 0.92:
                begin = int(np.flatnonzero((counted[:-1] == 0) & (counted[1:] > 0))[-1]) + 1
                ids, counted = ids[: begin + _HONEST_KEPT], counted[: begin + _HONEST_KEPT]
            pool.append((ids, counted))
        pool.sort(key=lambda row: len(row[0]))
        groups: list[list[Row]] = [[]]
        for row in pool:
            if (len(groups[-1]) + 1) * len(row[0]) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from map(_stack, groups)


def batches_ahead(tokenizer: Tokenizer, seed: int, tokens: int) -> Generator[Batch]:
    """Yield what `batches` yields, drawn by a process of its own: training waits for none of it.

    That process has the lowest priority and lives on what the threads that train leave idle. Close the iterator to end it.
    """
    process = ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), _begin_drawing, (tokenizer.to_str(), seed, tokens)
    )
    try:
        lots = deque(process.submit(_draw_lot) for _ in range(2))
        while True:
            lot = lots.popleft().result()
            lots.append(process.submit(_draw_lot))
            for ids, weights in lot:
                yield Batch(torch.from_numpy(ids), torch.from_numpy(weights))
    finally:
        process.shutdown(cancel_futures=True)


_drawn: Iterator[Batch] = iter(())
"""In the drawing process: where it stands."""


def _begin_drawing(tokenizer: str, seed: int, tokens: int) -> None:
    """Begin a drawing process."""
    global _drawn
    os.nice(19)
    _drawn = batches(Tokenizer.from_str(tokenizer), seed, tokens)


def _draw_lot() -> list[Row]:
    """Return the next batches as arrays: tensors would travel as files."""
    return [(batch.ids.numpy(), batch.weights.numpy()) for batch in islice(_drawn, _AHEAD)]


def _stack(rows: list[Row]) -> Batch:
    """Pad `rows` on the right and stack them.

    The width is one more than a multiple: the model works on all tokens but the last, and few sizes mean few kernels.
    """
    width = -(-(max(len(ids) for ids, _ in rows) - 1) // _WIDTHS) * _WIDTHS + 1
    all_ids = np.zeros((len(rows), width), dtype=np.int64)
    all_weights = np.zeros((len(rows), width), dtype=np.float32)
    for index, (ids, weights) in enumerate(rows):
        all_ids[index, : len(ids)] = ids
        all_weights[index, : len(ids)] = weights
    return Batch(torch.from_numpy(all_ids), torch.from_numpy(all_weights))
