"""Operations and answers of OpenAI's chat completions, for /openapi.json."""

from __future__ import annotations

from server.openapi.components import derived
from server.openapi.operation import HELLO, OF_WORK, WEATHER, Operation
from server.openapi.schema import Schema
from server.schemas.answers import chat
from server.schemas.chat import ChatRequest

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/chat/completions", "createChatCompletion", "Generation", "Answer a conversation",
        "ChatCompletion", OF_WORK,
        "A stream begins with a chunk that contains the role. Then come deltas, a chunk with `finish_reason` for each choice, "
        "the token counts if `stream_options.include_usage` is set, and `[DONE]`. A failure within a stream is an event with "
        "an `error`.",
        ChatRequest,
        {
            "simple": HELLO,
            "streamed": {**HELLO, "stream": True, "stream_options": {"include_usage": True}, "seed": 1},
            "tools": {
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [WEATHER],
                "tool_choice": "auto",
            },
        },
        chunk="ChatCompletionChunk",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = derived(chat.COMPONENTS)
