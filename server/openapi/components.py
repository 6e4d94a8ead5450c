"""The components that are derived from the types of answers: name, type and description of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.openapi.derive import Derivation
from server.openapi.schema import Schema
from server.schemas.answers import (
    chat,
    common,
    completions,
    errors,
    messages,
    models,
    ollama,
    response_items,
    responses,
    retrieval,
)

_LINE = "Whole answer, or a line of a stream, whose last is `done`."

TYPES: Mapping[str, tuple[Any, str]] = {
    "Error": (
        errors.ErrorBody,
        "Body of every answer that is not a success, and the event that ends a failed stream.",
    ),
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
    "OllamaError": (ollama.OllamaError, "Error of Ollama's API; it ends a failed stream."),
    "OllamaMessageOut": (ollama.AnsweredMessage, ""),
    "OllamaChat": (ollama.OllamaChat, _LINE),
    "OllamaGeneration": (ollama.OllamaGeneration, _LINE),
    "OllamaEmbeddings": (ollama.OllamaEmbeddings, ""),
    "OllamaEmbedding": (ollama.OllamaEmbedding, ""),
    "OllamaTags": (ollama.OllamaTags, ""),
    "OllamaProcesses": (ollama.OllamaProcesses, ""),
    "OllamaModel": (ollama.OllamaModel, ""),
    "InputTokenCount": (responses.InputTokenCount, ""),
    "ResponsesUsage": (responses.ResponsesUsage, ""),
    "OutputItem": (response_items.OutputItem, ""),
    "Response": (response_items.Response, ""),
    "ResponseEvent": (response_items.ResponseEvent, ""),
    "DeletedResponse": (responses.DeletedResponse, ""),
    "InputItemList": (responses.InputItemList, ""),
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
