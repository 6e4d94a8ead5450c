"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from engine.errors import InvalidRequest
from server.schemas import extras
from server.schemas.sampling import MAX_LOGPROBS, MAX_TOKEN_IDS, GenerationFields, Integer, TokenId

MAX_PROMPTS = 1024
MAX_SEQUENCES = 1024
"""Prompts times choices of one call."""
DEFAULT_MAX_TOKENS = 16
"""OpenAI's, for this endpoint only."""

TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKEN_IDS, fail_fast=True)]


def _form(prompt: Any) -> str:
    """Which of the four forms is meant, by the first element: an error then speaks of that form alone.

    The tags have spaces, so that none is the name of a field (`base.py` tells them apart by that)."""
    if not isinstance(prompt, list):
        return "one text"
    if prompt and isinstance(prompt[0], int | float):
        return "one list of ids"
    return "lists of ids" if prompt and isinstance(prompt[0], list) else "several texts"


Prompt = Annotated[
    Annotated[str, Tag("one text")]
    | Annotated[TokenIds, Tag("one list of ids")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("several texts")]
    | Annotated[
        list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("lists of ids")
    ],
    Discriminator(_form),
]


class CompletionRequest(GenerationFields):
    """A legacy completion call: one prompt or many, as text or as token ids."""

    prompt: Prompt
    logprobs: Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: Annotated[Integer, Field(ge=1)] | None = None
    suffix: str | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives per token, or None."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one by one, whichever of the four forms the client used."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]  # one prompt in token ids
        return list(self.prompt)

    def check(self) -> None:
        """Everything that types alone do not say. Raises InvalidRequest naming the field."""
        extras.judge(self.model_extra, type(self).model_fields, also_refused=_REFUSED)
        self.check_generation()
        if len(self.prompts) * (self.n or 1) > MAX_SEQUENCES:
            message = f"Prompts times 'n' may be at most {MAX_SEQUENCES}."
            raise InvalidRequest(message, param="n", code="invalid_value")
        self.check_logprobs(len(self.prompts) * (self.n or 1), self.logprobs, "logprobs")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise InvalidRequest("'best_of' is not supported.", param="best_of", code="unsupported_parameter")
        if self.suffix:
            raise InvalidRequest("'suffix' is not supported.", param="suffix", code="unsupported_parameter")
        if self.echo and self.logprobs is not None:
            message = "'echo' with 'logprobs' is not supported: there are no prompt logprobs yet."
            raise InvalidRequest(message, param="echo", code="unsupported_value")


_REFUSED = {
    "messages": "'messages' belongs to /v1/chat/completions; a completion has 'prompt'.",
    "tools": "'tools' are not supported for completions; use /v1/chat/completions.",
}
