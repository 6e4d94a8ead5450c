"""A forced call beside a format of the text, in every API: the grammar of the calls alone, and a header that lists the format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.answer.notation import ModelNotation
from server.answer.tools.llama3_json import Llama3Json
from tests.server.fakes import House, error_of, events, spells

HI = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
FUNCTION = {"name": "f", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "o", "strict": True, "schema": SCHEMA}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
OUTPUTS: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"regex": "a+"},
    {"choice": ["a", "b"]},
    {"grammar": 'start: "a"'},
    {"json_object": True},
]
FORMS: list[dict[str, Any]] = [
    {"response_format": FORMAT},
    {"response_format": {"type": "json_object"}},
    *({"structured_outputs": one} for one in OUTPUTS),
]
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_SIGNS = {CHAT: '"tool_calls":[{', RESPONSES: '"type":"function_call"', MESSAGES: '"type":"tool_use"'}
"""What shows that an answer has a call."""


def ignored(response: Any) -> list[str]:
    return [name for name in response.headers.get("x-cohort-ignored", "").split(", ") if name]


def grammar_of(house: House) -> str:
    text = house.engine.requests[-1].grammar
    assert text is not None
    return text


async def both_ways(house: House, path: str, body: dict[str, Any]) -> tuple[list[str], str]:
    """The header and the grammar of a forced call, whole and streamed."""
    house.engine.script = spells(CALL)
    told = []
    for stream in (False, True):
        response = await house.post(path, {"model": "fake", **body, "stream": stream})
        assert response.status_code == 200, response.text
        assert _SIGNS[path] in response.text and "<tool_call>" not in response.text
        told.append((ignored(response), grammar_of(house)))
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize("choice", ["required", NAMED, ALLOWED])
@pytest.mark.parametrize("form", FORMS)
async def test_chat(house: House, choice: Any, form: dict[str, Any]) -> None:
    body = {"messages": HI, "tools": [TOOL], "tool_choice": choice}
    alone = await both_ways(house, CHAT, body)
    assert alone[0] == []
    assert await both_ways(house, CHAT, {**body, **form}) == (list(form), alone[1])
    assert await both_ways(house, CHAT, {**body, "response_format": {"type": "text"}}) == alone


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    ],
)
async def test_responses(house: House, choice: Any) -> None:
    body = {"input": "Hi", "tools": [{"type": "function", **FUNCTION}], "tool_choice": choice}
    _, alone = await both_ways(house, RESPONSES, body)
    for form in ({"type": "json_schema", "name": "o", "schema": SCHEMA}, {"type": "json_object"}):
        told = await both_ways(house, RESPONSES, {**body, "text": {"format": form}})
        assert told == (["text.format"], alone)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "f"}])
async def test_messages(house: House, choice: Any) -> None:
    tools = [{"name": "f", "input_schema": PARAMETERS}]
    body = {"messages": HI, "max_tokens": 99, "tools": tools, "tool_choice": choice}
    _, alone = await both_ways(house, MESSAGES, body)
    form = {"type": "json_schema", "schema": SCHEMA}
    told = await both_ways(house, MESSAGES, {**body, "output_config": {"format": form}})
    assert told == (["output_config.format"], alone)
    assert await both_ways(house, MESSAGES, {**body, "output_format": form}) == (["output_format"], alone)


async def test_the_reasons_of_the_end(house: House) -> None:
    house.engine.script = spells(CALL)
    body = {"tools": [TOOL], "response_format": FORMAT, "n": 2, "parallel_tool_calls": False}
    for choice, reason in (("required", "tool_calls"), (NAMED, "stop")):
        for one in (await house.chat(**body, tool_choice=choice)).json()["choices"]:
            assert [call["function"] for call in one["message"]["tool_calls"]] == [
                {"name": "f", "arguments": '{"x": 1}'}
            ]
            assert (one["message"]["content"], one["finish_reason"]) == (None, reason)
        chunks = events(await house.chat(**body, tool_choice=choice, stream=True))[:-1]
        ends = [json.loads(one)["choices"][0]["finish_reason"] for one in chunks]
        assert [one for one in ends if one] == [reason] * 2


async def test_a_strict_function_is_forced_as_it_is_without_a_format(house: House) -> None:
    strict = {"type": "function", "function": {**FUNCTION, "strict": True}}
    await house.chat(tools=[strict], tool_choice="required")
    alone = grammar_of(house)
    assert ignored(await house.chat(tools=[strict], tool_choice="required", response_format=FORMAT)) == [
        "response_format"
    ]
    assert grammar_of(house) == alone


async def test_a_model_whose_calls_are_json_text() -> None:
    for notation in (
        ModelNotation(tools=None, unknown=True),
        ModelNotation(Llama3Json("llama3_json")),
    ):
        house = House(notation=notation)
        house.engine.script = spells('{"name": "f", "parameters": {"x": 1}}')
        response = await house.chat(tools=[TOOL], tool_choice="required", response_format=FORMAT)
        [call] = response.json()["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
        assert '"ok"' not in grammar_of(house) and ignored(response) == ["response_format"]


async def test_a_format_holds_where_the_answer_may_be_text(house: House) -> None:
    """With `auto` the model writes calls or the format, with `none` the format alone."""
    for more, parts in (
        ({"tool_choice": "auto"}, {"start", "answer", "f0"}),
        ({}, {"start", "answer", "f0"}),
        ({"tool_choice": "none"}, {"start"}),
    ):
        response = await house.chat(tools=[TOOL], response_format=FORMAT, **more)
        assert response.status_code == 200 and ignored(response) == []
        grammars = {one.pop("name", "start"): one for one in json.loads(grammar_of(house))["grammars"]}
        assert set(grammars) == parts
        assert '"ok"' in grammar_of(house)
    alone = grammar_of(house)
    await house.chat(response_format=FORMAT)
    assert grammar_of(house) == alone


async def test_a_format_without_effect_is_checked_all_the_same(house: House) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "o"}}
    refused = error_of(await house.chat(tools=[TOOL], tool_choice="required", response_format=wrong))
    assert refused["param"] == "response_format.json_schema.schema"
    both = await house.chat(
        tools=[TOOL], tool_choice="required", response_format=FORMAT, structured_outputs=OUTPUTS[0]
    )
    assert error_of(both)["param"] == "structured_outputs"
