"""Sampling for all rows of a step at once; `executors/contract/reference_sampler.py` defines the result row by row.

The token at a position is the first id, in vocabulary order, at which the cumulative probability of the processed
distribution exceeds u(seed, choice, position). `executors/contract/sampling.py` defines the settings and their order.

    all rows greedy, no edits       one maximum
    rows whose logits are edited    as the others, after `edits.py` has changed a few logits: in place for float32 or if
                                    only -inf is written (they are restored), else in a float32 copy of the batch
    rows with few allowed ids       as the others, but only over their ids
    all others                      block maxima, candidates, sums: `draw.py`

Settings that are neutral in every row cost nothing. Logprobs are those of the raw logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executors.contract import noise
from executors.contract.batch import SampledToken, SamplingParams
from executors.contract.errors import OutOfMemory
from executors.kernels.cpu import CHOICE, OUT_OF_MEMORY, CpuKernels
from executors.llm.sampling.columns import MIN_TEMPERATURE
from executors.llm.sampling.draw import Blocks, Draw, draw, greedy
from executors.llm.sampling.edits import EditedRows, LogitEdits


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Settings of n rows. `temperature`, `top_p`, `min_p`, `typical_p` float64, `top_k` int64, `seed`, `choice` uint64,
    `logprobs` int64 with -1 for none; `positions` int64 are those of the sampled tokens."""

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    seed: np.ndarray
    choice: np.ndarray
    logprobs: np.ndarray
    min_p: np.ndarray
    typical_p: np.ndarray
    positions: np.ndarray


class SamplingTable:
    """Settings per slot, as arrays. Written when a sequence starts, read by `rows`."""

    def __init__(self, num_slots: int) -> None:
        self.temperature = np.zeros(num_slots, np.float64)
        self.top_k = np.zeros(num_slots, np.int64)
        self.top_p = np.ones(num_slots, np.float64)
        self.seed = np.zeros(num_slots, np.uint64)
        self.choice = np.zeros(num_slots, np.uint64)
        self.logprobs = np.full(num_slots, -1, np.int64)
        self.min_p = np.zeros(num_slots, np.float64)
        self.typical_p = np.ones(num_slots, np.float64)

    def set(self, slot: int, params: SamplingParams) -> None:
        """Store one sequence's settings."""
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.seed[slot] = params.seed % 2**64
        self.choice[slot] = params.choice
        self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self.min_p[slot] = params.min_p
        self.typical_p[slot] = params.typical_p

    @staticmethod
    def of(params: list[SamplingParams]) -> SamplingTable:
        """Make a table with a slot for each of the given settings."""
        table = SamplingTable(len(params))
        for slot, one in enumerate(params):
            table.set(slot, one)
        return table

    def rows(self, slots: np.ndarray, positions: np.ndarray) -> SamplingRows:
        """Return the settings of rows that belong to `slots`."""
        return SamplingRows(
            self.temperature[slots], self.top_k[slots], self.top_p[slots],
            self.seed[slots], self.choice[slots], self.logprobs[slots], self.min_p[slots], self.typical_p[slots],
            positions,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampled:
    """Result of sampling. `tokens` int64 [n]; `bad` bool [n]: the row's logits were not finite or every token was masked, and
    its token is meaningless; `described` for rows that requested logprobs."""

    tokens: np.ndarray
    bad: np.ndarray
    described: dict[int, SampledToken]


@torch.inference_mode()
def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    edits: LogitEdits | None = None,
    maxima: torch.Tensor | None = None,
) -> Sampled:
    """Sample a token for each row of raw `logits` [n, V] (any float dtype). The logits are unchanged after the call.

    `maxima` [n, blocks] are those of the logits' blocks, if known, see `Blocks`.
    """
    if edits is None and not rows.temperature.any():
        blocks = Blocks(logits, maxima=maxima)
        bad, tokens = blocks.bad_rows(), np.zeros(len(logits), np.int64)
        good = np.flatnonzero(~bad)
        if blocks.kernels is None:
            tokens[good] = greedy(blocks, good)
        elif len(good):
            tokens[good] = _chosen_by_kernels(blocks, blocks.kernels, good, good, rows, np.zeros(len(logits)))
    else:
        tokens, bad = _choose_all(logits, rows, edits, maxima)
    described: dict[int, SampledToken] = {}
    wanting = np.flatnonzero((rows.logprobs >= 0) & ~bad)
    if len(wanting):
        part = logits[torch.from_numpy(wanting).to(logits.device)]
        descriptions = describe(part, tokens[wanting], rows.logprobs[wanting])
        described = dict(zip(wanting.tolist(), descriptions, strict=True))
    return Sampled(tokens, bad, described)


def _choose_all(
    logits: torch.Tensor, rows: SamplingRows, edits: LogitEdits | None, maxima: torch.Tensor | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens int64 [n] and which rows are bad, bool [n]."""
    u = noise.uniform(rows.seed, rows.choice, rows.positions.astype(np.uint64))
    whole = None if edits is None else edits.whole
    # Widening all rows once, into memory that is kept, costs less than copies of the edited ones.
    widen = whole is not None and not whole.only_masks and logits.dtype != torch.float32
    blocks = Blocks(logits, widen, maxima)
    bad = blocks.bad_rows()
    tokens = np.zeros(len(logits), np.int64)
    plain = ~bad
    if edits is not None:
        plain[edits.rows] = False
    _choose(blocks, np.flatnonzero(plain), np.flatnonzero(plain), rows, u, tokens)
    if edits is not None:
        for part in edits.narrowed:
            _choose_among(blocks.logits, rows, part, u, tokens, bad)
    if whole is not None:
        _choose_in_place(blocks, rows, whole, u, tokens, bad)
    return tokens, bad


def _choose_in_place(
    blocks: Blocks, rows: SamplingRows, edits: EditedRows, u: np.ndarray, tokens: np.ndarray, bad: np.ndarray
) -> None:
    """Write `tokens` and `bad` of the edited rows: the few logits that change are changed in place and then restored."""
    logits = blocks.logits
    at = torch.from_numpy(edits.rows).to(logits.device)
    places = edits.places(at, logits.shape[1])
    before = logits.view(-1)[places]
    try:
        edits.apply(logits, at)
        blocks.renew(edits.rows)
        bad[edits.rows] |= blocks.bad_rows()[edits.rows]
        good = edits.rows[~bad[edits.rows]]
        _choose(blocks, good, good, rows, u, tokens)
    finally:
        logits.view(-1)[places] = before  # a place that is there twice is written twice with the same


def _choose_among(
    logits: torch.Tensor, rows: SamplingRows, edits: EditedRows, u: np.ndarray, tokens: np.ndarray, bad: np.ndarray
) -> None:  # fmt: skip
    """Write `tokens` and `bad` of rows in which only some ids are allowed."""
    assert edits.allowed is not None
    work = edits.taken_out(logits)
    edits.apply(work, torch.arange(len(work), device=work.device))
    blocks = Blocks(work)
    bad[edits.rows] |= blocks.bad_rows()
    good = np.flatnonzero(~bad[edits.rows])
    chosen = edits.rows[good]
    _choose(blocks, good, chosen, rows, u, tokens)
    tokens[chosen] = edits.allowed[good, tokens[chosen]]


def _choose(
    blocks: Blocks, row: np.ndarray, index: np.ndarray, rows: SamplingRows, u: np.ndarray, tokens: np.ndarray
) -> None:
    """Write tokens[index]: the rows `row` of `blocks` have the settings at `index`."""
    if len(index) and blocks.kernels is not None and not (rows.typical_p[index] < 1.0).any():
        tokens[index] = _chosen_by_kernels(blocks, blocks.kernels, row, index, rows, u)
        return
    drawn = rows.temperature[index] > 0.0
    if not drawn.all():
        tokens[index[~drawn]] = greedy(blocks, row[~drawn])
    if drawn.any():
        at, width = index[drawn], blocks.width
        k = rows.top_k[at]
        settings = Draw(
            rows.temperature[at], np.where((k > 0) & (k < width), k, width), rows.top_p[at], rows.min_p[at], u[at],
            row=row[drawn], typical_p=rows.typical_p[at],
        )  # fmt: skip
        tokens[at] = draw(blocks, settings)


def _chosen_by_kernels(
    blocks: Blocks, kernels: CpuKernels, row: np.ndarray, index: np.ndarray, rows: SamplingRows, u: np.ndarray
) -> np.ndarray:
    """Return int64 [m]: what `_choose` writes, for settings without typical-p."""
    width, k = blocks.width, rows.top_k[index]
    how = np.empty(len(index), CHOICE)
    how["row"], how["u"] = row, u[index]
    how["top_k"] = np.where((k > 0) & (k < width), k, width)
    how["temperature"], how["top_p"], how["min_p"] = (
        rows.temperature[index], rows.top_p[index], rows.min_p[index],
    )  # fmt: skip
    tokens = np.empty(len(index), np.int64)
    if kernels.choose(
        blocks.logits.data_ptr(), width, blocks.logits.stride(0), blocks.maxima.data_ptr(), blocks.size,
        how.ctypes.data, len(how), MIN_TEMPERATURE, tokens.ctypes.data, torch.get_num_threads(),
    ):  # fmt: skip
        raise OutOfMemory(OUT_OF_MEMORY)
    return tokens


def describe(
    logits: torch.Tensor, tokens: np.ndarray, counts: np.ndarray, ranked: bool = False
) -> list[SampledToken]:
    """Return each row's token with its logprob and the `counts` most likely alternatives, best first (lower id on a tie).
    With `ranked`, include the token's rank in that order.

    Logprobs are the fp32 log-softmax of raw logits [n, V].
    """
    wide = logits.float()
    # Not logsumexp: torch shares the sum of one long row between threads, whose order is another than among many rows.
    logprobs = wide.log_softmax(-1)
    own = logprobs.gather(1, torch.from_numpy(tokens).to(wide.device)[:, None])
    most = min(int(counts.max()), wide.shape[1])
    listed: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if most:
        ids = _first(wide, most)
        pairs = zip(ids.tolist(), logprobs.gather(1, ids).tolist(), counts.tolist(), strict=True)
        listed = [tuple(zip(i[:count], v[:count], strict=True)) for i, v, count in pairs]
    ranks = _ranks(wide, tokens) if ranked else [None] * len(tokens)
    return [
        SampledToken(token, logprob, top, rank)
        for token, logprob, top, rank in zip(tokens.tolist(), own[:, 0].tolist(), listed, ranks, strict=True)
    ]


def _ranks(logits: torch.Tensor, tokens: np.ndarray) -> list[int]:
    """Return the rank of each row's token: one more than the number of float32 logits that come before it."""
    if logits.device.type == "cpu":
        # Row by row in the cache: torch writes all comparisons out first, and took 40 times as long (64 rows of 152k).
        pairs = list(zip(logits.numpy(), tokens.tolist(), strict=True))
        return [
            1 + int(np.count_nonzero(row > row[t]) + np.count_nonzero(row[:t] == row[t])) for row, t in pairs
        ]
    own = torch.from_numpy(tokens).to(logits.device)[:, None]
    value, ids = logits.gather(1, own), torch.arange(logits.shape[1], device=logits.device)
    before = (logits > value).sum(-1) + ((logits == value) & (ids < own)).sum(-1)
    ranks: list[int] = (before + 1).tolist()
    return ranks


def _first(logits: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the `count` largest logits of each row, largest first, lower id first on a tie."""
    candidates = count + 16
    if candidates >= logits.shape[1]:
        return logits.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    ids = logits.topk(candidates, -1, sorted=False).indices.sort(-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    # Where a tie goes on behind the candidates, which of its ids are among them is arbitrary.
    for row in torch.nonzero(values[:, -1] == values[:, count - 1]).flatten().tolist():
        ids[row] = logits[row].sort(descending=True, stable=True).indices[:candidates]
    return ids[:, :count]
