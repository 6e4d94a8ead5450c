"""What answers of several dialects have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from msgspec import Meta

Components = Mapping[str, tuple[Any, str]]
"""Types that `/openapi.json` describes under a name of their own, each with its description there, "" for none."""

Count = Annotated[int, Meta(ge=0)]
Seed = Annotated[
    int, Meta(description="Seed that was used. The same request with this seed gets the same answer.")
]
StopReason = Annotated[
    str | int | None, Meta(description="Stop string or stop token id that ended the choice, or null.")
]


class CachedTokens(TypedDict):
    """Details of the prompt's tokens."""

    cached_tokens: Count


class ReasoningTokens(TypedDict):
    """Details of the generated tokens."""

    reasoning_tokens: Count


class TokenUsage(TypedDict):
    """Token counts in OpenAI's form."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class PromptUsage(TypedDict):
    """Token counts of a call that generates no tokens."""

    prompt_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedTokens


class Timings(TypedDict):
    """Times in milliseconds and token counts, with llama.cpp's names."""

    prepare_ms: float
    queue_ms: float
    ttft_ms: float
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    cache_n: Count
    prompt_n: Count
    predicted_n: Count


class PromptLogprob(TypedDict):
    """The logprob of a prompt token, or of an alternative, in vLLM's form."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, PromptLogprob] | None]

COMPONENTS: Components = {
    "Usage": (TokenUsage, "Token counts."),
    "Timings": (
        Timings,
        "Times of a call in milliseconds, with llama.cpp's names: `prompt_*` is the prefill, "
        "`predicted_*` the tokens after the first. `prompt_n` prompt tokens were computed, `cache_n` found in the prefix cache.",
    ),
    "PromptLogprobs": (PromptLogprobs, ""),
    "PromptUsage": (PromptUsage, "Token counts of a call that generates no tokens."),
}
