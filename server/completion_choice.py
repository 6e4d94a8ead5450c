"""What the choices of a completion become, whole and in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from engine.text.generation import TextDelta, TokenText
from server.prompt_side import PromptSide
from server.schemas.completions import CompletionRequest
from server.wire import CompletionChoice, CompletionLogprobs, encode


class Choice:
    """What one choice has become so far. One writer: the task that reads the generation."""

    def __init__(self, index: int, body: CompletionRequest, side: PromptSide) -> None:
        self.index = index
        self.side = side
        self._body = body
        self._wire = CompletionChoice(index)
        self._begun = not (side.echo or body.return_token_ids or body.echoed_logprobs is not None)
        """False while the stream has not shown what stands before the generated text."""
        self._text: list[str] = []
        self._logprobs_so_far = CompletionLogprobs()
        self._logprob_sum, self._logprob_count = 0.0, 0
        self._ids: list[int] = []
        self._finish = "stop"
        self._stop_reason: str | int | None = None

    @property
    def mean_logprob(self) -> float:
        """Per generated token, the one that ended the choice included."""
        return self._logprob_sum / self._logprob_count if self._logprob_count else -float("inf")

    def take(self, delta: TextDelta) -> int:
        """Keep a delta for the whole answer; returns how many bytes its logprobs take."""
        delta = self._counted(delta)
        self._text.append(delta.text)
        self._ids.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self._finish, self._stop_reason = delta.finish_reason, delta.stop_reason
        tokens = delta.logprobs or ()
        self._logprob_sum += sum(one.token.logprob or 0.0 for one in tokens)
        self._logprob_count += len(tokens)
        return 0 if self._body.logprobs is None else self._add(self._logprobs_so_far, tokens)

    def answer(self, index: int) -> bytes:
        """The whole choice, encoded, as number `index` of the answer."""
        body, side = self._body, self.side
        text = side.echo + "".join(self._text)
        logprobs = None if body.logprobs is None else self._logprobs_so_far.encoded(side.logprobs)
        answer = {
            "index": index,
            "text": text,
            "logprobs": None if logprobs is None else msgspec.Raw(logprobs),
            "finish_reason": self._finish,
            "stop_reason": self._stop_reason,
        }
        if side.prompt_logprobs is not None:
            answer["prompt_logprobs"] = msgspec.Raw(side.prompt_logprobs)
        if body.return_token_ids:
            answer["token_ids"] = self._ids
            answer["prompt_token_ids"] = side.ids
        return encode(answer)

    def piece(self, delta: TextDelta) -> bytes:
        """The choice in a chunk, encoded; empty where there is nothing to tell."""
        delta = self._counted(delta)
        body, side, first = self._body, self.side, not self._begun
        self._begun = True
        if not (first or delta.finish_reason or body.logprobs is not None or body.return_token_ids):
            return self._wire.text(delta.text) if delta.text else b""
        text = side.echo + delta.text if first else delta.text
        logprobs = None
        if body.logprobs is not None:
            logprobs = self._logprobs(delta.logprobs or (), side.logprobs if first else None)
        ids = delta.token_ids if body.return_token_ids else None
        prompt_ids = side.ids if first and body.return_token_ids else None
        return self._wire.full(text, logprobs, ids, delta.finish_reason, delta.stop_reason, prompt_ids)

    def _logprobs(self, tokens: Sequence[TokenText], before: CompletionLogprobs | None) -> bytes:
        own = CompletionLogprobs()
        self._add(own, tokens)
        return own.encoded(before)

    def _add(self, to: CompletionLogprobs, tokens: Sequence[TokenText]) -> int:
        as_ids = bool(self._body.return_tokens_as_token_ids)
        return to.add(tokens, self._body.logprobs or 0, as_ids, len(self.side.echo))

    def _counted(self, delta: TextDelta) -> TextDelta:
        """The delta; of one that `max_tokens` 0 only had computed, its end."""
        if self._body.output_limit != 0:
            return delta
        return TextDelta(self.index, "", finish_reason=delta.finish_reason and "length")


def best(choices: Iterable[Choice], count: int) -> list[Choice]:
    """The `count` choices with the highest mean logprob, best first."""
    return sorted(choices, key=lambda choice: (-choice.mean_logprob, choice.index))[:count]
