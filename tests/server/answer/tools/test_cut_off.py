"""Calls that a limit or a stop string cuts off: what is held back and may still become notation is never shown."""

from __future__ import annotations

from typing import Any

import pytest

from server.answer.tools.events import CallArguments, CallBegun, Event
from server.answer.tools.parser import NoCalls
from server.answer.tools.registry import tool_notation
from tests.server.answer.tools.formats import FUNCTIONS, NEVER_SHOWN, WRITTEN
from tests.server.answer.tools.test_parsers import merged

BEFORE = "Let me see.\n"
Calls = list[tuple[str, str]]


def events_of(kind: str, pieces: str | list[str], cut_before: str | None = "") -> list[Event]:
    """A string is read by characters, a list as it is."""
    parser = tool_notation(kind, "[ARGS]").parser(FUNCTIONS, frozenset())
    return [event for piece in pieces for event in parser.push(piece)] + parser.finish(cut_before)


def parts(events: list[Event]) -> tuple[str, Calls]:
    text, calls = "", list[list[str]]()
    for event in events:
        match event:
            case str():
                text += event
            case CallBegun(_, _, name):
                calls.append([name, ""])
            case CallArguments(index, piece):
                calls[index][1] += piece
    return text, [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize("kind", WRITTEN)
def test_no_beginning_of_a_call_is_shown(kind: str) -> None:
    """Whatever the position: the text before the calls stays, and calls have their arguments as far as they have come."""
    text = BEFORE + WRITTEN[kind].two
    _, complete = parts(events_of(kind, [text], None))
    for end in range(len(text) + 1):
        events = events_of(kind, [text[:end]])
        shown, calls = parts(events)
        before = BEFORE if kind == NEVER_SHOWN else BEFORE.rstrip()
        assert shown == text[:end] if end <= len(BEFORE) else shown == before, (end, shown)
        for (name, arguments), (whole_name, whole) in zip(calls, complete, strict=False):
            assert name == whole_name and whole.startswith(arguments), (end, arguments)
        if end % 5 == 0:
            assert merged(events_of(kind, text[:end])) == merged(events), end


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_the_model_itself_ends_is_text(kind: str) -> None:
    """Incomplete notation stays text then: a client sees what went wrong."""
    text = BEFORE + WRITTEN[kind].one
    for end in range(len(BEFORE), len(text), 3):
        shown, calls = parts(events_of(kind, [text[:end]], None))
        assert calls or shown == text[:end] or kind == NEVER_SHOWN


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize(
    "text",
    [
        "Well",
        "Well. ",
        "1 > 0 & 2",
        '"quoted", {so}',
        "a\n- [x] b\n- c",
        'As JSON:\n{"users": [{"a": 1',
        "f(x)",
    ],
)
def test_ordinary_text_is_shown_to_its_end(kind: str, text: str) -> None:
    assert parts(events_of(kind, text)) == (text, [])


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hermes", "<tool_call> is a tag of"),
        ("hermes", '<tool_call>{"name": 5'),
        ("hermes", '<tool_call>{"so\nI'),
        ("llama3_json", '{"users": [{"name": "get_w'),
        ("llama3_json", '{"name": "get_weather", "age'),
        ("llama3_json", '{"name": "Ad'),
        ("llama3_json", '{"us'),
        ("llama3_json", '{"type": "object", "par'),
        ("llama3_json", 'So:\n{"name": "get_weather", "town": {"parameters'),
        ("mistral", "[TOOL_CALLS] are what"),
        ("mistral", "[TOOL_CALLS]a[CALL_ID]1 2"),
        ("qwen3_coder", "<tool_call>\n<function=is not"),
        ("qwen3_coder", "<tool_call>\n<param"),
        ("seed_oss", "<seed:tool_call>so"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="is a'),
        ("glm45", "<tool_call> opens a"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f is"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f is"),
        ("kimi_k2", "<|tool_call_begin|>functions.f of"),
        ("pythonic", "[see the"),
        ("pythonic", "[pinged"),
        ("pythonic", "[1"),
        ("lfm2", "<|tool_call_start|>[f of"),
        ("olmo3", "<function_calls>f of"),
        ("gemma4", "<|tool_call>call:f of"),
        ("openai", "to=x is"),
        ("hermes", "<p>a</p"),
        ("hermes", "<p>a</"),
        ("olmo3", "<p>a</"),
    ],
)
def test_what_can_be_no_call_is_text(kind: str, text: str) -> None:
    assert parts(events_of(kind, text)) == (text, [])


@pytest.mark.parametrize(
    ("kind", "text", "cut_before", "shown"),
    [
        ("hermes", "a <", "\n", "a <"),
        ("hermes", "a <", "", "a"),
        ("hermes", "a <tool_", "call", "a"),
        ("hermes", "a <", "tool_call>{", "a"),
        ("hermes", "a <tool_", "box", "a <tool_"),
        ("hermes", "a </", "tool_call>", "a </"),
        ("hermes", "<tool_call>", "\n", ""),
        ("hermes", '<tool_call>{"name": ', '"get_weather"', ""),
        ("llama3_json", '{"us', "ers", '{"us'),
        ("llama3_json", '{"na', "ture", '{"na'),
        ("llama3_json", '{"na', "me", ""),
        ("pythonic", "[", "ping", ""),
    ],
)
def test_a_stop_string_shows_what_would_have_come(kind: str, text: str, cut_before: str, shown: str) -> None:
    assert parts(events_of(kind, text, cut_before)) == (shown, [])


def test_complete_arguments_count_without_the_end_of_the_call() -> None:
    for rest, finished in (('{"x": 1', 0), ('{"x": 1}', 1), ('{"x": 1}}', 1), ('{"x": 1}}\n</tool', 1)):
        parser = tool_notation("hermes", "").parser(FUNCTIONS, frozenset())
        parser.push('<tool_call>{"name": "ping", "arguments": ' + rest)
        parser.finish("")
        assert (parser.num_calls, parser.num_finished) == (1, finished), rest


def test_without_tools_nothing_is_dropped() -> None:
    parser = NoCalls(hidden=frozenset({"[THINK]"}))
    pieces: list[Any] = [*parser.push("[THINK]a [THI"), *parser.finish("")]
    assert "".join(pieces) == "a [THI"
