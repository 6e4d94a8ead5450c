"""Reasoning told apart from the answer, and its tokens counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.answer.reasoning import (
    REASONING,
    Place,
    ReasoningNotation,
    ReasoningParser,
    ReasoningTokens,
    Thought,
    continued_text,
    detected,
)
from server.schemas.chat import ContentPart

QWEN3 = REASONING["qwen3"]
UNDECIDED, INSIDE, AFTER = Place.UNDECIDED, Place.INSIDE, Place.AFTER


def parse(place: Place, pieces: Sequence[str], notation: ReasoningNotation = QWEN3) -> tuple[str, str]:
    parser = ReasoningParser(notation, place)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert all(event not in ("", Thought("")) for event in events), "an empty event says nothing"
    kinds = [isinstance(event, Thought) for event in events]
    assert kinds == sorted(kinds, reverse=True), "reasoning comes first"
    thoughts = "".join(event.text for event in events if isinstance(event, Thought))
    return thoughts, "".join(event for event in events if isinstance(event, str))


CASES = [
    (UNDECIDED, "<think>\nHm.\n\nWell.\n</think>\n\nYes.\n", "Hm.\n\nWell.", "Yes.\n"),
    (UNDECIDED, "\n <think>a</think>b", "a", "b"),
    (UNDECIDED, "<think>\n\n</think>\n\nYes", "", "Yes"),
    (UNDECIDED, "Yes <think>a</think>", "", "Yes <think>a</think>"),
    (UNDECIDED, " \n Yes", "", " \n Yes"),
    (UNDECIDED, "<thinner>", "", "<thinner>"),
    (UNDECIDED, "<thi", "", "<thi"),
    (UNDECIDED, "  ", "", "  "),
    (UNDECIDED, "", "", ""),
    (UNDECIDED, "<think>never closed </thin ", "never closed </thin ", ""),
    (UNDECIDED, "<think>a</think></think>b", "a", "</think>b"),
    (UNDECIDED, "<think>a</think>\n<think>b</think>", "a", "<think>b</think>"),
    (UNDECIDED, "<think>a</think>  ", "a", ""),
    (INSIDE, "\nHm.</think>Yes", "Hm.", "Yes"),
    (INSIDE, "<think>\nHm.</think>Yes", "Hm.", "Yes"),
    (INSIDE, "</think>Yes", "", "Yes"),
    (INSIDE, "<think>\n<think><think>a", "<think><think>a", ""),
    (INSIDE, "<think>", "", ""),
    (UNDECIDED, "<think> <think>a", "<think>a", ""),
    (INSIDE, "cut off", "cut off", ""),
    (INSIDE, "a < b </ c", "a < b </ c", ""),
    (AFTER, "<think>a</think>b", "", "<think>a</think>b"),
    (AFTER, "\n\nYes", "", "\n\nYes"),
]


@pytest.mark.parametrize(("place", "text", "thoughts", "answer"), CASES)
def test_reasoning_and_answer(place: Place, text: str, thoughts: str, answer: str) -> None:
    for size in (1, 2, 3, len(text) or 1):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        assert parse(place, pieces) == (thoughts, answer)


PIECES = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think", " ", "\n", "a", "é", "<"]),
    max_size=14,
)


@given(st.sampled_from(Place), PIECES)
def test_pieces_do_not_matter(place: Place, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert parse(place, pieces) == parse(place, [text]) == parse(place, list(text))


@given(st.sampled_from(Place), PIECES)
def test_every_token_of_reasoning_is_counted(place: Place, pieces: list[str]) -> None:
    """Of all prefixes of the answer, the longest that is nothing but reasoning, tags included."""
    vocabulary = dict(enumerate(piece.encode() for piece in pieces))
    counter = ReasoningTokens(QWEN3, place, vocabulary.__getitem__)
    counter.push(range(len(pieces)))
    text, wanted = "".join(pieces), 0
    begun = text.lstrip().startswith("<think>") if place is UNDECIDED else place is INSIDE
    if begun:
        start = text.index("<think>") + 7 if place is UNDECIDED else 0
        end = text.find("</think>", start)
        length = 0
        for number, piece in enumerate(pieces, 1):
            length += len(piece)
            wanted = number
            if end >= 0 and length >= end + len("</think>"):
                break
    assert counter.count == wanted
    one_by_one = ReasoningTokens(QWEN3, place, vocabulary.__getitem__)
    for number in range(len(pieces)):
        one_by_one.push([number])
    assert one_by_one.count == wanted


def test_text_is_not_held_longer_than_needed() -> None:
    parser = ReasoningParser(QWEN3, UNDECIDED)
    assert parser.push("<think>") == []
    assert parser.push("\nLet me") == [Thought("Let me")]
    assert parser.push(" see. ") == [Thought(" see.")]
    assert parser.push("</thin") == []
    assert parser.push("k>\n\nYes") == ["Yes"]
    assert parser.is_over
    assert parser.push(" ") == [" "]


def test_tags_of_characters_that_are_spread_over_tokens() -> None:
    counter = ReasoningTokens(QWEN3, INSIDE, lambda token_id: bytes([token_id]))
    counter.push("é</think>é".encode())
    assert counter.count == len("é</think>".encode())


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ("user: hi\nassistant:\n", UNDECIDED),
        ("user: hi\nassistant: <think>\n", INSIDE),
        ("user: hi\nassistant: <think>\n\n</think>\n\n", AFTER),
        ("user: what is <think>?\nassistant:", UNDECIDED),
    ],
)
def test_where_an_answer_begins(prompt: str, place: Place) -> None:
    def decode(ids: list[int]) -> str:
        return bytes(ids).decode()

    assert QWEN3.place(decode, list(prompt.encode()), None) is place
    assumed = INSIDE if place is UNDECIDED else place
    assert REASONING["deepseek_r1"].place(decode, list(prompt.encode()), None) is assumed


@pytest.mark.parametrize(
    ("content", "place"),
    [("<think>Hm", INSIDE), ("<think>Hm</think>Well", AFTER), ("Well", AFTER), (None, AFTER)],
)
def test_where_a_message_goes_on(content: str | None, place: Place) -> None:
    assert QWEN3.place(lambda ids: "", [1], continued_text(content)) is place
    parts = None if content is None else [ContentPart(type="text", text=content)]
    assert QWEN3.place(lambda ids: "", [1], continued_text(parts)) is place


def test_detection() -> None:
    assert detected("{{ '<think>\\n' }}...{{ '</think>' }}") is QWEN3
    assert detected("[THINK]{{ x }}[/THINK]") is REASONING["mistral"]
    assert detected("{{ messages }}") is None
