"""Operations and answers of Anthropic's messages, for /openapi.json."""

from __future__ import annotations

from server.apis.anthropic.answers import COMPONENTS
from server.apis.anthropic.schema import CountTokensRequest, MessagesRequest
from server.openapi.components import derived
from server.openapi.operation import HELLO, OF_BODIES, OF_WORK, WEATHER, Operation
from server.openapi.schema import Schema

_WEATHER_TOOL = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": WEATHER["function"]["parameters"],
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

ANSWERS: dict[str, Schema] = derived(COMPONENTS)
