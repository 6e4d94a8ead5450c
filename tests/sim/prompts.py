"""What the engine says of a prompt, judged: logprobs of its tokens, and embeddings."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from engine.request import FinishReason, TokenDelta
from executors.testing.fakes import oracle
from executors.testing.fakes.base import HIDDEN_SIZE
from tests.sim.adoption import Broken

if TYPE_CHECKING:
    from tests.sim.scenario import Stream


@lru_cache(4096)
def _logprob(history: tuple[int, ...], token: int, vocab_size: int, windows: oracle.Windows) -> float:
    logits = oracle.expected_logits(history, vocab_size, windows).astype(np.float64)
    return float(logits[token] - np.log(np.exp(logits - logits.max()).sum()) - logits.max())


def _vector(prompt: tuple[int, ...], pooling: str, windows: oracle.Windows) -> NDArray[np.float32]:
    states = oracle.hidden_states(oracle.History.of(prompt, 0, windows).digest[1:], HIDDEN_SIZE)
    pooled: NDArray[np.float32] = states[-1] if pooling == "last" else states.mean(0)
    return pooled


def judge_prompt(stream: Stream, key: int, got: TokenDelta, vocab_size: int, windows: oracle.Windows) -> None:
    """Raises Broken where a sequence was told something else than it asked for, or something wrong."""
    if stream.pooling is not None:
        if got.tokens or got.finish_reason is not FinishReason.STOP or got.pooled is None:
            raise Broken(f"an embedding ended with {got}")
        if not np.allclose(got.pooled, _vector(stream.prompt, stream.pooling, windows), atol=1e-5):
            raise Broken(f"{stream.prompt}: another vector than the {stream.pooling} of its hidden states")
        return
    asked = stream.prompt_logprobs is not None and key == 0
    told = got.prompt_logprobs
    if not asked or (
        told is None and got.finish_reason is None
    ):  # ended by the text side, maybe before its first token
        if told is not None and not asked:
            raise Broken("logprobs of a prompt that nobody asked for")
        return
    if told is None or tuple(token.token_id for token in told) != stream.prompt[1:]:
        raise Broken(f"prompt {stream.prompt} is described as {told}")
    for at, token in enumerate(told, 1):
        if len(token.top_logprobs) != stream.prompt_logprobs or token.logprob is None:
            raise Broken(f"{token} has not {stream.prompt_logprobs} alternatives")
        if abs(token.logprob - _logprob(stream.prompt[:at], stream.prompt[at], vocab_size, windows)) > 1e-4:
            raise Broken(f"prompt {stream.prompt}: {token} at {at} has another logprob")
