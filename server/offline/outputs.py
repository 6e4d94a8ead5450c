"""What comes back, in the shape of vLLM's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.text.generation import TextDelta, TokenText
from server.answer.harmony.marks import spelled_out


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token at one position: natural logarithm of its probability before any sampling setting.

    `rank` is its place among all tokens, from 1 on; None where it is not among the most likely ones that were asked for.
    """

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One of the `n` answers to a prompt.

    `finish_reason` is "stop" or "length"; `stop_reason` is the stop string or stop token id that ended the answer, None for
    the model's own end token. `logprobs` has an entry per token, by token id, the generated token first.
    `cumulative_logprob` is the sum of the generated tokens' logprobs. Both are None unless logprobs were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answers to one prompt.

    `prompt` is its text: as it was given, or decoded from the token ids. `prompt_logprobs` has an entry per prompt token,
    None for the first, which nothing comes before. `num_cached_tokens` counts prompt tokens whose KV an earlier request had
    left.
    """

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    finished: bool = True


@dataclass(slots=True)
class Gathered:
    """One answer while its deltas come. One writer: the task that reads the generation."""

    index: int
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    total: float = 0.0
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def take(self, delta: TextDelta) -> None:
        """Append a delta of this answer."""
        self.text.append(spelled_out(delta.text))
        self.token_ids += delta.token_ids
        for token in delta.logprobs or ():
            self.logprobs.append(_by_id(token))
            self.total += token.token.logprob or 0.0
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def output(self, with_logprobs: bool) -> CompletionOutput:
        """The whole answer."""
        return CompletionOutput(
            self.index,
            "".join(self.text),
            self.token_ids,
            self.finish_reason,
            self.stop_reason,
            self.logprobs if with_logprobs else None,
            self.total if with_logprobs else None,
        )


def prompt_entries(tokens: Sequence[TokenText]) -> list[dict[int, Logprob] | None]:
    """An entry per prompt token."""
    return [None if token.token.logprob is None else _by_id(token) for token in tokens]


def _by_id(token: TokenText) -> dict[int, Logprob]:
    """The token itself first, then the most likely ones, best first."""
    sampled = token.token
    likely = {
        token_id: Logprob(logprob, rank, text)
        for rank, ((token_id, logprob), (text, _, _)) in enumerate(
            zip(sampled.top_logprobs, token.top, strict=True), 1
        )
    }
    own = likely.get(sampled.token_id) or Logprob(sampled.logprob or 0.0, sampled.rank, token.text)
    return {sampled.token_id: own} | likely
