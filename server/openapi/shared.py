"""JSON schemas of what the answers of several dialects consist of, and of errors in the form of those without their own.

Objects are closed, so that a test fails if an answer has a member that is missing here. The answers have no types of their own:
those of generation are written as bytes, chunk by chunk.
"""

from __future__ import annotations

from server.openapi.schema import COUNT, INTEGER, NUMBER, STRING, Schema, array, closed, nullable, one_of

ENVELOPE = {
    "created": COUNT,
    "model": STRING,
    "system_fingerprint": STRING,
    "seed": {
        **INTEGER,
        "description": "Seed that was used. The same request with this seed gets the same answer.",
    },
}
STOP_REASON = {
    "anyOf": [STRING, INTEGER, {"type": "null"}],
    "description": "Stop string or stop token id that ended the choice, or null.",
}
TOKEN_IDS = array(COUNT)

ANSWERS: dict[str, Schema] = {
    "Error": closed(
        {
            "error": closed(
                {
                    "message": {**STRING, "minLength": 1},
                    "type": one_of(
                        "invalid_request_error",
                        "authentication_error",
                        "permission_error",
                        "rate_limit_error",
                        "service_unavailable",
                        "server_error",
                        "executor_error",
                        "internal_error",
                    ),
                    "param": nullable(STRING),
                    "code": STRING,
                }
            )
        },
        description="Body of every answer that is not a success, and the event that ends a failed stream.",
    ),
    "Usage": closed(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": closed({"cached_tokens": COUNT}),
            "completion_tokens_details": closed({"reasoning_tokens": COUNT}),
        },
        description="Token counts.",
    ),
    "Timings": closed(
        {
            **dict.fromkeys(
                (
                    "prepare_ms",
                    "queue_ms",
                    "ttft_ms",
                    "prompt_ms",
                    "prompt_per_token_ms",
                    "prompt_per_second",
                ),
                NUMBER,
            ),
            **dict.fromkeys(("predicted_ms", "predicted_per_token_ms", "predicted_per_second"), NUMBER),
            **dict.fromkeys(("cache_n", "prompt_n", "predicted_n"), COUNT),
        },
        description="Times of a call in milliseconds, with llama.cpp's names: `prompt_*` is the prefill, `predicted_*` the "
        "tokens after the first. `prompt_n` prompt tokens were computed, `cache_n` found in the prefix cache.",
    ),
    "PromptLogprobs": array(
        nullable(
            {
                "type": "object",
                "additionalProperties": closed(
                    {"logprob": NUMBER, "rank": nullable(INTEGER), "decoded_token": nullable(STRING)}
                ),
            }
        )
    ),
    "PromptUsage": closed(
        {
            "prompt_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": closed({"cached_tokens": COUNT}),
        },
        description="Token counts of a call that generates no tokens.",
    ),
    "Version": closed({"version": STRING}),
}
