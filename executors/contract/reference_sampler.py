"""The reference sampler: one row at a time, in plain NumPy, simple enough to verify. Standard library and NumPy only.

Every faster sampler is tested against this one. `edited` changes single logits, `probabilities` makes the distribution,
and the token is the inverse of the cumulative distribution in vocabulary order at u = `noise.uniform(seed, choice,
position)`. The order of the settings is in `executors/contract/sampling.py`. Logprobs describe the *raw* logits: the
sampling parameters do not affect them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from executors.contract import noise
from executors.contract.batch import SampledToken, SamplingParams
from executors.contract.errors import InvalidInput, ItemFault
from executors.contract.token_history import TokenHistory

Row = NDArray[np.float32]


class NoToken(ValueError):
    """No token can be drawn from a row of logits; `fault` says why."""

    def __init__(self, fault: ItemFault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def edited(logits: Row, params: SamplingParams, history: TokenHistory | None = None) -> Row:
    """float32 [V]: masks, bias and penalties applied to raw logits. `history` holds all tokens before the one sampled.

    Raises InvalidInput if the settings need a history and there is none, NoToken as `probabilities`.
    """
    if not params.edits_logits:
        return logits
    if not np.isfinite(logits.max()):
        raise NoToken(ItemFault.NOT_FINITE)
    row = logits.astype(np.float32, copy=True)
    if params.allowed_token_ids is not None:
        forbidden = np.ones(len(row), np.bool_)
        forbidden[list(params.allowed_token_ids)] = False
        row[forbidden] = -np.inf
    if params.needs_history and history is None:
        raise InvalidInput(
            "penalties, min_tokens and bad words of several tokens need the sequence's history: use unified_decode"
        )
    for *before, last in params.bad_words:
        if not before or (history is not None and history.ends_with(before)):
            row[last] = -np.inf
    if history is None:
        return _biased(row, params)
    if len(history.output) < params.min_tokens:
        row[list(params.stop_token_ids)] = -np.inf
    return _penalized(_biased(row, params), params, history)


def _biased(row: Row, params: SamplingParams) -> Row:
    for token, bias in params.logit_bias:
        row[token] += np.float32(bias)
    return row


def _penalized(row: Row, params: SamplingParams, history: TokenHistory) -> Row:
    """Keskar et al. 2019 (CTRL) for repetition; frequency and presence as OpenAI's API defines them."""
    repetition, frequency, presence = (
        np.float32(params.repetition_penalty),
        np.float32(params.frequency_penalty),
        np.float32(params.presence_penalty),
    )
    for token, count, in_prompt in zip(history.ids, history.counts, history.in_prompt, strict=True):
        if in_prompt or count:
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        if count:
            row[token] -= frequency * np.float32(count)
            row[token] -= presence
    return row


def probabilities(logits: Row, params: SamplingParams) -> NDArray[np.float64]:
    """float64 [V], summing to 1: the distribution that a token is drawn from; masked tokens have exactly 0.

    `logits` float32 [V] as `edited` leaves them. Greedy params give all weight to the most likely token, the one with
    the lowest id on a tie. Raises NoToken when a logit is NaN or +inf, or all are -inf.
    """
    wide = logits.astype(np.float64)
    best = wide.max()
    if not np.isfinite(best):
        raise NoToken(ItemFault.NOT_FINITE)
    if params.greedy:
        chosen = np.zeros(len(wide))
        chosen[int(wide.argmax())] = 1.0
        return chosen
    scaled = (wide - best) / params.temperature
    weights: NDArray[np.float64] = np.exp(scaled)
    dropped = weights < params.min_p
    if 0 < params.top_k < len(weights):
        # Compare logits, not weights: two different logits may give one rounded weight, which would look like a tie.
        dropped |= wide < np.sort(wide)[-params.top_k]
    weights[dropped] = 0.0
    weights /= weights.sum()
    if params.top_p < 1.0:
        order = np.argsort(-weights, kind="stable")  # of equally likely tokens, the lower id comes first
        weights = _until(weights, order, params.top_p)
    if params.typical_p < 1.0:
        some = weights > 0.0
        # |-log p - entropy| is the distance of log p from its mean, and log p is `scaled` but for a constant.
        distance = np.full(len(weights), np.inf)
        distance[some] = np.abs(scaled[some] - (weights[some] * scaled[some]).sum())
        # Of equally typical tokens the more likely comes first, then the lower id.
        order = np.lexsort((-wide, distance))
        weights = _until(weights, order, params.typical_p)
    return weights


def _until(weights: NDArray[np.float64], order: NDArray[np.int64], mass: float) -> NDArray[np.float64]:
    """The weights, renormalised, of the first tokens in `order` that together reach `mass`; at least one."""
    reached_before = np.cumsum(weights[order]) - weights[order]
    truncated = weights.copy()
    truncated[order[1:][reached_before[1:] >= mass]] = 0.0
    truncated /= truncated.sum()
    return truncated


def choose(logits: Row, params: SamplingParams, position: int, history: TokenHistory | None = None) -> int:
    """The token at absolute `position`: the first id whose cumulative probability exceeds the noise.

    Raises InvalidInput and NoToken as `edited` and `probabilities`.
    """
    row = edited(logits, params, history)
    if params.edits_logits and not np.isfinite(row.max()):
        raise NoToken(ItemFault.NOTHING_LEFT)  # `edited` has seen that the raw logits are finite
    weights = probabilities(row, params)
    u = float(noise.uniform([params.seed], [params.choice], [position])[0])
    token = int(np.searchsorted(np.cumsum(weights), u, side="right"))
    # Rounding may leave the last sum below u: the last token that is not masked is meant.
    return min(token, int(np.flatnonzero(weights)[-1]))


def log_softmax(logits: Row) -> Row:
    """float32 [V]: log-softmax computed in fp32."""
    shifted = logits.astype(np.float32) - np.float32(logits.max())
    row: Row = shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
    return row


def describe(logits: Row, token: int, num_alternatives: int | None, ranked: bool = False) -> SampledToken:
    """The token with its logprob and that many most likely alternatives, best first (lower id on a tie); None: bare.
    `ranked`: with its place in that order, too."""
    if num_alternatives is None:
        return SampledToken(token)
    table = log_softmax(logits)
    best = np.argsort(-table, kind="stable")[:num_alternatives]
    rank = 1 + int((table > table[token]).sum() + (table[:token] == table[token]).sum()) if ranked else None
    return SampledToken(token, float(table[token]), tuple((int(i), float(table[i])) for i in best), rank)


def sample(
    logits: Row, params: SamplingParams, position: int, history: TokenHistory | None = None
) -> SampledToken:
    """Draw the token at `position` from raw `logits` float32 [V], with the logprobs it asked for.

    Raises InvalidInput and NoToken as `choose`.
    """
    return describe(logits, choose(logits, params, position, history), params.logprobs)


def verify(
    logits: Sequence[Row] | NDArray[np.float32],
    params: SamplingParams,
    drafts: Sequence[int],
    first_position: int,
    history: TokenHistory | None = None,
) -> tuple[SampledToken, ...]:
    """Verify drafts against their logits: [num_drafts + 1, V], row i after draft i - 1, sampling `first_position + i`.

    Returns the accepted drafts and one token more. A draft is accepted iff it equals the token sampled at its place. A
    `history` holds the tokens before the drafts; the tokens returned are appended to it.
    """
    tokens: list[SampledToken] = []
    for i, row in enumerate(logits):
        tokens.append(sample(row, params, first_position + i, history))
        if history is not None:
            history.append(tokens[-1].token_id)
        if i < len(drafts) and drafts[i] != tokens[-1].token_id:
            break
    return tuple(tokens)
