"""Tool calls in text, however it is cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.chat.tool_parser import Call, Event, ToolParser


def parse(*pieces: str) -> tuple[str, list[tuple[str, str]], list[Event]]:
    parser = ToolParser()
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    text = "".join(event for event in events if isinstance(event, str))
    calls = [event for event in events if isinstance(event, Call)]
    assert [call.index for call in calls] == list(range(parser.num_calls))
    assert all(events), "an empty event says nothing"
    return text, [(call.name, call.arguments) for call in calls], events


A = '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
B = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "shown", "calls"),
    [
        ("hello", "hello", []),
        ("", "", []),
        ("  \n", "  \n", []),
        (A, "", [("a", '{"x": 1}')]),
        ("Hi.\n" + A + "\n" + B + "\n", "Hi.", [("a", '{"x": 1}'), ("b", "{}")]),
        (A + " done", " done", [("a", '{"x": 1}')]),
        ("1 < 2 <tool", "1 < 2 <tool", []),
        ("<tool_call>no json</tool_call>", "<tool_call>no json</tool_call>", []),
        ("<tool_call>[1]</tool_call>!", "<tool_call>[1]</tool_call>!", []),
        ('<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
        ('<tool_call>{"name": "a"}', "", [("a", "{}")]),
        ('<tool_call>{"name": "a", ', '<tool_call>{"name": "a", ', []),
        ('<tool_call>{"name": "a", "parameters": {"y": 2}}</tool_call>', "", [("a", '{"y": 2}')]),
        ('<tool_call>{"name": "a", "arguments": "{\\"y\\": 2}"}</tool_call>', "", [("a", '{"y": 2}')]),
        ('<tool_call>{"name": "é", "arguments": {"z": 1e400}}</tool_call>', "", [("é", '{"z": 1e400}')]),
    ],
)
def test_pieces_do_not_matter(text: str, shown: str, calls: list[tuple[str, str]]) -> None:
    assert parse(text)[:2] == (shown, calls)
    for size in (1, 2, 7):
        assert parse(*(text[i : i + size] for i in range(0, len(text), size)))[:2] == (shown, calls)


def test_text_is_not_held_longer_than_needed() -> None:
    parser = ToolParser()
    assert parser.push("Hello") == ["Hello"]
    assert parser.push(" <") == []
    assert parser.push("b> you") == [" <b> you"]
    assert parser.push("<tool_call>{") == []


@given(st.lists(st.text(alphabet='<>tol_ca/{}"nme:1 \n', max_size=12), max_size=6))
def test_nothing_is_lost_when_there_is_no_call(pieces: list[str]) -> None:
    text, calls, _ = parse(*pieces)
    if not calls:
        assert text == "".join(pieces) or "<tool_call>" in "".join(pieces)


@given(
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=4),
    st.data(),
)
def test_arguments_arrive_as_written(arguments: dict[str, int | str | None], data: st.DataObject) -> None:
    written = json.dumps(arguments, ensure_ascii=data.draw(st.booleans()))
    text = f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'
    cut = data.draw(st.integers(0, len(text)))
    if "</tool_call>" not in written:
        assert parse(text[:cut], text[cut:])[1] == [("f", written)]
