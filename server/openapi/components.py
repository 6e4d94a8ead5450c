"""The components that are derived from the types of answers: name, type and description of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.openapi.derive import Derivation
from server.openapi.schema import Schema
from server.schemas.answers import chat, common, completions, messages, models, retrieval

TYPES: Mapping[str, tuple[Any, str]] = {
    "Usage": (common.TokenUsage, "Token counts."),
    "Timings": (
        common.Timings,
        "Times of a call in milliseconds, with llama.cpp's names: `prompt_*` is the prefill, `predicted_*` the "
        "tokens after the first. `prompt_n` prompt tokens were computed, `cache_n` found in the prefix cache.",
    ),
    "PromptLogprobs": (common.PromptLogprobs, ""),
    "PromptUsage": (common.PromptUsage, "Token counts of a call that generates no tokens."),
    "ChatLogprobs": (chat.ChatLogprobs, ""),
    "CompletionLogprobs": (completions.CompletionLogprobs, ""),
    "AnsweredToolCall": (chat.ToolCall, ""),
    "ToolCallDelta": (chat.ToolCallDelta, ""),
    "AnsweredMessage": (chat.AnsweredMessage, ""),
    "ChatCompletion": (chat.ChatCompletion, ""),
    "ChatCompletionChunk": (chat.ChatCompletionChunk, ""),
    "Completion": (completions.Completion, ""),
    "CompletionChunk": (completions.CompletionChunk, ""),
    "MessagesError": (
        messages.MessagesError,
        "Error of the Messages API, and the event that ends a failed stream.",
    ),
    "MessagesUsage": (messages.MessagesUsage, ""),
    "AnsweredBlock": (messages.AnsweredBlock, ""),
    "Message": (messages.Message, ""),
    "MessageEvent": (messages.MessageEvent, ""),
    "TokenCount": (messages.TokenCount, ""),
    "Reranked": (retrieval.Reranked, ""),
    "Scores": (retrieval.Scores, ""),
    "Embeddings": (retrieval.Embeddings, ""),
    "AnthropicModel": (models.AnthropicModel, "Model, for a client that sends `anthropic-version`."),
    "OpenAIModel": (models.OpenAIModel, ""),
    "Tokenized": (models.Tokenized, ""),
    "Detokenized": (models.Detokenized, ""),
}


def _derived() -> dict[str, Schema]:
    derivation = Derivation({kind: name for name, (kind, _) in TYPES.items()})
    return {name: derivation.component(kind, description) for name, (kind, description) in TYPES.items()}


DERIVED = _derived()
"""The schemas of these components, by name."""
