"""Sampling as it is meant: one row at a time, in plain NumPy, obviously correct. Standard library and NumPy only.

Every faster sampler is tested against this one. The order is: temperature, top-k, top-p, then the inverse of the
cumulative distribution in vocabulary order at u = `noise.uniform(seed, choice, position)`. Logprobs describe the *raw*
logits: nothing of the sampling parameters enters them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executors import noise
from executors.batch import SampledToken, SamplingParams

Row = NDArray[np.float32]


def probabilities(logits: Row, params: SamplingParams) -> NDArray[np.float64]:
    """float64 [V], summing to 1: the distribution that a token is drawn from; masked tokens have exactly 0.

    `logits` float32 [V], -inf for tokens that a mask forbids. Greedy params give all weight to the most likely token,
    the one with the lowest id on a tie. Raises ValueError when a logit is NaN or +inf, or all are -inf.
    """
    wide = logits.astype(np.float64)
    best = wide.max()
    if not np.isfinite(best):
        raise ValueError("logits are not finite")
    if params.greedy:
        chosen = np.zeros(len(wide))
        chosen[int(wide.argmax())] = 1.0
        return chosen
    weights: NDArray[np.float64] = np.exp((wide - best) / params.temperature)
    if 0 < params.top_k < len(weights):
        # Compare logits, not weights: two different logits may give one rounded weight, which would look like a tie.
        kth = np.sort(wide)[-params.top_k]
        weights[wide < kth] = 0.0
    weights /= weights.sum()
    if params.top_p < 1.0:
        order = np.argsort(-weights, kind="stable")  # of equally likely tokens, the lower id comes first
        reached_before = np.cumsum(weights[order]) - weights[order]
        drop = order[1:][reached_before[1:] >= params.top_p]
        weights[drop] = 0.0
        weights /= weights.sum()
    return weights


def choose(logits: Row, params: SamplingParams, position: int) -> int:
    """The token at absolute `position`: the first id whose cumulative probability exceeds the noise.

    Raises ValueError as `probabilities`.
    """
    weights = probabilities(logits, params)
    u = float(noise.uniform([params.seed], [params.choice], [position])[0])
    token = int(np.searchsorted(np.cumsum(weights), u, side="right"))
    # Rounding may leave the last sum below u: the last token that is not masked is meant.
    return min(token, int(np.flatnonzero(weights)[-1]))


def log_softmax(logits: Row) -> Row:
    """float32 [V]: log-softmax computed in fp32."""
    shifted = logits.astype(np.float32) - np.float32(logits.max())
    row: Row = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    return row


def describe(logits: Row, token: int, num_alternatives: int | None) -> SampledToken:
    """The token with its logprob and that many most likely alternatives, best first (lower id on a tie); None: bare."""
    if num_alternatives is None:
        return SampledToken(token)
    table = log_softmax(logits)
    best = np.argsort(-table, kind="stable")[:num_alternatives]
    return SampledToken(token, float(table[token]), tuple((int(i), float(table[i])) for i in best))


def sample(logits: Row, params: SamplingParams, position: int) -> SampledToken:
    """Draw the token at `position` from raw `logits` float32 [V], with the logprobs it asked for.

    Raises ValueError as `probabilities`.
    """
    return describe(logits, choose(logits, params, position), params.logprobs)


def verify(
    logits: Sequence[Row] | NDArray[np.float32],
    params: SamplingParams,
    drafts: Sequence[int],
    first_position: int,
) -> tuple[SampledToken, ...]:
    """Verify drafts against their logits: [num_drafts + 1, V], row i after draft i - 1, sampling `first_position + i`.

    Returns the accepted drafts and one token more. A draft is accepted iff it equals the token sampled at its place.
    """
    tokens: list[SampledToken] = []
    for i, row in enumerate(logits):
        tokens.append(sample(row, params, first_position + i))
        if i < len(drafts) and drafts[i] != tokens[-1].token_id:
            break
    return tuple(tokens)
