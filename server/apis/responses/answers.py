"""JSON schemas of the Responses API's answers and events."""

from __future__ import annotations

from server.openapi.components import DERIVED
from server.openapi.schema import (
    BOOLEAN,
    COUNT,
    NUMBER,
    STRING,
    Schema,
    array,
    closed,
    const,
    nullable,
    one_of,
    ref,
)

_OBJECT: Schema = {"type": "object"}
_ITEM = {"item_id": STRING, "output_index": COUNT}
_PART = {**_ITEM, "content_index": COUNT}
_STATUS = one_of("in_progress", "completed", "incomplete")
_LOGPROBS = array(
    closed(
        {
            "token": STRING,
            "logprob": NUMBER,
            "bytes": array(COUNT),
            "top_logprobs": array(closed({"token": STRING, "logprob": NUMBER, "bytes": array(COUNT)})),
        }
    )
)
_TEXT_PART = closed(
    {
        "type": const("output_text"),
        "text": STRING,
        "annotations": array(_OBJECT, maxItems=0),
        "logprobs": _LOGPROBS,
    }
)
_REASONING_PART = closed({"type": const("reasoning_text"), "text": STRING})
_CALL = {"id": STRING, "status": _STATUS, "call_id": STRING, "name": STRING}


def _event(kind: str, members: Schema) -> Schema:
    return closed({"type": const(f"response.{kind}"), **members, "sequence_number": COUNT})


RESPONSES: dict[str, Schema] = {
    "ResponsesUsage": DERIVED["ResponsesUsage"],
    "OutputItem": {
        "oneOf": [
            closed(
                {
                    "id": STRING,
                    "type": const("message"),
                    "status": _STATUS,
                    "role": const("assistant"),
                    "content": array(_TEXT_PART, maxItems=1),
                }
            ),
            closed(
                {
                    "id": STRING,
                    "type": const("reasoning"),
                    "status": _STATUS,
                    "summary": array(_OBJECT, maxItems=0),
                    "content": array(_REASONING_PART, maxItems=1),
                },
                {"encrypted_content": STRING},
            ),
            closed({**_CALL, "type": const("function_call"), "arguments": STRING}, {"namespace": STRING}),
            closed({**_CALL, "type": const("custom_tool_call"), "input": STRING}, {"namespace": STRING}),
        ]
    },
    "Response": closed(
        {
            "id": STRING,
            "object": const("response"),
            "created_at": COUNT,
            "status": one_of("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
            "completed_at": nullable(COUNT),
            "error": nullable(closed({"code": STRING, "message": STRING})),
            "incomplete_details": nullable(closed({"reason": one_of("max_output_tokens", "content_filter")})),
            "model": STRING,
            "output": array(ref("OutputItem")),
            "usage": nullable(ref("ResponsesUsage")),
            "background": BOOLEAN,
            "instructions": nullable(STRING),
            "max_output_tokens": nullable(COUNT),
            "max_tool_calls": nullable(COUNT),
            "metadata": _OBJECT,
            "parallel_tool_calls": BOOLEAN,
            "previous_response_id": nullable(STRING),
            "prompt_cache_key": nullable(STRING),
            "reasoning": closed({"effort": nullable(STRING), "summary": {"type": "null"}}),
            "safety_identifier": nullable(STRING),
            "service_tier": const("default"),
            "store": BOOLEAN,
            "temperature": NUMBER,
            "text": closed({"format": _OBJECT}, {"verbosity": STRING}),
            "tool_choice": {"anyOf": [STRING, _OBJECT]},
            "tools": array(_OBJECT),
            "top_logprobs": COUNT,
            "top_p": NUMBER,
            "truncation": one_of("auto", "disabled"),
            "user": nullable(STRING),
            "presence_penalty": NUMBER,
            "frequency_penalty": NUMBER,
        }
    ),
    "ResponseEvent": {
        "oneOf": [
            *(
                _event(kind, {"response": ref("Response")})
                for kind in (
                    "created",
                    "queued",
                    "in_progress",
                    "completed",
                    "incomplete",
                    "failed",
                    "cancelled",
                )
            ),
            *(
                _event(kind, {"output_index": COUNT, "item": ref("OutputItem")})
                for kind in ("output_item.added", "output_item.done")
            ),
            *(
                _event(kind, {**_PART, "part": {"oneOf": [_TEXT_PART, _REASONING_PART]}})
                for kind in ("content_part.added", "content_part.done")
            ),
            _event("output_text.delta", {**_PART, "delta": STRING, "logprobs": _LOGPROBS}),
            _event("output_text.done", {**_PART, "text": STRING, "logprobs": _LOGPROBS}),
            _event("reasoning_text.delta", {**_PART, "delta": STRING}),
            _event("reasoning_text.done", {**_PART, "text": STRING}),
            _event("function_call_arguments.delta", {**_ITEM, "delta": STRING}),
            _event("function_call_arguments.done", {**_ITEM, "name": STRING, "arguments": STRING}),
            _event("custom_tool_call_input.delta", {**_ITEM, "delta": STRING}),
            _event("custom_tool_call_input.done", {**_ITEM, "input": STRING}),
        ]
    },
    "DeletedResponse": DERIVED["DeletedResponse"],
    "InputItemList": DERIVED["InputItemList"],
}
