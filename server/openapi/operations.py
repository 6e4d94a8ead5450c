"""Every operation of the API: what it is called, what it takes, what it answers, and an example or two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from server.schemas.base import WireModel
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.tokens import DetokenizeRequest, TokenizeRequest

TAGS = {
    "Generation": "Chat and completions, as OpenAI has them.",
    "Models": "What is served, and by what.",
    "Tokens": "The model's tokenizer, as vLLM has it.",
    "Operation": "For those who run the server.",
}


@dataclass(frozen=True)
class Operation:
    """One method of one path. `answer` is a component of answers.py, or None for text; `chunk` the component that the events
    of its stream hold; `errors` the statuses that an answer may have besides."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    answer: str | None
    errors: tuple[int, ...] = (401, 403, 431, 500)
    description: str = ""
    request: type[WireModel] | None = None
    examples: dict[str, dict[str, Any]] = field(default_factory=dict)
    chunk: str | None = None
    keyless: bool = False
    own_key: bool = False
    """Open, unless a key of its own closes it."""
    not_ready: bool = False
    """A 503 has the body of the 200."""


_OF_BODIES = (400, 401, 403, 404, 408, 413, 415, 431, 500, 503)
_OF_WORK = (*_OF_BODIES, 429)
_HELLO = {"model": "cohort-tiny", "messages": [{"role": "user", "content": "Count from 3 to 9."}]}
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/chat/completions", "createChatCompletion", "Generation", "Answer a conversation",
        "ChatCompletion", _OF_WORK,
        "Streams: first a chunk with the role, then deltas, a chunk with `finish_reason` for each choice, the usage if it was "
        "asked for, and `[DONE]`. A failure in a stream is an event with an `error`.",
        ChatRequest,
        {
            "simple": _HELLO,
            "streamed": {**_HELLO, "stream": True, "stream_options": {"include_usage": True}, "seed": 1},
            "tools": {
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [_WEATHER],
                "tool_choice": "auto",
            },
        },
        chunk="ChatCompletionChunk",
    ),
    Operation(
        "post", "/v1/completions", "createCompletion", "Generation", "Continue one prompt or many",
        "Completion", _OF_WORK,
        "Choices are ordered by prompt: those of the first prompt come first.",
        CompletionRequest,
        {
            "text": {"model": "cohort-tiny", "prompt": "Once upon a time", "max_tokens": 20},
            "token ids": {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 1, "logprobs": 1, "temperature": 0},
        },
        chunk="CompletionChunk",
    ),
    Operation(
        "post", "/v1/embeddings", "createEmbedding", "Generation", "Vectors of texts",
        "Embeddings", _OF_WORK,
        "Vectors have length 1 unless `use_activation` is false. They come in the order of the inputs.",
        EmbeddingRequest,
        {"texts": {"input": ["Hello", "Good morning"]}, "base64": {"input": "Hello", "encoding_format": "base64"}},
    ),
    Operation(
        "post", "/tokenize", "tokenize", "Tokens", "Token ids of a text or a conversation",
        "Tokenized", _OF_BODIES, "A conversation goes through the chat template.", TokenizeRequest,
        {"text": {"prompt": "Hello"}, "chat": {"messages": [{"role": "user", "content": "Hello"}]}},
    ),
    Operation(
        "post", "/detokenize", "detokenize", "Tokens", "Text of token ids",
        "Detokenized", _OF_BODIES, "", DetokenizeRequest, {"ids": {"tokens": [1, 2, 3]}},
    ),
    Operation(
        "get", "/tokenizer_info", "tokenizerInfo", "Tokens", "The tokenizer's settings and chat template",
        "TokenizerInfo", (401, 403, 431, 500, 503),
    ),
    Operation("get", "/v1/models", "listModels", "Models", "Every name the model is served under", "ModelList"),
    Operation(
        "get", "/v1/models/{name}", "getModel", "Models", "One of them", "Model", (401, 403, 404, 431, 500),
        "A name may hold slashes; they need not be encoded.",
    ),
    Operation(
        "get", "/v1/executors", "listExecutors", "Models", "What each executor declares, and how it fares",
        "ExecutorList", (401, 403, 431, 500, 503),
    ),
    Operation(
        "get", "/live", "live", "Operation", "Whether the event loop turns", "Live", (403, 431, 500), keyless=True,
        description="200 also while loading, recovering and draining: the only liveness probe.",
    ),
    Operation(
        "get", "/ready", "ready", "Operation", "Whether new work is welcome", "Stage", (403, 431, 500), keyless=True,
        description="200 only when new work should be routed here.", not_ready=True,
    ),
    Operation(
        "get", "/health", "health", "Operation", "Whether the server works, or is about to again", "Stage", (403, 431, 500),
        description="503 while loading, when a recovery takes too long, and when the engine is down.", keyless=True,
        not_ready=True,
    ),
    Operation("get", "/version", "version", "Operation", "The server's version", "Version", (403, 431, 500), keyless=True),
    Operation(
        "get", "/metrics", "metrics", "Operation", "Prometheus text", None,
        description="Open, unless the server was started with `--metrics-key`: then that key is the one it wants.",
        own_key=True,
    ),
    Operation(
        "get", "/openapi.json", "openapi", "Operation", "This description", "Description",
    ),
)  # fmt: skip
