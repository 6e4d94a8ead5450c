"""Sampling for all rows of a step at once; `executors/reference_sampler.py` says, row by row, what the answer is.

The token at a position is the first id, in vocabulary order, at which the cumulative probability of the processed
distribution exceeds u(seed, choice, position). Processing: temperature, then top-k (ties with the k-th stay), then top-p
(of equally likely tokens the lower id comes first). A full sort of the vocabulary is the last resort:

    greedy                 the maximum, nothing else
    neither top-k nor -p   cumulative sums in two levels: blocks of the vocabulary, then inside one block
    top-k or top-p         the most likely tokens by torch.topk, more of them only where they turn out too few
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from executors import noise
from executors.batch import SampledToken, SamplingParams

_BLOCK = 512
"""Tokens per block of the two-level sum."""
_FIRST_CANDIDATES = 128
"""Enough for the usual top-k, and for most top-p."""
_GROWTH = 8
_MIN_TEMPERATURE = 1e-8
"""Below this every other token's weight is 0 anyway; dividing by less would overflow."""


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Settings of n rows. `temperature`, `top_p` float64, `top_k` int64, `seed`, `choice` uint64, `logprobs` int64 with -1
    for none; `positions` int64 are those of the tokens being sampled."""

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    seed: np.ndarray
    choice: np.ndarray
    logprobs: np.ndarray
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

    def set(self, slot: int, params: SamplingParams) -> None:
        """Take in one sequence's settings."""
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.seed[slot] = params.seed % 2**64
        self.choice[slot] = params.choice
        self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs

    @staticmethod
    def of(params: list[SamplingParams]) -> SamplingTable:
        """A table with a slot for each of the given settings."""
        table = SamplingTable(len(params))
        for slot, one in enumerate(params):
            table.set(slot, one)
        return table

    def rows(self, slots: np.ndarray, positions: np.ndarray) -> SamplingRows:
        """Settings of rows that belong to `slots`."""
        return SamplingRows(
            self.temperature[slots], self.top_k[slots], self.top_p[slots],
            self.seed[slots], self.choice[slots], self.logprobs[slots], positions,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampled:
    """`tokens` int64 [n]; `bad` bool [n]: the row's logits were not finite and its token means nothing; `described` for
    rows that asked for logprobs."""

    tokens: np.ndarray
    bad: np.ndarray
    described: dict[int, SampledToken]


@torch.inference_mode()
def sample(logits: torch.Tensor, rows: SamplingRows) -> Sampled:
    """A token for each row of raw `logits` [n, V] (any float dtype, not modified)."""
    top, best = logits.max(-1)
    bad = ~torch.isfinite(top).cpu().numpy()
    tokens = best.cpu().numpy().copy()
    drawn = (rows.temperature > 0.0) & ~bad
    if drawn.any():
        limited = drawn & (((rows.top_k > 0) & (rows.top_k < logits.shape[1])) | (rows.top_p < 1.0))
        u = noise.uniform(rows.seed, rows.choice, rows.positions.astype(np.uint64))
        for chosen, draw in ((drawn & ~limited, _draw_plain), (limited, _draw_limited)):
            if chosen.any():
                index = np.flatnonzero(chosen)
                part = (
                    logits if len(index) == len(logits) else logits[torch.from_numpy(index).to(logits.device)]
                )
                tokens[index] = draw(part, rows, index, u[index])
    described: dict[int, SampledToken] = {}
    wanting = np.flatnonzero((rows.logprobs >= 0) & ~bad)
    if len(wanting):
        part = logits[torch.from_numpy(wanting).to(logits.device)]
        found = describe(part, tokens[wanting], rows.logprobs[wanting])
        described = dict(zip(wanting.tolist(), found, strict=True))
    return Sampled(tokens, bad, described)


def describe(logits: torch.Tensor, tokens: np.ndarray, counts: np.ndarray) -> list[SampledToken]:
    """Each row's token with its logprob and the `counts` most likely alternatives, best first (lower id on a tie).

    fp32 log-softmax of raw logits [n, V].
    """
    wide = logits.float()
    normalizer = wide.logsumexp(-1, keepdim=True)
    own = wide.gather(1, torch.from_numpy(tokens).to(wide.device)[:, None]) - normalizer
    most = min(int(counts.max()), wide.shape[1])
    listed: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
    if most:
        values, ids = _sorted_candidates(wide, min(most + 16, wide.shape[1]))
        pairs = zip(
            ids[:, :most].tolist(), (values[:, :most] - normalizer).tolist(), counts.tolist(), strict=True
        )
        listed = [tuple(zip(i[:count], v[:count], strict=True)) for i, v, count in pairs]
    return [
        SampledToken(token, logprob, top)
        for token, logprob, top in zip(tokens.tolist(), own[:, 0].tolist(), listed, strict=True)
    ]


def _column(values: np.ndarray, device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    """[n, 1] on the device."""
    return torch.from_numpy(values).to(device, dtype)[:, None]


def _draw_plain(logits: torch.Tensor, rows: SamplingRows, index: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Tokens from the whole softmax: int64 [n]."""
    weights, sums = _weights(logits, rows.temperature[index])
    cumulative = sums.double().cumsum(-1)
    target = _column(u, logits.device) * cumulative[:, -1:]
    # Rounding must not carry the target past the last block that has any weight.
    target = torch.minimum(target, cumulative[:, -1:].nextafter(torch.zeros_like(target)))
    block = (cumulative > target).byte().argmax(-1, keepdim=True)
    before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_min(0)), 0.0)
    columns = block * _BLOCK + torch.arange(_BLOCK, device=logits.device)
    inside = weights.gather(1, columns).double().cumsum(-1)
    rest = torch.minimum(target - before, inside[:, -1:].nextafter(torch.zeros_like(target)))
    token = block * _BLOCK + (inside > rest).byte().argmax(-1, keepdim=True)
    return token[:, 0].cpu().numpy()


def _weights(logits: torch.Tensor, temperature: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """exp((logits - max) / T), fp32 [n, V padded to whole blocks with 0], and its sums per block [n, blocks]."""
    n, width = logits.shape
    weights = torch.empty(n, -(-width // _BLOCK) * _BLOCK, dtype=torch.float32, device=logits.device)
    weights[:, width:] = -torch.inf
    weights[:, :width] = logits
    # Subtract first: the largest becomes exactly 0, and no temperature, however small, overflows.
    weights -= weights.amax(-1, keepdim=True)
    weights /= _column(np.maximum(temperature, _MIN_TEMPERATURE), logits.device, torch.float32)
    weights.exp_()
    return weights, weights.view(n, -1, _BLOCK).sum(-1)


def _sorted_candidates(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest logits of each row and their ids, largest first, lower id first on a tie.

    Which ids stand for a tie with the smallest of them is arbitrary unless `count` is the whole row.
    """
    if count >= logits.shape[1]:
        return logits.sort(dim=-1, descending=True, stable=True)
    ids = logits.topk(count, -1, sorted=False).indices.sort(-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _draw_limited(logits: torch.Tensor, rows: SamplingRows, index: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Tokens under top-k and top-p: int64 [n]. Takes ever more candidates for the rows that have too few."""
    width = logits.shape[1]
    k = rows.top_k[index]
    k = np.where((k > 0) & (k < width), k, width)
    tokens = np.zeros(len(index), np.int64)
    left = np.arange(len(index))
    count = _FIRST_CANDIDATES
    mass = _mass(logits, rows, index, k)
    while len(left):
        count = min(count, width)
        part = logits if len(left) == len(logits) else logits[torch.from_numpy(left).to(logits.device)]
        at = index[left]
        found, complete = _draw_from(
            part, count, rows.temperature[at], k[left], rows.top_p[at], mass[left], u[left]
        )
        tokens[left[complete]] = found[complete]
        left = left[~complete]
        count *= _GROWTH
    return tokens


def _mass(logits: torch.Tensor, rows: SamplingRows, index: np.ndarray, k: np.ndarray) -> np.ndarray:
    """float64 [n]: total weight of the vocabulary, for rows whose top-p is not under a top-k (elsewhere 0)."""
    mass = np.zeros(len(index))
    whole = np.flatnonzero(k >= logits.shape[1])
    if len(whole):
        part = logits if len(whole) == len(logits) else logits[torch.from_numpy(whole).to(logits.device)]
        mass[whole] = _weights(part, rows.temperature[index[whole]])[1].double().sum(-1).cpu().numpy()
    return mass


def _draw_from(
    logits: torch.Tensor, count: int, temperature: np.ndarray, k: np.ndarray, top_p: np.ndarray, mass: np.ndarray,
    u: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Tokens drawn from the `count` most likely of each row, and for which rows those were enough.

    They are enough when the last token that counts (the k-th, or the last that top-p keeps) is more likely than the least
    likely candidate, for then nothing outside can tie with it, or when what is outside weighs nothing.
    """
    device, width = logits.device, logits.shape[1]
    values, ids = _sorted_candidates(logits, count)
    values = values.float()
    smallest = values[:, -1:]
    scale = _column(np.maximum(temperature, _MIN_TEMPERATURE), device)
    weights = ((values - values[:, :1]).double() / scale).exp()
    tail_is_weightless = weights[:, -1:] == 0.0
    limit = _column(k, device)
    kth = values.gather(1, (limit - 1).clamp_max(count - 1))
    weights = weights.masked_fill((values < kth) & (limit < width), 0.0)
    in_k = limit < width
    total = torch.where(in_k, weights.sum(-1, keepdim=True), _column(mass, device))
    cumulative = weights.cumsum(-1)
    p = _column(top_p, device)
    # A token stays iff the tokens before it have not reached p; the first always stays.
    stays = (cumulative - weights < p * total) | (p >= 1.0)
    stays[:, 0] = True
    kept = weights.masked_fill(~stays, 0.0)
    last_kept = ((kept > 0).sum(-1, keepdim=True) - 1).clamp_min(0)
    complete = torch.where(in_k, kth, values.gather(1, last_kept)) > smallest
    complete |= tail_is_weightless
    enough = complete[:, 0] if count < width else torch.ones(len(values), dtype=torch.bool, device=device)
    # Back into vocabulary order, only as wide as the largest set.
    most = int(last_kept.max()) + 1
    kept_ids, order = ids[:, :most].sort(-1)
    line = kept[:, :most].gather(1, order).cumsum(-1)
    target = _column(u, device) * line[:, -1:]
    target = torch.minimum(target, line[:, -1:].nextafter(torch.zeros_like(target)))
    chosen = (line > target).byte().argmax(-1, keepdim=True)
    return kept_ids.gather(1, chosen)[:, 0].cpu().numpy(), enough.cpu().numpy()
