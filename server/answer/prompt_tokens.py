"""The echo, logprobs and ids of a prompt's own tokens, encoded once for any number of choices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property

from engine.text.generation import TextDelta, TokenText
from server.answer.sse import CompletionLogprobs, encode, prompt_logprobs_object
from server.schemas.completions import CompletionRequest

_AT_ONCE = 1024
"""Number of prompt tokens encoded before other tasks may run: a few milliseconds."""


class PromptSide:
    """One prompt as its choices show it. `echo`: the text that they begin with, empty if not requested; it covers the first
    `end` of the `ids`. The tokenizer has added the ids after it, and some before. One writer: the task that reads the
    generation."""

    def __init__(
        self, body: CompletionRequest, ids: Sequence[int], echo: str = "", end: int | None = None
    ) -> None:
        self.ids = ids
        self.echo = echo
        self.logprobs: CompletionLogprobs | None = None
        """Logprobs of the prompt's tokens, once they are known and if choices show them."""
        self.prompt_logprobs: bytes | None = None
        """The same logprobs in vLLM's form, encoded."""
        self.complete = body.num_prompt_logprobs is None
        """Whether every part of the prompt that choices show is known."""
        self._body = body
        self._end = len(ids) if end is None else end

    @cached_property
    def encoded_echo(self) -> bytes:
        """`echo` as the inside of a JSON string."""
        return encode(self.echo)[1:-1]

    @cached_property
    def encoded_ids(self) -> bytes:
        """`ids` as a JSON list."""
        return encode(self.ids)

    async def take(self, delta: TextDelta) -> None:
        """Encode the prompt's part of a delta, once for all choices."""
        tokens = delta.prompt_logprobs
        if tokens is None:
            return
        echoed, listed = self._body.echoed_logprobs, self._body.prompt_logprobs
        if echoed is not None:
            # Counted from the end: where the tokenizer has added something before the text, it may decode with a space
            # that the text does not begin with.
            last = tokens[self._end - 1] if self._end else None
            base = len(self.echo) - (last.offset + len(last.text) if last else 0)
            self.logprobs = await self._encoded(tokens, echoed, base)
        if listed is not None:
            self.prompt_logprobs = await encoded_prompt_logprobs(tokens, listed)
        self.complete = True

    async def _encoded(self, tokens: Sequence[TokenText], alternatives: int, base: int) -> CompletionLogprobs:
        logprobs = CompletionLogprobs()
        for begin in range(0, len(tokens), _AT_ONCE):
            as_ids = bool(self._body.return_tokens_as_token_ids)
            logprobs.add(tokens[begin : begin + _AT_ONCE], alternatives, as_ids, base, len(self.echo))
            await asyncio.sleep(0)
        return logprobs


async def encoded_prompt_logprobs(tokens: Sequence[TokenText], alternatives: int) -> bytes:
    """The `prompt_logprobs` of an answer."""
    pieces = []
    for begin in range(0, len(tokens), _AT_ONCE):
        part = prompt_logprobs_object(tokens[begin : begin + _AT_ONCE], alternatives)
        pieces.append(encode(part)[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(pieces) + b"]"
