"""The model that the fakes pretend to be: a hash of the history, with a distribution known in closed form.

Token i at position p of an adapter's sequence gives a *contribution* c = mix(token, p, adapter). Two running values
summarise a history, both sums modulo 2^64, hence computable for a whole packed step with two `cumsum`:

    prefix   H(n) = c(0) + ... + c(n - 1)
    digest   D(n) = k(0) + ... + k(n - 1)      k(i) = mix(c(i) ^ H(i))      the fake's "KV" of token i

k(i) depends on the token, its position, the adapter and everything before it, as real keys and values do, and D(n) on
every k(i): any wrong, missing, moved or foreign piece of KV changes the tokens that follow. With several KV groups D(n) is a sum
over groups, each with cells of its own, of which a window group adds those of the last `window` tokens only.

The logits after a history are zero but for `NUM_FAVOURITES` tokens, whose ids and (well separated) logits come from
D(n). So the greedy token costs one hash, and sampling with temperature, top-k and top-p has a closed form that needs
no row of the vocabulary's width; `logits_rows` writes the same rows out in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from executors.contract import noise, reference_sampler
from executors.contract.batch import SamplingParams
from executors.contract.token_history import TokenHistory

U64 = NDArray[np.uint64]
Windows = Sequence[int | None]
FULL: tuple[int | None, ...] = (None,)
NUM_FAVOURITES = 8
MIN_VOCAB_SIZE = 2 * NUM_FAVOURITES
DEFAULT_VOCAB_SIZE = 1000

_TOKEN = np.uint64(0x9E3779B97F4A7C15)
_POSITION = np.uint64(0xC2B2AE3D27D4EB4F)
_FIRST = np.uint64(0x165667B19E3779F9)
_STRIDE = np.uint64(0x27D4EB2F165667C5)
_LEVELS = np.uint64(0x85EBCA77C2B2AE63)
_GROUP = np.uint64(0x9FB21C651E98DF25)
_M1 = np.uint64(0xFF51AFD7ED558CCD)
_M2 = np.uint64(0xC4CEB9FE1A85EC53)
_S33 = np.uint64(33)


def mix(x: U64) -> U64:
    """MurmurHash3's 64-bit finaliser (Appleby, public domain), element by element; arithmetic is modulo 2^64."""
    x = (x ^ (x >> _S33)) * _M1
    x = (x ^ (x >> _S33)) * _M2
    mixed: U64 = x ^ (x >> _S33)
    return mixed


def contributions(tokens: NDArray[np.integer], positions: NDArray[np.integer], salts: U64) -> U64:
    """c for each token; `salts` uint64, 0 for the base model. All of one length."""
    # A token's and a position's words are added, not concatenated: 64 bits of odd multipliers keep them apart.
    return mix(
        tokens.astype(np.uint64) * _TOKEN + (positions.astype(np.uint64) + np.uint64(1)) * _POSITION + salts
    )


def cells(contribution: U64, prefix_before: U64) -> U64:
    """k for each token: what the fake writes as its KV."""
    return mix(contribution ^ prefix_before)


def group_cells(cells_of_first: U64, group: int) -> U64:
    """k of each token in a KV group: the first group has `cells` themselves, the others something else made of them."""
    return mix(cells_of_first + np.uint64(group * int(_GROUP) % 2**64)) if group else cells_of_first


def adapter_salt(digest: str) -> np.uint64:
    """uint64 of an adapter's content digest; never 0, which is the base model."""
    value = 1
    for byte in digest.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return np.uint64(value | 1)


def segment_salt(second_segment: int | None) -> np.uint64:
    """uint64 of the position at which a second text begins; 0 for a prompt of one text."""
    return np.uint64(0) if second_segment is None else mix(np.array([second_segment + 1], np.uint64))[0]


@dataclass(frozen=True, slots=True)
class OracleRows:
    """Sampling parameters of n rows as arrays, each [n]."""

    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    seed: U64
    choice: U64

    @staticmethod
    def of(params: Sequence[SamplingParams]) -> OracleRows:
        """Rows from objects."""
        return OracleRows(
            np.array([p.temperature for p in params], np.float64),
            np.array([p.top_k for p in params], np.int64),
            np.array([p.top_p for p in params], np.float64),
            np.array([p.seed for p in params], np.uint64),
            np.array([p.choice for p in params], np.uint64),
        )

    def take(self, rows: NDArray[np.integer]) -> OracleRows:
        """The chosen rows."""
        return OracleRows(
            self.temperature[rows], self.top_k[rows], self.top_p[rows], self.seed[rows], self.choice[rows]
        )


def greedy_tokens(digests: U64, vocab_size: int) -> NDArray[np.int32]:
    """int32 [n]: the most likely token after each digest."""
    return (mix(digests + _FIRST) % np.uint64(vocab_size)).astype(np.int32)


def favourites(digests: U64, vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids int64 [n, 8], all different, and their logits float32 [n, 8], best first and at least 0.5 apart."""
    rank = np.arange(NUM_FAVOURITES)
    first = greedy_tokens(digests, vocab_size).astype(np.int64)
    # 7 strides stay below the vocabulary size, so no two favourites meet.
    largest = (vocab_size - 1) // (NUM_FAVOURITES - 1)
    stride = 1 + (mix(digests + _STRIDE) % np.uint64(largest)).astype(np.int64)
    ids = (first[:, None] + rank * stride[:, None]) % vocab_size
    bits = mix(digests + _LEVELS)[:, None] >> (rank * 8).astype(np.uint64)
    levels = NUM_FAVOURITES - rank + (bits & np.uint64(255)).astype(np.float32) / np.float32(512)
    return ids, levels.astype(np.float32)


def logits_rows(digests: U64, vocab_size: int) -> NDArray[np.float32]:
    """float32 [n, V]: the raw logits after each digest."""
    rows = np.zeros((len(digests), vocab_size), np.float32)
    ids, levels = favourites(digests, vocab_size)
    np.put_along_axis(rows, ids, levels, axis=1)
    return rows


def sample_tokens(
    digests: U64, sampling: OracleRows, positions: NDArray[np.integer], vocab_size: int
) -> NDArray[np.int32]:
    """int32 [n]: the token at each of `positions`, as `reference_sampler.sample` chooses it from `logits_rows`."""
    greedy = sampling.temperature == 0.0
    if greedy.all():
        return greedy_tokens(digests, vocab_size)
    ids, levels = favourites(digests, vocab_size)
    tokens = _inverse_cdf(ids, levels.astype(np.float64), sampling, positions, vocab_size)
    return np.where(greedy, ids[:, 0], tokens).astype(np.int32)


def _inverse_cdf(
    ids: NDArray[np.int64],
    levels: NDArray[np.float64],
    sampling: OracleRows,
    positions: NDArray[np.integer],
    vocab_size: int,
) -> NDArray[np.int64]:
    """Sampling in closed form: 8 favourites of weight w(j) among V - 8 others of one weight each.

    In vocabulary order, favourite number s (by id f) has s favourites and min(f - s, kept) kept others before it.
    """
    temperature = np.where(sampling.temperature == 0.0, 1.0, sampling.temperature)[:, None]
    weights = np.exp((levels - levels[:, :1]) / temperature)
    other = np.exp(-levels[:, 0] / temperature[:, 0])
    rank = np.arange(NUM_FAVOURITES)
    # The others tie, so a k beyond the favourites keeps them all.
    top_k = sampling.top_k[:, None]
    limited = (top_k >= 1) & (top_k <= NUM_FAVOURITES)
    weights = np.where(limited & (rank >= top_k), 0.0, weights)
    num_others = np.where(limited[:, 0], 0, vocab_size - NUM_FAVOURITES).astype(np.float64)
    # Top-p: a token stays if what precedes it (most likely first, then by id) has not reached p yet.
    target = (weights.sum(1) + num_others * other) * sampling.top_p
    before = np.cumsum(weights, axis=1) - weights
    nucleus = (sampling.top_p < 1.0)[:, None]
    missing = np.ceil(np.maximum(target - weights.sum(1), 0.0) / np.maximum(other, 1e-300))
    num_others = np.where(nucleus[:, 0], np.minimum(num_others, missing), num_others)
    weights = np.where(nucleus & (rank > 0) & (before >= target[:, None]), 0.0, weights)

    order = np.argsort(ids, axis=1)
    ids, weights = np.take_along_axis(ids, order, 1), np.take_along_axis(weights, order, 1)
    u = noise.uniform(sampling.seed, sampling.choice, positions.astype(np.uint64))
    x = u * (weights.sum(1) + num_others * other)
    favourite_sum = np.cumsum(weights, axis=1)
    upto = favourite_sum + np.minimum(ids - rank, num_others[:, None]) * other[:, None]
    passed = (upto <= x[:, None]).sum(1)
    index = np.minimum(passed, NUM_FAVOURITES - 1)
    rows = np.arange(len(ids))
    hit = (
        (passed < NUM_FAVOURITES)
        & (upto[rows, index] - weights[rows, index] <= x)
        & (weights[rows, index] > 0)
    )
    sum_before = np.where(passed > 0, favourite_sum[rows, np.maximum(passed, 1) - 1], 0.0)
    nth_other = np.floor((x - sum_before) / np.maximum(other, 1e-300))
    nth_other = np.clip(nth_other, 0, np.maximum(num_others - 1, 0)).astype(np.int64)
    # Rounding can push x past the last weight; then the last kept favourite is the answer.
    last = ids[rows, NUM_FAVOURITES - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)]
    return np.where(hit, ids[rows, index], np.where(num_others > 0, nth_other + passed, last))


def needs_rows(params: SamplingParams) -> bool:
    """True for settings that have no closed form here: they are sampled from `logits_rows`, by the reference."""
    return params.edits_logits or params.min_p > 0.0 or params.typical_p < 1.0


@dataclass(frozen=True, slots=True)
class History:
    """Prefix and digest after each of a sequence's tokens: uint64 [n + 1] each, entry 0 for the empty history."""

    prefix: U64
    digest: U64

    @staticmethod
    def of(tokens: Sequence[int] | NDArray[np.integer], salt: int = 0, windows: Windows = FULL) -> History:
        """The history of a token list from position 0 on. `windows`: of the KV groups, None for a full one."""
        ids = np.asarray(tokens, np.int64)
        c = contributions(ids, np.arange(len(ids)), np.full(len(ids), salt, np.uint64))
        prefix = np.zeros(len(ids) + 1, np.uint64)
        np.cumsum(c, out=prefix[1:])
        digest, first = np.zeros(len(ids) + 1, np.uint64), cells(c, prefix[:-1])
        for group, window in enumerate(windows):
            total = np.zeros(len(ids) + 1, np.uint64)
            np.cumsum(group_cells(first, group), out=total[1:])
            digest += total
            if window is not None and window <= len(ids):
                digest[window:] -= total[:-window]
        return History(prefix, digest)


class RunningHistory:
    """Prefix and digest uint64 [1] of one sequence as it goes on. `latest`: for each window group the cells of the last `window`
    tokens at most."""

    def __init__(self, prefix: U64, digest: U64, windows: Windows, latest: Sequence[U64]) -> None:
        self.prefix = prefix
        self.digest = digest
        self._windows = windows
        self._latest = [
            deque(part.tolist(), maxlen=window) for window, part in zip(windows, latest, strict=True)
        ]

    def append(self, token: NDArray[np.int32], position: int, salt: U64) -> None:
        """Go on with a token, int32 [1], at a position."""
        c = contributions(token, np.array([position]), salt)
        cell = cells(c, self.prefix)
        self.prefix = self.prefix + c
        for group, (window, latest) in enumerate(zip(self._windows, self._latest, strict=True)):
            own = group_cells(cell, group)
            self.digest = self.digest + own
            if window is not None:
                if len(latest) == window:
                    self.digest = self.digest - np.array(latest[0], np.uint64)
                latest.append(int(own[0]))


def expected_tokens(
    prompt: Sequence[int] | NDArray[np.integer],
    n: int,
    sampling: SamplingParams | None = None,
    *,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    adapter_digest: str | None = None,
    windows: Windows = FULL,
) -> list[int]:
    """The n tokens that every fake must give after `prompt` (greedy by default). A pure function: the oracle of tests."""
    request = sampling or SamplingParams(temperature=0.0)
    params, token_history = OracleRows.of([request]), TokenHistory(prompt)
    salt = adapter_salt(adapter_digest) if adapter_digest is not None else np.uint64(0)
    history = _running(prompt, salt, windows)
    tokens: list[int] = []
    for position in range(len(prompt), len(prompt) + n):
        at = np.array([position])
        if needs_rows(request):
            row = logits_rows(history.digest, vocab_size)[0]
            token = np.array([reference_sampler.choose(row, request, position, token_history)], np.int32)
            token_history.append(int(token[0]))
        else:
            token = sample_tokens(history.digest, params, at, vocab_size)
        tokens.append(int(token[0]))
        history.append(token, position, np.array([salt], np.uint64))
    return tokens


def _running(
    prompt: Sequence[int] | NDArray[np.integer], salt: np.uint64, windows: Windows
) -> RunningHistory:
    """The history of a prompt, ready to go on."""
    history, ids = History.of(prompt, int(salt), windows), np.asarray(prompt, np.int64)
    first = np.empty(0, np.uint64)
    if any(windows):
        first = cells(contributions(ids, np.arange(len(ids)), np.full(len(ids), salt)), history.prefix[:-1])
    latest = [
        group_cells(first[-window:], group) if window is not None else first[:0]
        for group, window in enumerate(windows)
    ]
    return RunningHistory(history.prefix[-1:], history.digest[-1:], windows, latest)


def expected_logits(
    history: Sequence[int] | NDArray[np.integer],
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    windows: Windows = FULL,
) -> NDArray[np.float32]:
    """float32 [V]: the raw logits after a history of the base model."""
    row: NDArray[np.float32] = logits_rows(History.of(history, 0, windows).digest[-1:], vocab_size)[0]
    return row


def hidden_states(digests: U64, hidden_size: int) -> NDArray[np.float32]:
    """float32 [n, hidden], each in -1..1: made-up hidden states, for pooling and `want_hidden_states`."""
    words = mix(digests[:, None] + np.arange(1, hidden_size + 1, dtype=np.uint64) * _POSITION)
    scaled: NDArray[np.float32] = (
        (words >> np.uint64(40)).astype(np.float32) / np.float32(2**23)
    ) - np.float32(1)
    return scaled
