"""/openapi.json (OpenAPI 3.1), made from tables of operations, the wire types and the schemas of answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from server import __version__
from server.openapi.fields import field_texts
from server.openapi.operation import Operation
from server.openapi.schema import Schema, ref
from server.schemas.base import WireModel, wire_types
from server.schemas.extras import HARMLESS
from server.schemas.sampling import RequestFields

_ERRORS = {
    400: "The request is invalid; `param` names the field.",
    401: "The API key is missing or wrong.",
    403: "The Host header names a host that the server does not answer to; `--allowed-hosts` adds names.",
    404: "The model, the stored response or the path does not exist.",
    408: "The request did not arrive in time, or the client was too slow to read its answer. The connection is closed.",
    413: "The body is larger than `--max-body-bytes`.",
    415: "The body is compressed, or its Content-Type is not JSON. Below `/api` the type matters only for web pages.",
    429: "The queue is full, or the request's deadline cannot be met. Retry after `Retry-After` seconds.",
    431: "The request line and headers are larger than 64 KiB.",
    500: "The server failed; the request is not at fault.",
    503: "The server is loading or draining. Retry after `Retry-After` seconds, or use another server.",
}

_HEADERS: dict[str, Schema] = {
    "RequestId": {
        "description": "Identifier of the request. The server creates it and writes it to its log.",
        "required": True,
        "schema": {"type": "string", "pattern": "^req_[0-9a-f]{24}$"},
    },
    "Ignored": {
        "description": "Names of the request's parameters that were accepted and had no effect, percent-encoded and separated by "
        "commas. A name within an object is its path (`messages[].type`). A final `...` means that there are more.",
        "schema": {"type": "string", "maxLength": 2100},
    },
    "ServerTiming": {
        "description": "Milliseconds of the call's parts: `prepare`, `queue`, `prefill` and, without `stream`, `decode`.",
        "schema": {"type": "string", "maxLength": 200},
    },
    "RetryAfter": {
        "description": "Seconds to wait before the next attempt.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "ShouldRetry": {
        "description": "The same request would most likely fail again.",
        "schema": {"type": "string", "const": "false"},
    },
    "Authenticate": {"required": True, "schema": {"type": "string", "const": "Bearer"}},
}  # fmt: skip


def document(
    operations: Sequence[Operation], answers: Mapping[str, Schema], tags: Mapping[str, str]
) -> dict[str, Any]:
    """The whole description as plain data. `answers`: components by name; `tags`: their descriptions by name."""
    schemas: dict[str, Schema] = dict(answers)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
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
        # Relative to the document's own address, which ends in /openapi.json: right below a proxy's path, too.
        "servers": [{"url": "."}],
        "tags": [{"name": name, "description": text} for name, text in tags.items()],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": _HEADERS,
            "responses": {
                _named(status, error): _error(status, error, id_header)
                for error, id_header in sorted({one.error: one.id_header for one in operations}.items())
                for status in _ERRORS
                if any(status in one.errors for one in operations if one.error == error)
            },
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key given with `--api-key`. A server started without keys requires none.",
                }
            },
        },
    }


def request_schemas(model: type[WireModel]) -> dict[str, Schema]:
    """The schemas of a body and of the objects within it, by name, with description, origin and default of each field."""
    whole = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**whole.pop("$defs", {}), model.__name__: whole}
    models = {one.__name__: one for one in wire_types()}
    clean = {name: _clean(schema) for name, schema in schemas.items()}
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
    """A schema of Pydantic as plain JSON Schema: the bounds of a field with a validator get their standard names, keys that do
    not match the pattern are excluded, and titles, which only repeat names, are removed."""
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
    parameters: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _path_parameters(operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": about, "schema": schema}
        for name, schema, about in operation.query
    ]
    if parameters:
        out["parameters"] = parameters
    if operation.request is not None:
        content: dict[str, Any] = {"schema": ref(operation.request.__name__)}
        content["examples"] = {name: {"value": body} for name, body in operation.examples.items()}
        out["requestBody"] = {"required": True, "content": {"application/json": content}}
    responses: dict[str, Any] = {"200": _success(operation)}
    for status in sorted(operation.errors):
        responses[str(status)] = {"$ref": f"#/components/responses/{_named(status, operation.error)}"}
    if operation.not_ready:
        responses["503"] = {
            **_success(operation),
            "description": "The same body; `status` tells why the server is not ready.",
        }
        responses["503"]["headers"] = {**responses["503"]["headers"], "Retry-After": _header("RetryAfter")}
    return {**out, "responses": responses}


def _success(operation: Operation) -> dict[str, Any]:
    headers = {"x-request-id": _header("RequestId")}
    if operation.id_header is not None:
        headers[operation.id_header] = _header("RequestId")
    content: dict[str, Any] = {kind: {"schema": {"type": "string"}} for kind in operation.media}
    if operation.answer is not None:
        content = {"application/json": {"schema": ref(operation.answer)}}
    if operation.request is not None:
        headers["x-cohort-ignored"] = _header("Ignored")
        if issubclass(operation.request, RequestFields):
            headers["server-timing"] = _header("ServerTiming")
    if operation.chunk is not None:
        if operation.events == "lines":
            content["application/x-ndjson"] = {
                "schema": {"oneOf": [ref(operation.chunk), ref(operation.error)]}
            }
        else:
            event = _typed_event(operation) if operation.events == "typed" else _event(operation.chunk)
            content["text/event-stream"] = {"schema": event}
    return {"description": "Success.", "headers": headers, "content": content}


def _event(chunk: str) -> Schema:
    """The schema of one event. OpenAPI 3.1 cannot describe a stream of events; tools read this schema as that of one event."""
    json_text = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"oneOf": [ref(chunk), ref("Error")]},
    }
    return {
        "type": "object",
        "description": f"With `stream`: events `data: JSON`, each a {chunk} or an Error; the last event is `data: [DONE]`.",
        "properties": {"data": {"anyOf": [json_text, {"type": "string", "const": "[DONE]"}]}},
        "required": ["data"],
    }


def _typed_event(operation: Operation) -> Schema:
    """The schema of one event of a stream whose events have a line with their type."""
    assert operation.chunk is not None
    chunks = [operation.chunk, *([operation.error] if operation.failing_events else [])]
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"oneOf": list(map(ref, chunks))},
    }
    kinds = " or a ".join(chunks)
    return {
        "type": "object",
        "description": f"{'With `stream`: e' if operation.request else 'E'}vents `event: TYPE` and `data: JSON`, each a {kinds}"
        f"{' of this type' if operation.request else ''}.",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["event", "data"],
    }


def _named(status: int, error: str) -> str:
    """The name of an error response."""
    return str(status) if error == "Error" else f"{error}{status}"


def _error(status: int, error: str, id_header: str | None) -> dict[str, Any]:
    headers = {} if status in (408, 431) else {"x-request-id": _header("RequestId")}
    if id_header is not None and headers:
        headers[id_header] = _header("RequestId")
    if status in (429, 503):
        headers["Retry-After"] = _header("RetryAfter")
    if status == 500:
        headers["x-should-retry"] = _header("ShouldRetry")
    if status == 401:
        headers["WWW-Authenticate"] = _header("Authenticate")
    return {
        "description": _ERRORS[status],
        "headers": headers,
        "content": {"application/json": {"schema": ref(error)}},
    }


def _header(name: str) -> Schema:
    return {"$ref": f"#/components/headers/{name}"}


def _path_parameters(path: str) -> Iterator[str]:
    for part in path.split("/"):
        if part.startswith("{"):
            yield part.strip("{}")
