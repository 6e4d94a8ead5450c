"""JSON schemas of the answers of Ollama's API."""

from __future__ import annotations

from server.openapi.schema import (
    BOOLEAN,
    COUNT,
    NUMBER,
    STRING,
    Schema,
    array,
    closed,
    const,
    one_of,
    ref,
)

_TOKEN: Schema = {"token": STRING, "logprob": NUMBER, "bytes": array(COUNT)}
_LOGPROBS = array(closed({**_TOKEN, "top_logprobs": array(closed(_TOKEN))}))
_NANOSECONDS: Schema = {**COUNT, "description": "Nanoseconds."}
_ENDING: Schema = {
    "done_reason": one_of("stop", "length", "load"),
    "total_duration": _NANOSECONDS,
    "load_duration": {**COUNT, "description": "Nanoseconds until the prompt was made and queued."},
    "prompt_eval_count": {**COUNT, "description": "Tokens of the prompt, with those read from the cache."},
    "prompt_eval_duration": {**COUNT, "description": "Nanoseconds until the first token, in the queue too."},
    "eval_count": {**COUNT, "description": "Generated tokens."},
    "eval_duration": _NANOSECONDS,
}
_DETAILS = closed(
    {
        "parent_model": STRING,
        "format": STRING,
        "family": STRING,
        "families": array(STRING),
        "parameter_size": STRING,
        "quantization_level": STRING,
    }
)
_CARD: Schema = {
    "name": STRING,
    "model": STRING,
    "size": COUNT,
    "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "details": _DETAILS,
}


def _line(members: Schema, optional: Schema, about: str) -> Schema:
    head = {"model": STRING, "created_at": STRING, **members, "done": BOOLEAN}
    return closed(head, {**optional, "logprobs": _LOGPROBS, **_ENDING}, about)


OLLAMA: dict[str, Schema] = {
    "OllamaError": closed(
        {"error": {**STRING, "minLength": 1}}, description="Error of Ollama's API; it ends a failed stream."
    ),
    "OllamaMessageOut": closed(
        {"role": const("assistant"), "content": STRING},
        {
            "thinking": STRING,
            "tool_calls": array(
                closed(
                    {
                        "id": STRING,
                        "function": closed({"index": COUNT, "name": STRING, "arguments": {"type": "object"}}),
                    }
                )
            ),
        },
    ),
    "OllamaChat": _line(
        {"message": ref("OllamaMessageOut")}, {}, "Whole answer, or a line of a stream, whose last is `done`."
    ),
    "OllamaGeneration": _line(
        {"response": STRING},
        {"thinking": STRING},
        "Whole answer, or a line of a stream, whose last is `done`.",
    ),
    "OllamaEmbeddings": closed(
        {
            "model": STRING,
            "embeddings": array(array(NUMBER)),
            "total_duration": _NANOSECONDS,
            "load_duration": _NANOSECONDS,
            "prompt_eval_count": COUNT,
        }
    ),
    "OllamaEmbedding": closed({"embedding": array(NUMBER)}),
    "OllamaTags": closed({"models": array(closed({**_CARD, "modified_at": STRING}))}),
    "OllamaProcesses": closed(
        {
            "models": array(
                closed({**_CARD, "expires_at": STRING, "size_vram": COUNT, "context_length": COUNT})
            )
        }
    ),
    "OllamaModel": closed(
        {
            "modelfile": STRING,
            "parameters": STRING,
            "template": STRING,
            "details": _DETAILS,
            "model_info": {"type": "object"},
            "capabilities": array(one_of("completion", "tools", "thinking", "insert", "embedding")),
            "modified_at": STRING,
        },
        {
            "system": STRING,
            "messages": array(closed({"role": one_of("system", "user", "assistant"), "content": STRING})),
            "license": STRING,
            "adapter": STRING,
        },
    ),
}
