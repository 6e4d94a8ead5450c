"""Every format of tool calls: the calls that models write, however the text is cut, and text that is none."""
# ruff: noqa: E501 -- in a format every line break counts

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.answer.tools.events import CallArguments, CallBegun, Event
from server.answer.tools.parser import MAX_UNCERTAIN
from server.answer.tools.registry import TOOL_PARSERS, tool_notation
from tests.server.answer.tools.formats import ARGUMENTS, FUNCTIONS, GLM_WITHOUT_LINES, NEVER_SHOWN, WRITTEN
from tests.server.answer.tools.test_parsers import merged
from tests.tiers import examples, sweep

CASES = int(os.environ.get("FORMAT_CASES", "60"))
"""Random texts a format; the long form below runs 1,000."""
LONG = 1000
PING = ("ping", {})
WEATHER = ("get_weather", ARGUMENTS)


def read(
    kind: str,
    pieces: Sequence[str],
    functions: dict[str, Any] = FUNCTIONS,
    hidden: frozenset[str] = frozenset(),
) -> list[Event]:
    parser = tool_notation(kind, "[ARGS]").parser(functions, hidden)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert "" not in events, "an empty event says nothing"
    assert parser.num_calls == sum(isinstance(event, CallBegun) for event in events)
    assert parser.num_finished <= parser.num_calls
    return events


def parsed(
    kind: str, *pieces: str, functions: dict[str, Any] = FUNCTIONS, hidden: frozenset[str] = frozenset()
) -> tuple[str, list[tuple[str, str]]]:
    text, calls = "", list[list[str]]()
    for event in read(kind, pieces, functions, hidden):
        match event:
            case str():
                text += event
            case CallBegun(index, _, name):
                assert index == len(calls), "indices are dense"
                calls.append([name, ""])
            case CallArguments(index, piece):
                assert index == len(calls) - 1, "arguments belong to the call that began last"
                calls[index][1] += piece
    return text, [(name, arguments) for name, arguments in calls]


def decoded(
    kind: str, *pieces: str, functions: dict[str, Any] = FUNCTIONS
) -> tuple[str, list[tuple[str, Any]]]:
    text, calls = parsed(kind, *pieces, functions=functions)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def test_every_format_has_its_calls_here() -> None:
    assert set(WRITTEN) == set(TOOL_PARSERS)


@pytest.mark.parametrize("kind", WRITTEN)
def test_calls_as_models_write_them(kind: str) -> None:
    one, two = WRITTEN[kind].one, WRITTEN[kind].two
    assert decoded(kind, one) == ("", [WEATHER])
    assert decoded(kind, two) == ("", [WEATHER, PING])
    assert decoded(kind, *two) == ("", [WEATHER, PING])
    before = "I look.\n\n"
    text, calls = decoded(kind, before + one)
    assert (text.rstrip(), calls) == ("I look.", [WEATHER])
    assert text == "I look." or kind == NEVER_SHOWN, "a text of its own keeps its end"
    assert decoded(kind, *one, "\n") == ("", [WEATHER])


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_is_written_is_read(kind: str) -> None:
    """The generic tool prompt shows calls in this form, and history has them in it."""
    text = tool_notation(kind, "[ARGS]").written([WEATHER, PING])
    assert decoded(kind, text) == ("", [WEATHER, PING])


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_call_that_is_cut_off_is_never_complete(kind: str) -> None:
    """Wherever the answer ends, no text is lost before a call begins, and an unfinished call does not count as finished."""
    one = WRITTEN[kind].one
    for end in range(len(one)):
        parser = tool_notation(kind, "[ARGS]").parser(FUNCTIONS, frozenset())
        events = [*parser.push(one[:end]), *parser.finish()]
        if not parser.num_calls and kind != NEVER_SHOWN:
            assert "".join(map(str, events)) == one[:end]
        arguments = "".join(event.text for event in events if isinstance(event, CallArguments))
        if parser.num_finished and not (kind == NEVER_SHOWN and arguments == "{}"):
            assert json.loads(arguments) == ARGUMENTS, one[:end]


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_string_flows(kind: str) -> None:
    """A long string is handed on while it is written."""
    one = WRITTEN[kind].one
    at = one.index("Tomé")
    parser = tool_notation(kind, "[ARGS]").parser(FUNCTIONS, frozenset())
    parser.push(one[:at])
    assert parser.num_calls == 1
    for word in ("once ", "upon ", "a time "):
        assert parser.push(word) == [CallArguments(0, word)]


@pytest.mark.parametrize("kind", WRITTEN)
def test_special_tokens_are_never_shown(kind: str) -> None:
    hidden = frozenset(tool_notation(kind, "[ARGS]").literals)
    for text in (*WRITTEN[kind].two.splitlines(keepends=True), WRITTEN[kind].two, *hidden):
        shown, _ = parsed(kind, *text, hidden=hidden)
        assert not any(one in shown for one in hidden), text


def soup(kind: str) -> st.SearchStrategy[str]:
    """Texts full of the format, whole and broken."""
    written = WRITTEN[kind]
    words = re.findall(
        r'<[^<>\s]*>?|\w+|"|\s|.', written.two + " ".join(tool_notation(kind, "[ARGS]").literals)
    )
    more = [
        "\\u00",
        "\\",
        "'",
        "ping",
        "get_weather",
        "```json",
        "\n",
        "[",
        "]",
        "(",
        ")",
        "=",
        ",",
        "{",
        "}",
        ":",
        "é",
    ]
    good = [written.one, written.two, written.one[: len(written.one) // 2]]
    return st.lists(st.sampled_from([*sorted({*words, *more}), *good]), max_size=30).map("".join)


def check_cuts(kind: str, data: st.DataObject) -> None:
    text = data.draw(soup(kind))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = merged(read(kind, [text]))
    assert merged(read(kind, pieces)) == whole
    assert merged(read(kind, list(text))) == whole
    if kind != NEVER_SHOWN and not any(one[0] == "call" for one in whole):
        assert "".join(one[1] for one in whole) == text, "nothing is lost when there is no call"


@sweep(every=2)
@pytest.mark.parametrize("kind", WRITTEN)
@settings(max_examples=examples(CASES), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_pieces_do_not_matter(kind: str, data: st.DataObject) -> None:
    check_cuts(kind, data)


@pytest.mark.long(extended=True)
@sweep(every=6)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", WRITTEN)
@settings(max_examples=LONG, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_pieces_do_not_matter_in_a_thousand_texts(kind: str, data: st.DataObject) -> None:
    check_cuts(kind, data)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("aé\"'\\\n{}[],:= 5", max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object", type(None): "null"}


def _typed(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {key: {"type": _TYPES[type(value)]} for key, value in arguments.items()},
    }


@sweep(every=2)
@pytest.mark.parametrize("kind", WRITTEN)
@settings(max_examples=examples(CASES), deadline=None)
@given(
    arguments=st.dictionaries(st.text("abc", min_size=1, max_size=3), VALUES, max_size=4),
    cut=st.integers(0, 200),
)
def test_arguments_of_any_kind_arrive(kind: str, arguments: dict[str, Any], cut: int) -> None:
    if kind == "qwen3_coder" and any(
        isinstance(one, str) and one.strip("\n") != one for one in arguments.values()
    ):
        return  # a line break at the edge of a value belongs to the notation
    text = tool_notation(kind, "[ARGS]").written([("ping", arguments)])
    functions = {"ping": _typed(arguments)}
    assert decoded(kind, text[:cut], text[cut:], functions=functions) == ("", [("ping", arguments)])


def test_glm_without_line_breaks() -> None:
    assert decoded("glm45", GLM_WITHOUT_LINES) == ("", [WEATHER])


def test_llama_4_without_its_tags() -> None:
    """Its templates write lists alone, and the model both."""
    bare = WRITTEN["pythonic"].two
    for text in (bare, f"I look.\n{bare}", f"<|python_start|>{bare}<|python_end|>\n{bare}"):
        assert decoded("llama4_pythonic", *text)[1][:2] == [WEATHER, PING]
    assert parsed("llama4_pythonic", "[other(x=1)]") == ("[other(x=1)]", [])
    assert decoded("llama4_pythonic", "<|python_start|>[other(x=1)]<|python_end|>") == (
        "",
        [("other", {"x": 1})],
    )


def test_qwen3_coder_without_the_outer_tag() -> None:
    one = WRITTEN["qwen3_coder"].one.removeprefix("<tool_call>\n")
    assert decoded("qwen3_coder", "Well.\n" + one) == ("Well.", [WEATHER])
    other = "<function=other>\n</function>"
    assert parsed("qwen3_coder", other) == (other, []), "not on offer"


def test_types_are_those_of_the_schema() -> None:
    text = "<tool_call><function=f>" + "".join(
        f"<parameter={key}>\n{value}\n</parameter>"
        for key, value in {"a": "5", "b": "5", "c": "null", "d": "True", "e": "x", "g": "[1, 2]", "h": "{'a': 1}", "i": "5.0", "u": "7"}.items()
    ) + "</function></tool_call>"  # fmt: skip
    properties = {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": ["string", "null"]},
        "d": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "e": {"type": "integer"},
        "g": {"$ref": "#/$defs/list"},
        "h": {"type": "object"},
        "i": {"type": "number"},
    }
    functions = {"f": {"type": "object", "properties": properties, "$defs": {"list": {"type": "array"}}}}
    assert decoded("qwen3_coder", text, functions=functions) == (
        "",
        [
            (
                "f",
                {
                    "a": "5",
                    "b": 5,
                    "c": None,
                    "d": True,
                    "e": "x",
                    "g": [1, 2],
                    "h": {"a": 1},
                    "i": 5.0,
                    "u": 7,
                },
            )
        ],
    )


@pytest.mark.parametrize("schema", [None, {}, {"properties": 5}, {"properties": {"x": {"$ref": "#"}}}, {"properties": {"x": True}},
    {"properties": {"x": {"type": 5}}}, {"properties": {"x": {"anyOf": []}}}, {"properties": {"x": {"enum": [[]]}}}])  # fmt: skip
def test_no_schema_breaks_a_parser(schema: Any) -> None:
    text = "<tool_call><function=f><parameter=x>\ny\n</parameter></function></tool_call>"
    assert decoded("qwen3_coder", text, functions={"f": schema}) == ("", [("f", {"x": "y"})])


def test_kimis_ids_are_the_models() -> None:
    events = read("kimi_k2", [WRITTEN["kimi_k2"].two])
    assert [event.id for event in events if isinstance(event, CallBegun)] == [
        "functions.get_weather:0",
        "functions.ping:1",
    ]


@pytest.mark.parametrize(
    "text", ["[other(x=1)]", "[1, 2]", "see [get_weather](x)", "a [ping()]", "[ping]", "[ping("]
)
def test_a_list_that_is_no_call(text: str) -> None:
    assert parsed("pythonic", text) == (text, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'''a'b\n'''", "a'b\n"), ('""', ""), ("'\\x41\\u00e9\\U0001F600\\q\\\n'", "Aé😀\\q"), ("(1, 2,)", [1, 2]), ("{1: 'a'}", {"1": "a"}),
        ("1_000", 1000), (".5", 0.5), ("0x10", 16), ("true", True), ("null", None), ("-3", -3), ("[[], {}]", [[], {}]),
    ],
)  # fmt: skip
def test_python_literals(text: str, value: Any) -> None:
    assert decoded("pythonic", *f"[ping(x={text})]") == ("", [("ping", {"x": value})])


@pytest.mark.parametrize(
    "text", ["foo", "1 + 2", "nan", "lambda: 0", "'open", "[1", "{1}", "[" * 100 + "]" * 100, "f'x'"]
)
def test_other_python_ends_the_call(text: str) -> None:
    """No error, and no call that counts as complete."""
    parser = tool_notation("pythonic", "").parser(FUNCTIONS, frozenset())
    assert [*parser.push(f"[ping(x={text})]"), *parser.finish()]
    assert (parser.num_calls, parser.num_finished) == (1, 0)


@sweep(every=4)
@pytest.mark.parametrize("kind", WRITTEN)
def test_long_texts_take_linear_time(kind: str) -> None:
    opening = WRITTEN[kind].one[: 8 if kind == "pythonic" else 20]
    parsed(kind, *["\n" * 500] * 10)
    parsed(kind, *[opening] * 300)
    parsed(kind, *WRITTEN[kind].one.replace("Tomé", "x" * 50_000))
    held = opening + "n" * MAX_UNCERTAIN * 2
    shown = "".join(map(str, read(kind, [held])))
    assert shown == held.removeprefix("<|channel|>") if kind == NEVER_SHOWN else shown == held
