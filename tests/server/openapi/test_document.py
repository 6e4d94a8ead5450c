"""The description of the API is complete, and says what the server does: real answers are checked against it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import structlog
from jsonschema import Draft202012Validator

from engine.errors import ExecutorFailed, InvalidRequest, Overloaded
from engine.request import Stage
from engine.text.generation import TextDelta, TokenText
from executors.contract import SampledToken
from server.apis.description import ANSWERS, OPERATIONS
from server.openapi.operation import Operation
from server.schemas.base import parse
from tests.server.api_schema import check, check_answer, described, validator
from tests.server.apis.test_security import filled, routes
from tests.server.fakes import AS_JSON, House, says, steps
from tools import api_docs

POSTS = [operation for operation in OPERATIONS if operation.request is not None]
HI = {"messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def token(text: str, logprob: float | None = -0.5) -> TokenText:
    sampled = SampledToken(7, logprob, ((7, -0.5), (8, float("-inf"))), 1)
    return TokenText(
        sampled, text, text.encode(), 0, ((text, text.encode(), -0.5), ("x", b"x", float("-inf")))
    )


def test_the_document_is_json_schema_throughout() -> None:
    for name, schema in described()["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert validator(name) is not None
    text = str(described())
    assert "$defs" not in text
    assert "'ge':" not in text and "'le':" not in text


def test_every_reference_leads_somewhere() -> None:
    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for one in node.values():
                yield from walk(one)
        elif isinstance(node, list):
            for one in node:
                yield from walk(one)

    used = set(walk(described()))
    for reference in used:
        node: Any = described()
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    unused = {f"#/components/schemas/{name}" for name in described()["components"]["schemas"]} - used
    assert unused <= {f"#/components/schemas/{operation.chunk}" for operation in POSTS}


def test_every_route_is_described_and_every_description_has_its_route(house: House) -> None:
    found = {(method.lower(), path.replace(":path}", "}")) for method, path in routes(house)}
    described_ones = {(one.method, one.path) for one in OPERATIONS}
    assert described_ones | {("head", path) for method, path in described_ones if method == "get"} == found
    ids = [one.id for one in OPERATIONS]
    assert len(set(ids)) == len(ids)


async def test_the_server_gives_it(house: House) -> None:
    response = await house.get("/openapi.json")
    assert response.json() == described()


def test_every_parameter_is_explained() -> None:
    for name, schema in described()["components"]["schemas"].items():
        for field, about in schema["properties"].items() if name not in ANSWERS else ():
            assert about["description"] and about["x-origin"], f"{name}.{field}"


def test_the_committed_files_are_current() -> None:
    assert api_docs.PAGE.read_text("utf-8") == api_docs.page()


# -- examples and limits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
async def test_examples_fit_their_schema_and_are_answered(operation: Operation) -> None:
    assert operation.request is not None
    for example in operation.examples.values():
        house = House(names=("cohort-tiny",))
        check(operation.request.__name__, example)
        response = await house.post(filled(operation.path, "cohort-tiny"), example)
        if operation.path == "/models/unload":  # this server has one model, which stays
            assert response.status_code == 400
            continue
        assert response.status_code == 200, response.text
        assert "x-cohort-ignored" not in response.headers
        check_answer(response)


def edges(schema: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Values on both sides of each limit of a field, and whether the schema takes them."""
    for member in schema.get("anyOf", [schema]):
        match member.get("type"):
            case "integer" | "number":
                for name, step in (("minimum", -1), ("maximum", 1)):
                    if name in member:
                        yield member[name], True
                        yield member[name] + step, False
                if "exclusiveMaximum" in member:
                    yield member["exclusiveMaximum"] - 1, True
                    yield member["exclusiveMaximum"], False
            case "string":
                if "maxLength" in member:
                    yield "x" * member["maxLength"], True
                    yield "x" * (member["maxLength"] + 1), False
                if member.get("minLength") == 1:
                    yield "", False
            case "array" if member["items"].get("type") in ("string", "integer"):
                one: Any = "x" if member["items"]["type"] == "string" else 1
                if member.get("maxItems", 10**9) < 10_000:
                    yield [one] * member["maxItems"], True
                    yield [one] * (member["maxItems"] + 1), False
                if "minItems" in member:
                    yield [], False
            case "boolean":
                yield 1, False
                yield "true", False


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
def test_limits_are_those_that_are_enforced(operation: Operation) -> None:
    assert operation.request is not None
    name = operation.request.__name__
    base = next(iter(operation.examples.values()))
    checked = 0
    for field, schema in described()["components"]["schemas"][name]["properties"].items():
        for value, fits in edges(schema):
            body = {**base, field: value}
            assert validator(name).is_valid(body) == fits, (field, value)
            try:
                parsed: Any = parse(operation.request, json.dumps(body).encode())
                if field == "truncate_prompt_tokens":
                    parsed.check()
                taken = True
            except InvalidRequest as error:
                assert (error.param or "").split(".")[0] == field
                taken = False
            assert taken == fits, (field, value)
            checked += 1
    assert checked or name in ("DetokenizeRequest", "UnloadAdapterRequest")


# -- answers -----------------------------------------------------------------------------------------------------------

CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "return_token_ids": True, "user": "u"},
    {"tools": [TOOL]},
    {"stop": ["x"], "seed": 5, "max_tokens": 5},
    {"model": "org/fake-1", "temperature": 0},
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", CHATS, ids=str)
async def test_answers_of_chats(house: House, body: dict[str, Any], stream: bool) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    house.engine.script = says("Hel", "lo", stop_reason="x" if "stop" in body else None)
    response = await house.post("/v1/chat/completions", {**HI, **body, **more})
    assert response.status_code == 200
    check_answer(response)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_answers_of_completions(house: House, stream: bool, logprobs: bool) -> None:
    tokens = (token("a"),) if logprobs else None
    house.engine.script = steps(
        TextDelta(0, "a", (7,), logprobs=tokens), TextDelta(0, "", (8,), finish_reason="length")
    )
    body: dict[str, Any] = {"prompt": "Hi", "stream": stream, "return_token_ids": True}
    response = await house.post("/v1/completions", body | ({"logprobs": 2} if logprobs else {}))
    assert response.status_code == 200
    check_answer(response)


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_with_logprobs_and_calls(house: House, stream: bool) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    house.engine.script = steps(
        TextDelta(0, "Well. ", (7,), logprobs=(token("Well. "),)),
        TextDelta(0, call, (7,), logprobs=(token(call),)),
        TextDelta(0, "", (8,), finish_reason="stop", logprobs=()),
    )
    body = {**HI, "tools": [TOOL], "logprobs": True, "top_logprobs": 2, "stream": stream}
    response = await house.post("/v1/chat/completions", body)
    assert response.status_code == 200
    check_answer(response)


GETS = [
    "/live",
    "/ready",
    "/health",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/models/org/fake-1",
    "/openapi.json",
]


@pytest.mark.parametrize("path", GETS)
async def test_answers_of_the_rest(house: House, path: str) -> None:
    response = await house.get(path)
    assert response.status_code == 200
    check_answer(response)


async def test_answers_while_not_ready(house: House) -> None:
    for stage in Stage:
        house.core.stage = stage
        for path in ("/ready", "/health"):
            check_answer(await house.get(path))
    house.core.stage = Stage.READY
    house.state.model = None
    for operation in POSTS:
        response = await house.post(
            filled(operation.path), next(iter(operation.examples.values())) | {"model": "fake"}
        )
        assert response.status_code == 503
        check_answer(response)
    for path in ("/v1/executors", "/tokenizer_info"):
        response = await house.get(path)
        assert response.status_code == 503
        check_answer(response)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(Overloaded("full", 3), 429), (ExecutorFailed("gone"), 500), (RuntimeError("odd"), 500)],
)
async def test_answers_of_refusals(house: House, refusal: Exception, status: int) -> None:
    house.engine.refusal = refusal
    with structlog.testing.capture_logs():
        await check_refusals(house, status)


async def check_refusals(house: House, status: int) -> None:
    bodies = {
        "/v1/chat/completions": HI,
        "/v1/completions": {"prompt": "Hi"},
        "/v1/embeddings": {"input": "Hi"},
    }
    for path, body in bodies.items():
        for more in ({}, {"stream": True}) if "embed" not in path else ({},):
            response = await house.post(path, {**body, **more})
            assert response.status_code == status
            check_answer(response)


async def test_answers_to_mistakes() -> None:
    house = House(options={"api_keys": ["key"], "admin_key": "key", "max_body_bytes": 5000})
    answers: list[tuple[int, httpx.Response]] = []
    async with house.client(headers={"Authorization": "Bearer key"}) as client:
        for operation in POSTS:
            example = next(iter(operation.examples.values()))
            wrong, unknown = {"n": []}, {**example, "model": "nobody"}
            for status, body in ((400, wrong), *(() if "lora_name" in example else ((404, unknown),))):
                answers.append((status, await client.post(operation.path, json=body)))
            page = {"Origin": "http://elsewhere"}  # on Ollama's paths only pages must name the type
            answers.append((415, await client.post(operation.path, content=b"{}", headers=page)))
            answers.append((413, await client.post(operation.path, content=b" " * 6000, headers=AS_JSON)))
            big = {"x-big": "x" * 70_000}
            answers.append((431, await client.post(operation.path, json=example, headers=big)))
        answers.append((404, await client.get("/v1/models/nobody")))
    for operation in OPERATIONS:
        if not operation.keyless and operation.path != "/metrics":
            async with house.client() as client:
                path = operation.path.replace("{name}", "fake")
                answers.append((401, await client.request(operation.method.upper(), path)))
    for status, response in answers:
        assert response.status_code == status, (response.request.url, response.text)
        check_answer(response)


async def test_an_error_in_a_stream(house: House) -> None:
    house.engine.script = steps(TextDelta(0, "a", (7,)), ExecutorFailed("gone"))
    for path, body in (("/v1/chat/completions", HI), ("/v1/completions", {"prompt": "Hi"})):
        response = await house.post(path, {**body, "stream": True})
        assert '"server_error"' in response.text
        check_answer(response)
