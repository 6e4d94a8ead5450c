"""Operations and answers of OpenAI's completions, for /openapi.json."""

from __future__ import annotations

from server.openapi.components import derived
from server.openapi.operation import OF_WORK, Operation
from server.openapi.schema import Schema
from server.schemas.answers import completions
from server.schemas.completions import CompletionRequest

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

ANSWERS: dict[str, Schema] = derived(completions.COMPONENTS)
