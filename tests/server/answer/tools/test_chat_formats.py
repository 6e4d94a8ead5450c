"""Calls in every format over HTTP: the whole answer, its stream, and a forced call."""

from __future__ import annotations

import json

import pytest

from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from server.answer.tools.registry import TOOL_PARSERS, tool_notation
from tests.server.answer.tools.formats import ARGUMENTS, SCHEMA, WRITTEN
from tests.server.answer.tools.test_chat_tools import asked_both_ways
from tests.server.fakes import House, spells

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "ping"}},
]


def house_of(kind: str) -> House:
    tools, reasoning = tool_notation(kind, "[ARGS]"), REASONING["openai_gptoss"] if kind == "openai" else None
    tokens = {one: 300 + number for number, one in enumerate(tools.literals)}
    return House(notation=ModelNotation(tools, reasoning, tokens, frozenset(tools.literals)))


@pytest.mark.parametrize("kind", TOOL_PARSERS)
@pytest.mark.parametrize("size", [1, 9, 10_000])
async def test_a_stream_says_the_same(kind: str, size: int) -> None:
    house = house_of(kind)
    house.engine.script = spells(WRITTEN[kind].two, size=size)
    choice = await asked_both_ways(house, tools=TOOLS)
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("get_weather", ARGUMENTS),
        ("ping", {}),
    ]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    # Special tokens of the format have to arrive as text.
    assert house.engine.requests[0].shown_special == frozenset(range(300, 300 + len(house.notation.tokens)))


@pytest.mark.parametrize("kind", TOOL_PARSERS)
async def test_one_call_only(kind: str) -> None:
    """The answer ends with its first call, and nothing behind it is shown."""
    house = house_of(kind)
    house.engine.script = spells(WRITTEN[kind].two, size=5)
    choice = await asked_both_ways(house, tools=TOOLS, parallel_tool_calls=False)
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == ARGUMENTS
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


@pytest.mark.parametrize("kind", TOOL_PARSERS)
@pytest.mark.parametrize(
    "asked", ["required", {"type": "function", "function": {"name": "ping"}}], ids=["required", "named"]
)
async def test_a_forced_call_has_a_grammar_in_the_format(kind: str, asked: object) -> None:
    house = house_of(kind)
    house.engine.script = spells(tool_notation(kind, "[ARGS]").written([("ping", {})]))
    choice = await asked_both_ways(house, tools=TOOLS, tool_choice=asked)
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "ping", "arguments": "{}"}
    grammar = house.engine.requests[0].grammar
    assert grammar is not None and "ping" in grammar
    assert ("get_weather" in grammar) == (asked == "required")


async def test_gpt_oss_thinks_answers_and_is_not_searched_without_tools() -> None:
    house = house_of("openai")
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    house.engine.script = spells(text, size=3)
    for body in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = await asked_both_ways(house, **body)
        message = choice["message"]
        assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm.")
        details = choice["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == text.index("<|start|>")


@pytest.mark.parametrize("kind", TOOL_PARSERS)
async def test_garbage_is_text(kind: str) -> None:
    """Never an error for what a model wrote."""
    opening = WRITTEN[kind].one[:25]
    house = house_of(kind)
    house.engine.script = spells(f"{opening}<<< no call {opening} {{[(\n{opening}", size=4)
    choice = await asked_both_ways(house, tools=TOOLS)
    assert choice["finish_reason"] == "stop"
