"""Answers of `/v1/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta, Raw

from server.schemas.answers.common import (
    Components,
    Count,
    PromptLogprobs,
    Seed,
    StopReason,
    Timings,
    TokenUsage,
)

CompletionFinish = Literal["stop", "length", "content_filter"]


class CompletionLogprobs(TypedDict):
    """Logprobs of a choice or chunk, an entry per token in each list."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[Count]


class CompletionChoice(TypedDict):
    """A whole choice."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | Raw | None
    finish_reason: CompletionFinish | None
    stop_reason: StopReason
    token_ids: NotRequired[Sequence[Count]]
    prompt_token_ids: NotRequired[Sequence[Count] | Raw]
    prompt_logprobs: NotRequired[PromptLogprobs | Raw | None]


class Completion(TypedDict):
    """A whole answer."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    seed: Seed
    choices: Annotated[list[CompletionChoice], Meta(min_length=1)]
    usage: TokenUsage
    timings: NotRequired[Timings]


class CompletionChunkChoice(TypedDict):
    """A choice of a chunk."""

    index: Count
    text: str | Raw
    logprobs: CompletionLogprobs | Raw | None
    finish_reason: CompletionFinish | None
    stop_reason: NotRequired[StopReason]
    token_ids: NotRequired[Sequence[Count]]
    prompt_token_ids: NotRequired[Sequence[Count] | Raw]


class CompletionChunk(TypedDict):
    """An event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    system_fingerprint: str
    seed: Seed
    choices: Annotated[list[CompletionChunkChoice], Meta(max_length=1)]
    usage: NotRequired[TokenUsage]
    timings: NotRequired[Timings]


COMPONENTS: Components = {
    "CompletionLogprobs": (CompletionLogprobs, ""),
    "Completion": (Completion, ""),
    "CompletionChunk": (CompletionChunk, ""),
}
