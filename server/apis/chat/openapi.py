"""Operations and answers of OpenAI's chat completions, for /openapi.json."""

from __future__ import annotations

from server.openapi.operation import HELLO, OF_WORK, WEATHER, Operation
from server.openapi.schema import COUNT, NUMBER, STRING, Schema, array, closed, const, nullable, one_of, ref
from server.openapi.shared import ENVELOPE, STOP_REASON, TOKEN_IDS
from server.schemas.chat import ChatRequest

_TOKEN = {"token": STRING, "logprob": NUMBER, "bytes": nullable(array(COUNT))}
_FINISH = nullable(one_of("stop", "length", "tool_calls", "content_filter"))
_REASONING = {"reasoning": nullable(STRING), "reasoning_content": nullable(STRING)}
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

ANSWERS: dict[str, Schema] = {
    "ChatLogprobs": closed(
        {
            "content": array(closed({**_TOKEN, "top_logprobs": array(closed(_TOKEN))})),
            "refusal": {"type": "null"},
        }
    ),
    "AnsweredToolCall": closed(
        {"id": STRING, "type": const("function"), "function": closed({"name": STRING, "arguments": STRING})}
    ),
    "ToolCallDelta": closed(
        {"index": COUNT},
        {
            "id": STRING,
            "type": const("function"),
            "function": closed({}, {"name": STRING, "arguments": STRING}),
        },
    ),
    "AnsweredMessage": closed(
        {"role": const("assistant"), "content": nullable(STRING), "refusal": {"type": "null"}},
        {"tool_calls": array(ref("AnsweredToolCall"), minItems=1), **_REASONING},
    ),
    "ChatCompletion": closed(
        {
            "id": STRING,
            "object": const("chat.completion"),
            **ENVELOPE,
            "choices": array(
                closed(
                    {
                        "index": COUNT,
                        "message": ref("AnsweredMessage"),
                        "logprobs": nullable(ref("ChatLogprobs")),
                        "finish_reason": _FINISH,
                        "stop_reason": STOP_REASON,
                    },
                    {"token_ids": TOKEN_IDS},
                ),
                minItems=1,
            ),
            "usage": ref("Usage"),
        },
        {
            "prompt_token_ids": TOKEN_IDS,
            "prompt_logprobs": nullable(ref("PromptLogprobs")),
            "timings": ref("Timings"),
        },
    ),
    "ChatCompletionChunk": closed(
        {
            "id": STRING,
            "object": const("chat.completion.chunk"),
            **ENVELOPE,
            "choices": array(
                closed(
                    {
                        "index": COUNT,
                        "delta": closed(
                            {},
                            {
                                "role": const("assistant"),
                                "content": nullable(STRING),
                                "tool_calls": array(ref("ToolCallDelta"), minItems=1),
                                **_REASONING,
                            },
                        ),
                        "logprobs": nullable(ref("ChatLogprobs")),
                        "finish_reason": _FINISH,
                    },
                    {"stop_reason": STOP_REASON, "token_ids": TOKEN_IDS},
                ),
                maxItems=1,
            ),
        },
        {"usage": ref("Usage"), "prompt_token_ids": TOKEN_IDS, "timings": ref("Timings")},
    ),
}
