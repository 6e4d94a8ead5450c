"""Operations and answers of Anthropic's messages, for /openapi.json."""

from __future__ import annotations

from server.apis.anthropic.schema import CountTokensRequest, MessagesRequest
from server.openapi.operation import HELLO, OF_BODIES, OF_WORK, WEATHER, Operation
from server.openapi.schema import COUNT, STRING, Schema, array, closed, const, nullable, one_of, ref

_WEATHER_TOOL = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": WEATHER["function"]["parameters"],
}
_MESSAGE_END: Schema = {
    "stop_reason": nullable(
        one_of(
            "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
        )
    ),
    "stop_sequence": nullable(STRING),
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/messages", "createMessage", "Generation", "Answer a conversation in Anthropic's form",
        "Message", OF_WORK,
        "A stream consists of the events `message_start`, then for each block of the answer `content_block_start`, "
        "`content_block_delta` and `content_block_stop`, then `message_delta` with the stop reason and the token counts, and "
        "`message_stop`. A `ping` comes after 10 s of silence. Errors have Anthropic's form.",
        MessagesRequest,
        {
            "simple": {**HELLO, "max_tokens": 100},
            "streamed": {**HELLO, "max_tokens": 100, "stream": True, "system": "Be brief."},
            "tools": {
                "model": "cohort-tiny", "max_tokens": 100, "tools": [_WEATHER_TOOL], "tool_choice": {"type": "auto"},
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
            },
        },
        chunk="MessageEvent", error="MessagesError", events="typed", failing_events=True, id_header="request-id",
    ),
    Operation(
        "post", "/v1/messages/count_tokens", "countMessageTokens", "Generation", "Count the tokens of a conversation's prompt",
        "TokenCount", OF_BODIES,
        "The number equals the `input_tokens` and `cache_read_input_tokens` of an answer to the same conversation together.",
        CountTokensRequest, {"simple": HELLO}, error="MessagesError", id_header="request-id",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {
    "MessagesError": closed(
        {
            "type": const("error"),
            "error": closed(
                {
                    "type": one_of(
                        "invalid_request_error",
                        "authentication_error",
                        "permission_error",
                        "not_found_error",
                        "request_too_large",
                        "rate_limit_error",
                        "timeout_error",
                        "api_error",
                        "overloaded_error",
                    ),
                    "message": {**STRING, "minLength": 1},
                }
            ),
            "request_id": nullable(STRING),
        },
        description="Error of the Messages API, and the event that ends a failed stream.",
    ),
    "MessagesUsage": closed(
        {
            "input_tokens": {
                **COUNT,
                "description": "Tokens of the prompt, without those read from the cache.",
            },
            "cache_creation_input_tokens": COUNT,
            "cache_read_input_tokens": COUNT,
            "output_tokens": COUNT,
            "output_tokens_details": closed({"thinking_tokens": COUNT}),
        }
    ),
    "AnsweredBlock": {
        "oneOf": [
            closed({"type": const("text"), "text": STRING}),
            closed({"type": const("thinking"), "thinking": STRING, "signature": STRING}),
            closed({"type": const("tool_use"), "id": STRING, "name": STRING, "input": {"type": "object"}}),
        ]
    },
    "Message": closed(
        {
            "id": STRING,
            "type": const("message"),
            "role": const("assistant"),
            "model": STRING,
            "content": array(ref("AnsweredBlock")),
            "usage": ref("MessagesUsage"),
            **_MESSAGE_END,
        }
    ),
    "MessageEvent": {
        "oneOf": [
            closed({"type": const("message_start"), "message": ref("Message")}),
            closed({"type": const("ping")}),
            closed(
                {"type": const("content_block_start"), "index": COUNT, "content_block": ref("AnsweredBlock")}
            ),
            closed(
                {
                    "type": const("content_block_delta"),
                    "index": COUNT,
                    "delta": {
                        "oneOf": [
                            closed({"type": const(kind), name: STRING})
                            for kind, name in (
                                ("text_delta", "text"),
                                ("thinking_delta", "thinking"),
                                ("signature_delta", "signature"),
                                ("input_json_delta", "partial_json"),
                            )
                        ]
                    },
                }
            ),
            closed({"type": const("content_block_stop"), "index": COUNT}),
            closed(
                {
                    "type": const("message_delta"),
                    "delta": closed(_MESSAGE_END),
                    "usage": ref("MessagesUsage"),
                }
            ),
            closed({"type": const("message_stop")}),
        ]
    },
    "TokenCount": closed({"input_tokens": COUNT}),
}
