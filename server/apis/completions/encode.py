"""Choices of a completion on the wire, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from engine.text.generation import TextDelta, TokenText
from server.answer.prompt_tokens import PromptSide
from server.answer.sse import CompletionChoiceEncoder, CompletionLogprobs, encode
from server.schemas.answers.completions import CompletionFinish
from server.schemas.completions import CompletionRequest


class CompletionProgress:
    """One choice so far. One writer: the task that reads the generation."""

    def __init__(self, index: int, body: CompletionRequest, side: PromptSide) -> None:
        self.index = index
        self.side = side
        self._body = body
        self._wire = CompletionChoiceEncoder(index)
        self._started = not (side.echo or body.return_token_ids or body.echoed_logprobs is not None)
        """Whether the stream has sent the parts that precede the generated text."""
        self._text: list[str] = []
        self._logprobs_so_far = CompletionLogprobs()
        self._logprob_sum, self._logprob_count = 0.0, 0
        self._ids: list[int] = []
        self._finish = "stop"
        self._stop_reason: str | int | None = None

    @property
    def mean_logprob(self) -> float:
        """The mean logprob per generated token, including the token that ended the choice."""
        return self._logprob_sum / self._logprob_count if self._logprob_count else -float("inf")

    def take(self, delta: TextDelta) -> int:
        """Add a delta to the whole answer; returns the size of its logprobs in bytes."""
        delta = self._counted(delta)
        self._text.append(delta.text)
        self._ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self._finish, self._stop_reason = delta.finish_reason, delta.stop_reason
        tokens = delta.logprobs or ()
        self._logprob_sum += sum(one.token.logprob or 0.0 for one in tokens)
        self._logprob_count += len(tokens)
        return 0 if self._body.logprobs is None else self._add(self._logprobs_so_far, tokens)

    def answer(self, index: int) -> list[bytes]:
        """The whole choice as number `index` of the answer, encoded, in pieces; the repeated part of the prompt is the same
        object in all choices."""
        side = self.side
        logprobs = b"null"
        if self._body.logprobs is not None:
            logprobs = self._logprobs_so_far.encoded(side.logprobs)
        ends = encode({"finish_reason": self._finish, "stop_reason": self._stop_reason})
        pieces = [
            b'{"index":%d,"text":"' % index, side.encoded_echo, encode("".join(self._text))[1:],
            b',"logprobs":', logprobs, b"," + ends[1:-1],
        ]  # fmt: skip
        if side.prompt_logprobs is not None:
            pieces += [b',"prompt_logprobs":', side.prompt_logprobs]
        if self._body.return_token_ids:
            pieces += [b',"token_ids":', encode(self._ids), b',"prompt_token_ids":', side.encoded_ids]
        return [*pieces, b"}"]

    def piece(self, delta: TextDelta) -> bytes:
        """The choice of a chunk, encoded; empty if there is nothing to send."""
        delta = self._counted(delta)
        body, side, first = self._body, self.side, not self._started
        self._started = True
        if not (first or delta.finish_reason or body.logprobs is not None or body.return_token_ids):
            return self._wire.text(delta.text) if delta.text else b""
        echo = side.encoded_echo if first else b""
        logprobs = None
        if body.logprobs is not None:
            logprobs = self._logprobs(delta.logprobs or (), side.logprobs if first else None)
        ids = delta.token_ids if body.return_token_ids else None
        prompt_ids = side.encoded_ids if first and body.return_token_ids else None
        finish = cast(CompletionFinish | None, delta.finish_reason)
        return self._wire.full(delta.text, logprobs, ids, finish, delta.stop_reason, echo, prompt_ids)

    @property
    def around_text(self) -> tuple[bytes, bytes] | None:
        """The choice of a chunk before and after its text, if all that follow but the last are text and nothing else."""
        body = self._body
        more = (
            not self._started or body.logprobs is not None or body.return_token_ids or body.output_limit == 0
        )
        return None if more else self._wire.around_text

    def _logprobs(self, tokens: Sequence[TokenText], before: CompletionLogprobs | None) -> bytes:
        own = CompletionLogprobs()
        self._add(own, tokens)
        return own.encoded(before)

    def _add(self, to: CompletionLogprobs, tokens: Sequence[TokenText]) -> int:
        as_ids = bool(self._body.return_tokens_as_token_ids)
        return to.add(tokens, self._body.logprobs or 0, as_ids, len(self.side.echo))

    def _counted(self, delta: TextDelta) -> TextDelta:
        """The delta; with `max_tokens` 0, only its end, without the token that was computed."""
        if self._body.output_limit != 0:
            return delta
        return TextDelta(self.index, "", finish_reason=delta.finish_reason and "length")


def best(choices: Iterable[CompletionProgress], count: int) -> list[CompletionProgress]:
    """The `count` choices with the highest mean logprob, best first."""
    return sorted(choices, key=lambda choice: (-choice.mean_logprob, choice.index))[:count]
