"""Operations and answers of OpenAI's Responses API, for /openapi.json."""

from __future__ import annotations

from server.apis.responses.answers import COMPONENTS
from server.apis.responses.schema import ResponsesRequest
from server.openapi.components import derived
from server.openapi.operation import OF_BODIES, OF_WORK, WEATHER, Operation
from server.openapi.schema import Schema
from server.schemas.answers import response_items

_OF_STORED = (400, 401, 403, 404, 431, 500)
_WHOLE = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post", "/v1/responses", "createResponse", "Generation", "Answer a conversation in the form of OpenAI's Responses API",
        "Response", OF_WORK,
        "A stream consists of the events `response.created`, `response.in_progress`, then for each item of the answer "
        "`response.output_item.added`, its deltas and `response.output_item.done`, and last `response.completed`, "
        "`response.incomplete` or `response.failed`; there is no `[DONE]`. After 10 s of silence `response.in_progress` comes "
        "again. With `background` the response begins with status `queued` and goes on without its client.",
        ResponsesRequest,
        {
            "simple": {"model": "cohort-tiny", "input": "Count from 3 to 9."},
            "streamed": {"model": "cohort-tiny", "input": "Count from 3 to 9.", "stream": True, "instructions": "Be brief."},
            "tools": {
                "model": "cohort-tiny", "input": [{"role": "user", "content": "What is the weather in Rome?"}],
                "tools": [{"type": "function", **WEATHER["function"]}], "tool_choice": "auto",
            },
        },
        chunk="ResponseEvent", events="typed",
    ),
    Operation(
        "post", "/v1/responses/input_tokens", "countResponseTokens", "Generation", "Count the tokens of a response's prompt",
        "InputTokenCount", OF_BODIES,
        "The body is that of /v1/responses, and the number its response's `input_tokens`. Nothing is generated or stored.",
        ResponsesRequest, {"simple": {"model": "cohort-tiny", "input": "Count from 3 to 9."}},
    ),
    Operation(
        "get", "/v1/responses/{response_id}", "getResponse", "Generation", "Return a stored response", "Response", _OF_STORED,
        "With `stream`, the events of a background response so far and to come, each with its `sequence_number`.",
        chunk="ResponseEvent", events="typed",
        query=(
            ("stream", {"type": "boolean"}, "Whether the events of a background response are sent."),
            ("starting_after", _WHOLE, "Sequence number behind which the events begin. Default: all are sent."),
        ),
    ),
    Operation(
        "delete", "/v1/responses/{response_id}", "deleteResponse", "Generation",
        "Forget a response, and end one in progress", "DeletedResponse", _OF_STORED,
    ),
    Operation(
        "post", "/v1/responses/{response_id}/cancel", "cancelResponse", "Generation", "End a background response", "Response",
        (*_OF_STORED, 415), "A response that has ended stays as it is.",
    ),
    Operation(
        "get", "/v1/responses/{response_id}/input_items", "listInputItems", "Generation",
        "List the items that a stored response was made of", "InputItemList", _OF_STORED,
        "Those of the responses before it are included.",
        query=(
            ("limit", {"type": "integer", "minimum": 1, "maximum": 100}, "Most items of a page. Default: 20."),
            ("order", {"enum": ["asc", "desc"]}, "`asc` begins with the oldest. Default: desc."),
            ("after", {"type": "string"}, "Identifier of the item behind which the page begins."),
        ),
    ),
)  # fmt: skip

ANSWERS: dict[str, Schema] = derived(COMPONENTS, response_items.COMPONENTS)
