"""vLLM's older names of constraints, `guided_*`: the same grammars and refusals as `structured_outputs`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.text.generation import TextDelta
from tests.server.fakes import House, error_of, steps

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
GIVEN: dict[str, Any] = {
    "json": SCHEMA,
    "regex": "a+",
    "choice": ["yes", "no"],
    "grammar": 'root ::= "a" | "b"',
}
BOTH = pytest.mark.parametrize("route", ["chat", "complete"])


async def grammar_of(house: House, route: str, **body: Any) -> str:
    house.engine.requests.clear()
    response = await getattr(house, route)(**body)
    assert response.status_code == 200, response.text
    assert "x-cohort-ignored" not in response.headers
    text = house.asked().grammar
    assert text is not None
    return text


@BOTH
@pytest.mark.parametrize("kind", GIVEN)
async def test_same_grammar_as_structured_outputs(house: House, route: str, kind: str) -> None:
    older = await grammar_of(house, route, **{f"guided_{kind}": GIVEN[kind]})
    newer = await grammar_of(house, route, structured_outputs={kind: GIVEN[kind]})
    assert older == newer


@BOTH
async def test_schema_as_text_and_whitespace(house: House, route: str) -> None:
    older = await grammar_of(
        house,
        route,
        guided_json=json.dumps(SCHEMA),
        guided_whitespace_pattern=r"\n?",
        response_format={"type": "text"},
    )
    newer = await grammar_of(house, route, structured_outputs={"json": SCHEMA, "whitespace_pattern": r"\n?"})
    assert older == newer
    assert older != await grammar_of(house, route, guided_json=SCHEMA)


@BOTH
@pytest.mark.parametrize("name", ["guided_json", "guided_regex"])
async def test_backend_has_no_effect(house: House, route: str, name: str) -> None:
    response = await getattr(house, route)(
        **{name: GIVEN[name.removeprefix("guided_")]}, guided_decoding_backend="outlines"
    )
    assert (response.status_code, response.headers["x-cohort-ignored"]) == (200, "guided_decoding_backend")
    assert house.asked().grammar is not None


@BOTH
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "a\\"}, "guided_regex"),
        ({"guided_regex": ["a"]}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": ["x" * 70_000]}, "guided_choice"),
        ({"guided_grammar": ""}, "guided_grammar"),
        ({"guided_grammar": 'start[temperature=1]: "a"'}, "guided_grammar"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_json"),
        ({"guided_choice": ["a"], "guided_grammar": 'start: "a"'}, "guided_choice"),
        ({"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}}, "guided_json"),
        ({"guided_regex": "a", "response_format": FORMAT}, "guided_regex"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": "x"}, "guided_whitespace_pattern"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"response_format": FORMAT, "guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"guided_json_object": True}, "guided_json_object"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_refusals_name_the_field(house: House, route: str, body: dict[str, Any], param: str) -> None:
    response = await getattr(house, route)(**body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param, error
    assert f"'{param}'" in error["message"]
    assert "structured_outputs.whitespace" not in error["message"]
    assert not house.judge.asked


@BOTH
async def test_compiler_and_engine_blame_the_field(house: House, route: str) -> None:
    failure = InvalidRequest("the grammar cannot be followed any further", "grammar", "invalid_value")
    house.engine.script = steps(TextDelta(0, "{", (5,)), failure)
    response = await getattr(house, route)(guided_regex="a")
    assert (response.status_code, error_of(response)["param"]) == (400, "guided_regex")
    house.core.executor.grammars = False
    response = await getattr(house, route)(guided_choice=["a"])
    assert (response.status_code, error_of(response)["param"]) == (400, "guided_choice")
