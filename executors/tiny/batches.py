"""Conversations as batches of token ids, grouped by length so that little is padded."""

import contextlib
import math
import os
import queue
import random
import struct
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from executors.tiny.data import training_samples
from executors.tiny.data.chat import HONEST
from executors.tiny.data.sample import Sample
from executors.tiny.data.tool_calls import call_text
from executors.tiny.model import Apart
from executors.tiny.tokenizer import render, token_id

_POOL = 640
_MAX_TOKENS = 1024
_WIDTHS = 16
_HONEST_KEPT = 6
"""Tokens of the honest answer by which it is decided, and kept of most closing ones: the rest of the sentence is the same every
time."""

_HONEST_CUT = 0.92
"""Share of honest answers that are cut there."""

_HONEST_COUNTED = 12
"""Tokens of an answer whose tokens weigh as much as those: about what answers of the skills have."""

_OPENING = 2
"""Tokens of a turn before what is said: <|im_start|>, and the role with the end of its line."""

_NAME_AT, _NAME_COUNTED = 2, 8
"""Where the tool's name begins in a call, and the tokens of an answer whose tokens weigh as much as those of the name."""

_SHAPE = struct.Struct("<II")
_IDS, _WEIGHTS = np.dtype(np.int64), np.dtype(np.float32)
_AHEAD = 256
"""Batches that are drawn ahead: more than come of a pool."""


@dataclass(frozen=True)
class Row:
    """One conversation: ids, how much each counts in the loss, and what is hidden from each (see `Apart`)."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]
    skipped: NDArray[np.int64]
    shared: int


@dataclass(frozen=True)
class Batch:
    """Token ids (rows, tokens), padded with 0 on the right, how much each counts in the loss (0: not learned), and which are apart."""

    ids: Tensor
    weights: Tensor
    apart: Apart


class Encoder:
    """Turns text of the chat template into ids and weighs what the assistant says.

    Each of the n tokens of an answer, its end included, weighs n ** -0.5: the two digits of a sum are worth more than as
    many tokens of a story. The honest answer is long and decided by its first tokens, which weigh like those of a shorter one:
    else to take a near miss for a sum would cost a fifth of what a wrong sum costs. So do the tokens of a call that choose the
    tool, among the many that copy arguments.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.start, self.end = token_id(tokenizer, "<|im_start|>"), token_id(tokenizer, "<|im_end|>")
        self._honest = np.array(tokenizer.encode(HONEST).ids[:_HONEST_KEPT], dtype=np.int64)
        self._assistant, self._user = (tokenizer.encode(f"{role}\n").ids[0] for role in ("assistant", "user"))
        self._call = token_id(tokenizer, "<tool_call>")
        self._name_ends = [
            tokenizer.encode(call_text("x", given)).ids[_NAME_AT + 1] for given in ({}, {"x": "x"})
        ]

    def length(self, text: str) -> int:
        """Return the number of tokens of `text`."""
        return len(self._tokenizer.encode(text).ids)

    def row(self, sample: Sample, rng: random.Random) -> Row:
        """Return `sample` as it is learned: without most of the honest answers' ends, in plain conversations only of the last."""
        ids, weights = self.encode(render(sample))
        if sample.given:
            weights[: self.length(render(sample, with_answer=False) + sample.given)] = 0
        asked = self._turns(ids, self._user)
        kept = np.ones(len(ids), dtype=np.bool_)
        answers = self._turns(ids, self._assistant)
        for start in answers if sample.apart else answers[-1:]:
            begin = start + _OPENING
            if self._is_honest(ids[begin:]) and rng.random() < _HONEST_CUT:
                later = asked[asked > start]
                kept[begin + _HONEST_KEPT : later[0] if len(later) else None] = False
        ids, weights = ids[kept], weights[kept]
        skipped = np.zeros(len(ids), dtype=np.int64)
        if not sample.apart:
            return Row(ids, weights, skipped, 0)
        asked = self._turns(ids, self._user)
        for start in asked:
            skipped[start:] = start - asked[0]
        return Row(ids, weights, skipped, int(asked[0]))

    def _turns(self, ids: NDArray[np.int64], role: int) -> NDArray[np.int64]:
        """Return where turns of `role` begin."""
        return np.flatnonzero((ids[:-1] == self.start) & (ids[1:] == role))

    def _is_honest(self, ids: NDArray[np.int64]) -> bool:
        """Tell whether the honest answer begins here."""
        return np.array_equal(ids[:_HONEST_KEPT], self._honest)

    def encode(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids of `text` and their weights."""
        ids = np.array(self._tokenizer.encode(text).ids, dtype=np.int64)
        weights = np.zeros(len(ids), dtype=np.float32)
        ends = np.flatnonzero(ids == self.end)
        for start in self._turns(ids, self._assistant):
            begin, end = start + _OPENING, ends[np.searchsorted(ends, start)] + 1
            weights[begin:end] = (end - begin) ** -0.5
            if ids[begin] == self._call:
                name = begin + _NAME_AT
                after = name + int(np.flatnonzero(np.isin(ids[name:end], self._name_ends))[0]) + 1
                weights[name:after] = _NAME_COUNTED**-0.5
            if self._is_honest(ids[begin:]):
                weights[begin : begin + _HONEST_KEPT] = _HONEST_COUNTED**-0.5
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
            row = encoder.row(next(stream), rng)
            if len(row.ids) <= _MAX_TOKENS:
                pool.append(row)
        pool.sort(key=lambda row: len(row.ids))
        groups: list[list[Row]] = [[]]
        for row in pool:
            if (len(groups[-1]) + 1) * len(row.ids) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        rng.shuffle(groups)
        yield from map(_stack, groups)


def batches_ahead(tokenizer: Tokenizer, seed: int, tokens: int) -> Generator[Batch]:
    """Yield what `batches` yields, drawn by a process of its own: training waits for none of it.

    That process has the lowest priority and lives on what the threads that train leave idle. Close the iterator to end it.
    Raises RuntimeError if it ends by itself.
    """
    command = [sys.executable, "-m", "executors.tiny.batches", str(seed), str(tokens)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    drawn: queue.Queue[Batch | None] = queue.Queue(_AHEAD)
    reader = threading.Thread(target=_read, args=(process.stdout, drawn), daemon=True)
    try:
        process.stdin.write(tokenizer.to_str().encode())
        process.stdin.close()
        reader.start()
        while (batch := drawn.get()) is not None:
            yield batch
        raise RuntimeError(f"the process that draws batches ended with {process.wait()}")
    finally:
        process.kill()
        while reader.is_alive():  # it may wait for room
            with contextlib.suppress(queue.Empty):
                drawn.get(timeout=0.05)
        process.stdout.close()
        process.wait()


def _read(stream: IO[bytes], drawn: queue.Queue[Batch | None]) -> None:
    """Put what `_draw` writes into a queue, None behind its end."""
    while len(head := stream.read(_SHAPE.size)) == _SHAPE.size:
        rows, width = _SHAPE.unpack(head)
        shapes: list[tuple[np.dtype[Any], tuple[int, ...]]] = [
            (_IDS, (rows, width)), (_WEIGHTS, (rows, width)), (_IDS, (rows, width)), (_IDS, (rows,)),
        ]  # fmt: skip
        sizes = [kind.itemsize * math.prod(shape) for kind, shape in shapes]
        data = [stream.read(size) for size in sizes]
        if [len(each) for each in data] != sizes:
            break
        ids, weights, skipped, shared = (
            torch.from_numpy(np.frombuffer(bytearray(each), kind).reshape(shape))
            for each, (kind, shape) in zip(data, shapes, strict=True)
        )
        drawn.put(Batch(ids, weights, Apart(shared, skipped)))
    drawn.put(None)


def _draw(seed: int, tokens: int) -> None:
    """Write batches to standard output, for the tokenizer.json on standard input, until nobody reads them."""
    os.nice(19)
    tokenizer = Tokenizer.from_str(sys.stdin.read())
    with contextlib.suppress(BrokenPipeError):
        for batch in batches(tokenizer, seed, tokens):
            tensors = (batch.ids, batch.weights, batch.apart.skipped, batch.apart.shared)
            parts = (_SHAPE.pack(*batch.ids.shape), *(tensor.numpy().tobytes() for tensor in tensors))
            sys.stdout.buffer.write(b"".join(parts))
            sys.stdout.buffer.flush()


def _stack(rows: list[Row]) -> Batch:
    """Pad `rows` on the right and stack them.

    The width is one more than a multiple: the model works on all tokens but the last, and few sizes mean few kernels.
    """
    width = -(-(max(len(row.ids) for row in rows) - 1) // _WIDTHS) * _WIDTHS + 1
    ids, skipped = np.zeros((2, len(rows), width), dtype=np.int64)
    weights = np.zeros((len(rows), width), dtype=np.float32)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        weights[index, : len(row.ids)] = row.weights
        skipped[index, : len(row.ids)] = row.skipped
    shared = torch.tensor([row.shared for row in rows])
    return Batch(torch.from_numpy(ids), torch.from_numpy(weights), Apart(shared, torch.from_numpy(skipped)))


if __name__ == "__main__":
    _draw(*map(int, sys.argv[1:]))
