"""Of an answer's form and of tools with strict schemas, the one is named that is at fault, and no innocent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.text.generation import TextDelta
from tests.server.answer.tools.test_chat_tools import QWEN3, function
from tests.server.fakes import House, error_of, events, steps

BAD = {"type": "object", "properties": {"x": {"not": {}}}}
GOOD = {"type": "object", "properties": {"y": {"type": "integer"}}}


def refuses_not(house: House) -> None:
    """Have the judge refuse what the compiler does."""
    judge = house.judge

    async def check(grammar: str, tenant: str = "") -> str:
        judge.asked.append(grammar)
        if '"not"' in grammar:
            raise InvalidRequest("Unimplemented keys: ['not']", code="invalid_value")
        return grammar

    judge.check = check  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("of_format", "of_tool", "param", "asked"),
    [
        (GOOD, BAD, "tools", 2),
        (BAD, GOOD, "response_format.json_schema.schema", 2),
        (BAD, BAD, "response_format.json_schema.schema", 2),
        (None, BAD, "tools", 1),
    ],
)
async def test_a_schema_that_is_refused_is_named(
    of_format: dict[str, Any] | None, of_tool: dict[str, Any], param: str, asked: int
) -> None:
    house = House(notation=QWEN3)
    refuses_not(house)
    body: dict[str, Any] = {"tools": [function("f", parameters=of_tool, strict=True)]}
    if of_format is not None:
        named = {"name": "answer", "schema": of_format}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    response = await house.chat(**body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param
    assert error_of(response)["message"] == f"Invalid value for '{param}': Unimplemented keys: ['not']."
    assert len(house.judge.asked) == asked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("strict", "of_format", "param"),
    [(True, False, "tools"), (False, True, "response_format"), (True, True, None)],
)
async def test_an_answer_that_cannot_go_on_blames_no_innocent(
    stream: bool, strict: bool, of_format: bool, param: str | None
) -> None:
    house = House(notation=QWEN3)
    drawn_out = InvalidRequest("the grammar cannot be followed any further", "grammar", "invalid_value")
    house.engine.script = steps(TextDelta(0, "a", (5,)), drawn_out)
    body: dict[str, Any] = {"tools": [function("f", strict=strict)], "stream": stream}
    if of_format:
        body["response_format"] = {"type": "json_object"}
    response = await house.chat(**body)
    error = json.loads(events(response)[-2])["error"] if stream else error_of(response)
    assert (error["param"], error["code"]) == (param, "invalid_value")
