"""/openapi.json, made of the table of operations, the wire types and the schemas of answers (OpenAPI 3.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from server import __version__
from server.openapi.answers import ANSWERS, Schema, ref
from server.openapi.fields import field_texts
from server.openapi.operations import OPERATIONS, TAGS, Operation
from server.schemas.base import WireModel, wire_types
from server.schemas.extras import HARMLESS

_ERRORS = {
    400: "The request is at fault; `param` names the field.",
    401: "No valid key.",
    403: "The Host header names a host that the server does not answer to: `--allowed-hosts`.",
    404: "There is no such model, or no such path.",
    408: "The request did not arrive in time, or too much of its answer was not read; the connection is closed.",
    413: "The body is larger than `--max-body-bytes`.",
    415: "The body is compressed, or its Content-Type is not JSON.",
    429: "The queue is full: come back after `Retry-After` seconds.",
    431: "Request line and headers are larger than 64 KiB.",
    500: "Something failed here; the client is not at fault.",
    503: "Loading or draining: come back after `Retry-After` seconds, or go elsewhere.",
}

_HEADERS: dict[str, Schema] = {
    "RequestId": {
        "description": "Minted for each request; the server's log has it too.",
        "required": True,
        "schema": {"type": "string", "pattern": "^req_[0-9a-f]{24}$"},
    },
    "Ignored": {
        "description": "Parameters of the request that were accepted and had no effect: names, percent-encoded, separated by "
        "commas, those inside of objects by their path (`messages[].type`). `...` at the end: there are more.",
        "schema": {"type": "string", "maxLength": 2100},
    },
    "RetryAfter": {"description": "Seconds.", "required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "ShouldRetry": {
        "description": "The same request would most likely fail again.",
        "schema": {"type": "string", "const": "false"},
    },
    "Authenticate": {"required": True, "schema": {"type": "string", "const": "Bearer"}},
}  # fmt: skip


def document() -> dict[str, Any]:
    """The whole description, plain data."""
    schemas: dict[str, Schema] = dict(ANSWERS)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if operation.request is not None:
            schemas.update(request_schemas(operation.request))
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Cohort",
            "version": __version__,
            "summary": "A continuous-batching inference server with an OpenAI-compatible API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": _HEADERS,
            "responses": {str(status): _error(status) for status in _ERRORS},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "One of the keys given with `--api-key`; a server started without any asks for none.",
                }
            },
        },
    }


def request_schemas(model: type[WireModel]) -> dict[str, Schema]:
    """The schema of a body and of the objects inside of it, by name, with what is known of each field."""
    whole = model.model_json_schema(ref_template="#/components/schemas/{model}")
    found = {**whole.pop("$defs", {}), model.__name__: whole}
    models = {one.__name__: one for one in wire_types()}
    clean = {name: _clean(schema) for name, schema in found.items()}
    for name, schema in clean.items():
        for field, text in field_texts(models[name]).items():
            about = {"description": text.meaning, "x-origin": text.origin}
            schema["properties"][field] |= about | ({"x-default": text.default} if text.default else {})
    body = clean[model.__name__]
    refused = {*model.rules.refused, *model.rules.unsupported}
    body["x-refused"] = sorted(refused - set(model.model_fields))
    body["x-ignored"] = sorted(HARMLESS - set(model.model_fields))
    return clean


_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}


def _clean(node: Any) -> Any:
    """Pydantic's schema as JSON Schema has it: bounds behind a validator come out in Pydantic's own words, keys that do not
    match a pattern are refused, and titles repeat the names."""
    if isinstance(node, list):
        return [_clean(one) for one in node]
    if not isinstance(node, dict):
        return node
    out: dict[str, Any] = {}
    for name, value in node.items():
        if name == "properties":
            out[name] = {field: _clean(schema) for field, schema in value.items()}
        elif name == "title" or (name == "default" and value is None):
            continue
        else:
            out[str(_BOUNDS.get(name, name))] = _clean(value)
    if "patternProperties" in out:
        out["additionalProperties"] = False
    return out


def _operation(operation: Operation) -> dict[str, Any]:
    out: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        out["description"] = operation.description
    if operation.keyless:
        out["security"] = []
    elif operation.own_key:
        out["security"] = [{}, {"bearer": []}]
    if names := list(_path_parameters(operation.path)):
        out["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if operation.request is not None:
        content: dict[str, Any] = {"schema": ref(operation.request.__name__)}
        content["examples"] = {name: {"value": body} for name, body in operation.examples.items()}
        out["requestBody"] = {"required": True, "content": {"application/json": content}}
    responses: dict[str, Any] = {"200": _success(operation)}
    for status in sorted(operation.errors):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    if operation.not_ready:
        responses["503"] = {
            **_success(operation),
            "description": "The same, with the stage that is in the way.",
        }
        responses["503"]["headers"] = {**responses["503"]["headers"], "Retry-After": _header("RetryAfter")}
    return {**out, "responses": responses}


def _success(operation: Operation) -> dict[str, Any]:
    headers = {"x-request-id": _header("RequestId")}
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if operation.answer is not None:
        content = {"application/json": {"schema": ref(operation.answer)}}
    if operation.request is not None:
        headers["x-cohort-ignored"] = _header("Ignored")
    if operation.chunk is not None:
        content["text/event-stream"] = {"schema": _event(operation.chunk)}
    return {"description": "Success.", "headers": headers, "content": content}


def _event(chunk: str) -> Schema:
    """Before OpenAPI 3.2 there is no word for the events of a stream: tools take the schema for that of one event."""
    json_text = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"oneOf": [ref(chunk), ref("Error")]},
    }
    return {
        "type": "object",
        "description": f"With `stream`: events `data: JSON`, each a {chunk} or an Error, and at last `data: [DONE]`.",
        "properties": {"data": {"anyOf": [json_text, {"type": "string", "const": "[DONE]"}]}},
        "required": ["data"],
    }


def _error(status: int) -> dict[str, Any]:
    headers = {} if status in (408, 431) else {"x-request-id": _header("RequestId")}
    if status in (429, 503):
        headers["Retry-After"] = _header("RetryAfter")
    if status == 500:
        headers["x-should-retry"] = _header("ShouldRetry")
    if status == 401:
        headers["WWW-Authenticate"] = _header("Authenticate")
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {"application/json": {"schema": ref("Error")}},
    }


def _header(name: str) -> Schema:
    return {"$ref": f"#/components/headers/{name}"}


def _path_parameters(path: str) -> Iterator[str]:
    for part in path.split("/"):
        if part.startswith("{"):
            yield part.strip("{}")
