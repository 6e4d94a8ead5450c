"""Operations and answers of OpenAI's completions, for /openapi.json."""

from __future__ import annotations

from server.openapi.operation import OF_WORK, Operation
from server.openapi.schema import COUNT, NUMBER, STRING, Schema, array, closed, const, nullable, one_of, ref
from server.openapi.shared import ENVELOPE, STOP_REASON, TOKEN_IDS
from server.schemas.completions import CompletionRequest

_COMPLETION_FINISH = nullable(one_of("stop", "length", "content_filter"))

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/completions", "createCompletion", "Generation", "Continue one prompt or several",
        "Completion", OF_WORK,
        "Choices are ordered by prompt: those of the first prompt come first.",
        CompletionRequest,
        {
            "text": {"model": "cohort-tiny", "prompt": "Once upon a time", "max_tokens": 20},
            "token ids": {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 1, "logprobs": 1, "temperature": 0},
        },
        chunk="CompletionChunk",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {
    "CompletionLogprobs": closed(
        {
            "tokens": array(STRING),
            "token_logprobs": array(nullable(NUMBER)),
            "top_logprobs": array(nullable({"type": "object", "additionalProperties": NUMBER})),
            "text_offset": array(COUNT),
        }
    ),
    "Completion": closed(
        {
            "id": STRING,
            "object": const("text_completion"),
            **ENVELOPE,
            "choices": array(
                closed(
                    {
                        "index": COUNT,
                        "text": STRING,
                        "logprobs": nullable(ref("CompletionLogprobs")),
                        "finish_reason": _COMPLETION_FINISH,
                        "stop_reason": STOP_REASON,
                    },
                    {
                        "token_ids": TOKEN_IDS,
                        "prompt_token_ids": TOKEN_IDS,
                        "prompt_logprobs": nullable(ref("PromptLogprobs")),
                    },
                ),
                minItems=1,
            ),
            "usage": ref("Usage"),
        },
        {"timings": ref("Timings")},
    ),
    "CompletionChunk": closed(
        {
            "id": STRING,
            "object": const("text_completion"),
            **ENVELOPE,
            "choices": array(
                closed(
                    {
                        "index": COUNT,
                        "text": STRING,
                        "logprobs": nullable(ref("CompletionLogprobs")),
                        "finish_reason": _COMPLETION_FINISH,
                    },
                    {"stop_reason": STOP_REASON, "token_ids": TOKEN_IDS, "prompt_token_ids": TOKEN_IDS},
                ),
                maxItems=1,
            ),
        },
        {"usage": ref("Usage"), "timings": ref("Timings")},
    ),
}
