"""Operations and answers of Ollama's API, for /openapi.json."""

from __future__ import annotations

from server.apis.ollama.answers import COMPONENTS
from server.apis.ollama.schema import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from server.openapi.components import derived
from server.openapi.operation import HELLO, OF_BODIES, OF_WORK, WEATHER, Operation
from server.openapi.schema import Schema

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/api/chat", "ollamaChat", "Ollama", "Answer a conversation in Ollama's form", "OllamaChat", OF_WORK,
        "The answer is a stream of lines unless `stream` is false. A call comes in one line, once it is complete. The last line "
        "has `done_reason`, the durations in nanoseconds and the counts. A failure within a stream is a line with an `error`.",
        OllamaChatRequest,
        {
            "simple": HELLO,
            "whole": {**HELLO, "stream": False, "options": {"temperature": 0, "num_predict": 20}, "format": "json"},
            "tools": {
                "model": "cohort-tiny", "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
                "tools": [WEATHER],
            },
        },
        chunk="OllamaChat", events="lines", error="OllamaError",
    ),
    Operation(
        "post", "/api/generate", "ollamaGenerate", "Ollama", "Answer a prompt in Ollama's form, or continue a text",
        "OllamaGeneration", OF_WORK,
        "With `raw` or `suffix` the text is continued as with /v1/completions. `context` of earlier answers is not supported.",
        OllamaGenerateRequest,
        {
            "simple": {"model": "cohort-tiny", "prompt": "Count from 3 to 9."},
            "raw": {"model": "cohort-tiny", "prompt": "Once upon a time", "raw": True, "stream": False},
        },
        chunk="OllamaGeneration", events="lines", error="OllamaError",
    ),
    Operation(
        "post", "/api/embed", "ollamaEmbed", "Ollama", "Turn texts into vectors in Ollama's form", "OllamaEmbeddings", OF_WORK,
        "Vectors have length 1 and come in the order of the inputs.",
        OllamaEmbedRequest, {"texts": {"model": "cohort-tiny", "input": ["Hello", "Good morning"]}}, error="OllamaError",
    ),
    Operation(
        "post", "/api/embeddings", "ollamaEmbeddings", "Ollama", "Turn a text into a vector in Ollama's older form",
        "OllamaEmbedding", OF_WORK, "", OllamaEmbeddingsRequest,
        {"text": {"model": "cohort-tiny", "prompt": "Hello"}}, error="OllamaError",
    ),
    Operation(
        "post", "/api/show", "ollamaShow", "Ollama", "Describe a model in Ollama's form", "OllamaModel", OF_BODIES,
        "`capabilities` has `completion`, `tools`, `thinking` and `insert`, or `embedding`. `template` is one of Jinja.",
        OllamaShowRequest, {"model": {"model": "cohort-tiny"}}, error="OllamaError",
    ),
    Operation(
        "get", "/api/tags", "ollamaTags", "Ollama", "List the served names in Ollama's form", "OllamaTags",
        description="`size` counts the bytes of the weights in memory. `digest` identifies the name and its model.",
        error="OllamaError",
    ),
    Operation(
        "get", "/api/ps", "ollamaPs", "Ollama", "List the loaded models in Ollama's form", "OllamaProcesses",
        description="`expires_at` is far away: a model stays loaded until the server ends.", error="OllamaError",
    ),
    Operation(
        "get", "/api/version", "ollamaVersion", "Ollama", "Return the version of Ollama whose API this is", "Version",
        error="OllamaError",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = derived(COMPONENTS)
