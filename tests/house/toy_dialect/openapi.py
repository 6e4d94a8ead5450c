"""Operation and answers, for /openapi.json."""

from __future__ import annotations

from server.openapi.operation import HELLO, OF_WORK, Operation
from server.openapi.schema import COUNT, STRING, Schema, array, closed, const, one_of
from tests.house.toy_dialect.schema import ToyRequest

_COUNTS = closed({"input_tokens": COUNT, "output_tokens": COUNT})

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v2/chat", "toyChat", "Generation", "Answer a conversation in Cohere's form", "ToyChat", OF_WORK,
        request=ToyRequest, examples={"simple": HELLO}, chunk="ToyEvent", events="typed", error="ToyError",
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = {
    "ToyError": closed({"message": {**STRING, "minLength": 1}}),
    "ToyChat": closed(
        {
            "id": STRING,
            "finish_reason": one_of("COMPLETE", "MAX_TOKENS", "ERROR"),
            "message": closed(
                {
                    "role": const("assistant"),
                    "content": array(closed({"type": const("text"), "text": STRING})),
                }
            ),
            "usage": closed({"tokens": _COUNTS}),
        }
    ),
    "ToyEvent": {"type": "object", "required": ["type"], "properties": {"type": STRING}},
}
