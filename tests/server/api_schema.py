"""Checks answers of a server against its own description of them."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from server.apis.description import OPERATIONS, document_of
from server.apis.dialects import DIALECTS
from server.openapi.operation import Operation


@functools.cache
def described() -> dict[str, Any]:
    return document_of(DIALECTS)


@functools.cache
def validator(component: str) -> Draft202012Validator:
    """Of one component. The whole document is the schema, so that references lead somewhere."""
    schema = {**described(), "$ref": f"#/components/schemas/{component}"}
    return Draft202012Validator(schema)


def check(component: str, value: Any) -> None:
    faults = [f"{error.json_path}: {error.message}" for error in validator(component).iter_errors(value)]
    assert not faults, (component, faults[:3], value)


def operation_of(method: str, path: str) -> Operation:
    """The one whose template says most of the path."""
    found = [
        operation
        for operation in OPERATIONS
        if operation.method == method.lower()
        and re.fullmatch(re.sub("{[a-z_]+}", ".+", operation.path), path)
    ]
    assert found, f"{method} {path} is not described"
    return max(found, key=lambda operation: len(operation.path))


def check_answer(response: httpx.Response) -> None:
    """Status, headers, content type and body of an answer are what the description says."""
    operation = operation_of(response.request.method, response.request.url.path)
    responses = described()["paths"][operation.path][operation.method]["responses"]
    assert str(response.status_code) in responses, (response.status_code, response.text)
    one = _resolved(responses[str(response.status_code)])
    for name, header in one["headers"].items():
        header = _resolved(header)
        if header.get("required"):
            assert name in response.headers, name
        if name in response.headers:
            Draft202012Validator(header["schema"]).validate(response.headers[name])
    media = response.headers["content-type"].partition(";")[0]
    schema = one["content"][media]["schema"]
    if media == "application/json":
        check(schema["$ref"].rpartition("/")[2], response.json())
    elif media == "application/x-ndjson":
        check_lines(operation, response.text)
    elif media == "text/event-stream":
        assert operation.chunk is not None
        check_events(operation.chunk, response.text)


def check_events(chunk: str, body: str) -> None:
    """Each event of a stream is a chunk or an error, and the last one is the end."""
    if chunk == "MessageEvent":
        check_message_events(body)
        return
    if chunk == "ResponseEvent":
        check_response_events(body)
        return
    *blocks, last, empty = body.split("\n\n")
    assert (last, empty) == ("data: [DONE]", ""), body[-200:]
    for block in blocks:
        if block.startswith(":"):  # a comment: the stream is alive
            continue
        event = json.loads(block.removeprefix("data: "))
        check("Error" if "error" in event else chunk, event)


def check_lines(operation: Operation, body: str) -> None:
    """Lines of JSON: the last one, and no other, is done or an error."""
    assert operation.chunk is not None and body.endswith("\n")
    lines = [json.loads(line) for line in body.splitlines()]
    for line in lines:
        check(operation.error if "error" in line else operation.chunk, line)
    assert ["error" in line or line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def check_message_events(body: str) -> None:
    """Events in Anthropic's form: their type stands in both lines, and the last one ends the message or is an error."""
    *blocks, empty = body.split("\n\n")
    assert empty == "", body[-200:]
    kinds = []
    for block in blocks:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        kinds.append(event["type"])
        assert kind == f"event: {event['type']}"
        check("MessagesError" if event["type"] == "error" else "MessageEvent", event)
    assert kinds[-1] in ("message_stop", "error")


def check_response_events(body: str, shapes: bool = True) -> None:
    """Events of the Responses API: their type stands in both lines, their numbers go up by one, and the last one is an end.
    `shapes`: each is what the description says, which takes a few milliseconds."""
    *blocks, empty = body.split("\n\n")
    assert empty == "", body[-200:]
    events = []
    for block in blocks:
        if block.startswith(":"):
            continue
        kind, data = block.split("\n")
        events.append(event := json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {event['type']}"
        if shapes:
            check("ResponseEvent", event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    ends = {f"response.{status}" for status in ("completed", "incomplete", "failed", "cancelled")}
    assert [event["type"] in ends for event in events] == [False] * (len(events) - 1) + [True]


def _resolved(node: dict[str, Any]) -> dict[str, Any]:
    while reference := node.get("$ref"):
        found: Any = described()
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node
