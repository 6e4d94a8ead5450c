"""Tool calls in text, in every notation, however the text is cut into pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.answer.tools.events import CallArguments, CallBegun, Event
from server.answer.tools.hermes import HermesParser
from server.answer.tools.llama3_json import Llama3JsonParser
from server.answer.tools.mistral import MistralParser
from server.answer.tools.parser import MAX_UNCERTAIN, ToolParser

NAMES = frozenset({"a", "b", "f"})
PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
}
Calls = list[tuple[str, str]]


def read(kind: str, pieces: Sequence[str], hidden: frozenset[str] = frozenset()) -> list[Event]:
    parser = PARSERS[kind](NAMES, hidden)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert "" not in events, "an empty event says nothing"
    assert parser.num_calls == sum(isinstance(event, CallBegun) for event in events)
    return events


def merged(events: Sequence[Event]) -> list[Any]:
    """Events in order, neighbours of one kind as one; ids are random."""
    out: list[Any] = []
    for event in events:
        match event:
            case str():
                out.append(["text", event])
            case CallBegun(index, _, name):
                out.append(["call", index, name])
            case CallArguments(index, text):
                out.append(["arguments", index, text])
        if len(out) > 1 and out[-1][:-1] == out[-2][:-1] and out[-1][0] != "call":
            last = out.pop()
            out[-1][-1] += last[-1]
    return out


def parse(kind: str, *pieces: str, hidden: frozenset[str] = frozenset()) -> tuple[str, Calls]:
    calls: dict[int, list[str]] = {}
    text = ""
    for event in read(kind, pieces, hidden):
        match event:
            case str():
                text += event
            case CallBegun(index, _, name):
                assert index == len(calls), "indices are dense"
                calls[index] = [name, ""]
            case CallArguments(index, piece):
                assert index == len(calls) - 1, "arguments belong to the call that began last"
                calls[index][1] += piece
    return text, [(name, arguments) for name, arguments in calls.values()]


A = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
B = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
X1: Calls = [("a", '{"x": 1}')]

HERMES: list[tuple[str, str, Calls]] = [
    ("hello", "hello", []),
    ("", "", []),
    ("  \n", "  \n", []),
    (A, "", X1),
    ("Hi.\n" + A + "\n" + B + "\n", "Hi.", [*X1, ("b", "{}")]),
    (A + "\nand\n" + B, "\nand", [*X1, ("b", "{}")]),
    (A + " done", " done", X1),
    ("1 < 2 <tool", "1 < 2 <tool", []),
    ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
    ("a \n <tool_call> {} </tool_call> b", "a \n <tool_call> {} </tool_call> b", []),
    ("<tool_call>[1]</tool_call>!", "<tool_call>[1]</tool_call>!", []),
    ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    ('<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
    ('<tool_call>{"name": "a"}', "", [("a", "{}")]),
    ('<tool_call>{"name": "a", ', '<tool_call>{"name": "a", ', []),
    ('<tool_call>{"name": "a", "arguments": null}</tool_call>', "", [("a", "{}")]),
    ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', '<tool_call>{"name": "a", "arguments": [1]}</tool_call>', []),
    ('<tool_call>{"name": "a", "parameters": {"y": 2}}</tool_call>', "", [("a", '{"y": 2}')]),
    ('<tool_call>{"arguments": {"y": 2}, "name": "a"}</tool_call>', "", [("a", '{"y": 2}')]),
    ('<tool_call>{"id": [1, {"z": "}"}], "name": "a", "arguments": {"y": 2}, "more": -1.5}</tool_call>', "", [("a", '{"y": 2}')]),
    ('<tool_call>{"name": "a", "arguments": "{\\"y\\": \\"\\u00e9\\ud83d\\ude00\\"}"}</tool_call>', "", [("a", '{"y": "é😀"}')]),
    ('<tool_call>{"arguments": " {\\"y\\": 2}", "name": "a"}</tool_call>', "", [("a", '{"y": 2}')]),
    ('<tool_call>{"name": "a", "arguments": ""}</tool_call>', "", [("a", "{}")]),
    ('<tool_call>{"name": "a", "arguments": "x"}</tool_call>', '<tool_call>{"name": "a", "arguments": "x"}</tool_call>', []),
    ('<tool_call>{"name": "é", "arguments": {"z": 1e400}}</tool_call>', "", [("é", '{"z": 1e400}')]),
    ('<tool_call>{"name": "\\u0061", "arguments": {"z": "</tool_call>{"}}</tool_call>', "", [("a", '{"z": "</tool_call>{"}')]),
    ('<tool_call>{"name": "a", "arguments": {"x": 1}</tool_call>' + B, "", [*X1, ("b", "{}")]),  # a brace is missing
    ('<tool_call>{"name": "a", "arguments": {"x": 1}}}</tool_call>!', "}!", X1),  # one too many
    ('<tool_call>{"name": "a", "arguments": {"x": 1}}' + B, "", [*X1, ("b", "{}")]),  # no closing tag
    ('<tool_call>{"name": "a", "arguments": {"x": "cut', "", [("a", '{"x": "cut')]),
    ('<tool_call>{"name": "a", "arguments": {"x": "cut\\', "", [("a", '{"x": "cut\\')]),
    ("<tool_call><tool_call>" + A, "<tool_call><tool_call>", X1),
    ('<tool_call>{"name": <tool_call>' + A, '<tool_call>{"name": <tool_call>', X1),
    ("</tool_call>", "</tool_call>", []),
    ('<tool_call>{"name": "' + "n" * MAX_UNCERTAIN, '<tool_call>{"name": "' + "n" * MAX_UNCERTAIN, []),
]  # fmt: skip
LA = '{"name": "a", "parameters": {"x": 1}}'
LLAMA: list[tuple[str, str, Calls]] = [
    ("hello {", "hello {", []),
    (LA, "", X1),
    (" \n" + LA + "\n", "", X1),
    ("<|python_tag|>" + LA, "", X1),
    (LA + "; " + LA.replace('"a"', '"b"'), "", [*X1, ("b", '{"x": 1}')]),
    (LA + "\n" + LA.replace('"a"', '"b"') + ";", "", [*X1, ("b", '{"x": 1}')]),
    (LA + "<|python_tag|>" + LA, "", [*X1, *X1]),
    (LA + "; so", "; so", X1),
    ("\u00a0" + LA, "\u00a0" + LA, []),
    (LA + "!; \n" + LA, "!;", [*X1, *X1]),
    ("I look.\n\n" + LA, "I look.", X1),
    ("I look. " + LA, "I look. " + LA, []),
    (LA.replace('"a"', '"z"'), LA.replace('"a"', '"z"'), []),  # not on offer
    ("<|python_tag|>" + LA.replace('"a"', '"z"'), "", [("z", '{"x": 1}')]),
    ('{"type": "function", "name": "a", "parameters": {"x": 1}}', "", X1),
    ('{"name": "Ada", "age": 36}\n{"x"', '{"name": "Ada", "age": 36}\n{"x"', []),
    ("<|python_tag|>brave.call()", "<|python_tag|>brave.call()", []),
    ("a; b;", "a; b;", []),
    ('{"a": {"b": 1}}', '{"a": {"b": 1}}', []),
]
MISTRAL: list[tuple[str, str, Calls]] = [
    ("hello", "hello", []),
    ('[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}]', "", X1),
    ('[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}, {"arguments": {}, "name": "b", "id": "x"}]', "", [*X1, ("b", "{}")]),
    ('Well. [TOOL_CALLS] {"name": "a", "arguments": {"x": 1}}', "Well.", X1),
    ('[TOOL_CALLS]a[ARGS]{"x": 1}', "", X1),
    ('[TOOL_CALLS]a{"x": 1}', "", X1),
    ('[TOOL_CALLS]a[CALL_ID]123456789[ARGS]{"x": 1}[TOOL_CALLS]b[ARGS]{}', "", [*X1, ("b", "{}")]),
    ("[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
    ("[TOOL_CALLS]a[ARGS]x", "[TOOL_CALLS]a[ARGS]x", []),
    ("[TOOL_CALLS]a b{}", "[TOOL_CALLS]a b{}", []),
    ("[TOOL_CALLS]a[OTHER]{}", "[TOOL_CALLS]a[OTHER]{}", []),
    ("[TOOL_CALLS]", "[TOOL_CALLS]", []),
    ('[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}, 5]', ", 5]", X1),
    ('[TOOL_CALLS][{"name": "a", "arguments": {"x": 1}}', "", X1),
    ("list [1], [TOOL", "list [1], [TOOL", []),
]  # fmt: skip
CASES = [
    (kind, *case)
    for kind, cases in (("hermes", HERMES), ("llama3_json", LLAMA), ("mistral", MISTRAL))
    for case in cases
]


@pytest.mark.parametrize(("kind", "text", "shown", "calls"), CASES)
def test_what_is_a_call_and_what_is_text(kind: str, text: str, shown: str, calls: Calls) -> None:
    assert parse(kind, text) == (shown, calls)
    whole = merged(read(kind, [text]))
    for size in (1, 2, 3, 7):
        assert merged(read(kind, [text[i : i + size] for i in range(0, len(text), size)])) == whole


def soup(kind: str) -> st.SearchStrategy[str]:
    """Texts full of notation, whole and broken."""
    words = re.findall(
        r'<\W?\w+>|\w+|"|\s|.', " ".join(case[1] for case in CASES if case[0] == kind and len(case[1]) < 999)
    )
    more = [
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "\\u00",
        "\\",
        "\ud83d".encode("utf-8", "replace").decode(),
    ]
    good = [text for k, text, _, calls in CASES if k == kind and calls]
    return st.lists(st.sampled_from([*sorted({*words, *more}), *good]), max_size=30).map("".join)


@pytest.mark.parametrize("kind", PARSERS)
@given(data=st.data())
def test_pieces_do_not_matter(kind: str, data: st.DataObject) -> None:
    text = data.draw(soup(kind))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert merged(read(kind, pieces)) == merged(read(kind, [text])) == merged(read(kind, list(text)))


@pytest.mark.parametrize("kind", PARSERS)
@given(data=st.data())
def test_nothing_is_lost_when_there_is_no_call(kind: str, data: st.DataObject) -> None:
    text = data.draw(soup(kind))
    shown, calls = parse(kind, *text)
    if not calls:
        assert shown == text
    for _, arguments in calls:
        assert arguments.startswith("{")


@pytest.mark.parametrize("kind", PARSERS)
@given(
    arguments=st.dictionaries(
        st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none() | st.lists(st.booleans(), max_size=2), max_size=4
    ),
    data=st.data(),
)  # fmt: skip
def test_arguments_arrive_as_written(kind: str, arguments: dict[str, Any], data: st.DataObject) -> None:
    written = json.dumps(
        arguments, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1]))
    )
    text = {
        "hermes": f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>',
        "llama3_json": f'{{"name": "f", "parameters": {written}}}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{written}",
    }[kind]
    cut = data.draw(st.integers(0, len(text)))
    assert parse(kind, text[:cut], text[cut:]) == ("", [("f", written)])
    quoted = f'<tool_call>{{"name": "f", "arguments": {json.dumps(written)}}}</tool_call>'
    assert parse("hermes", *quoted) == ("", [("f", written)])


def test_text_is_not_held_longer_than_needed() -> None:
    parser = HermesParser()
    assert parser.push("Hello") == ["Hello"]
    assert parser.push(" <") == []
    assert parser.push("b> you") == [" <b> you"]
    assert parser.push("<tool_call>{") == []


def test_arguments_flow() -> None:
    """Every piece of the arguments is handed on in the push that brought it."""
    parser = HermesParser()
    assert parser.push('<tool_call>\n{"name": "f", "arguments": ') == []
    begun, first = parser.push('{"text": "on')
    assert isinstance(begun, CallBegun)
    assert (begun.index, begun.name, begun.id[:5]) == (0, "f", "call_")
    assert first == CallArguments(0, '{"text": "on')
    for word in ("ce upon", " a time", ", a {[tag</tool_call>"):
        assert parser.push(word) == [CallArguments(0, word)]
    assert parser.num_finished == 0
    assert parser.push('"}') == [CallArguments(0, '"}')]
    assert parser.push("}\n") == []
    assert parser.num_finished == 1


@pytest.mark.parametrize(("kind", "text"), [(case[0], case[1]) for case in CASES])
def test_special_tokens_are_never_shown(kind: str, text: str) -> None:
    hidden = frozenset(
        {"<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
    )
    if len(text) > MAX_UNCERTAIN:
        return
    shown, calls = parse(kind, *text, hidden=hidden)
    assert calls == parse(kind, text)[1]
    assert not any(one in shown for one in hidden)


def test_mistral_ids_are_what_its_templates_want() -> None:
    events = read("mistral", ['[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]'])
    ids = [event.id for event in events if isinstance(event, CallBegun)]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in ids)


def test_long_blanks_and_openings_take_linear_time() -> None:
    for kind in PARSERS:
        parse(kind, *["\n" * 500] * 40)
        parse(kind, *['<tool_call>{"name": "a'] * 2000)
        parse(kind, *['\n{"name": '] * 2000)
