"""Answers in Harmony of every order of channels: a client sees what was meant, however they are cut, and no notation."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.answer.harmony.marks import LITERAL_OF, LITERALS, marked
from server.answer.notation import ModelNotation
from server.answer.reasoning import Place
from server.answer.tools.parser import NAME
from tests.server.answer.harmony.messages import (
    EXACT,
    HARMONY,
    NEXT,
    Answer,
    Seen,
    answers,
    parser_of,
    seen,
)
from tests.tiers import examples

CASES = int(os.environ.get("FORMAT_CASES", "60"))
LONG = 1000
"""Random answers of the long form."""


def cut(text: str, places: Sequence[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def shown(found: Seen) -> list[str]:
    return [found.thoughts, found.text, *(part for call in found.calls for part in call)]


def check(answer: Answer, notation: ModelNotation, places: Sequence[int]) -> None:
    """Whole, by characters, and cut at these places."""
    text = answer.exact if notation is EXACT else answer.spelled
    for pieces in ([text], list(text), cut(text, places)):
        found = seen(pieces, parser_of(notation))
        assert found == answer.expected, answer.spelled
        assert not any(mark in part for part in shown(found) for mark in LITERAL_OF)


def check_cut_off(answer: Answer, place: int) -> None:
    """An answer that a limit cuts off anywhere is a beginning of the whole one."""
    text = answer.exact
    found, whole = seen([text[: place % (len(text) + 1)]], parser_of(), cut_before=""), answer.expected
    assert whole.thoughts.startswith(found.thoughts)
    assert whole.text.startswith(found.text)
    assert len(found.calls) <= len(whole.calls)
    for (name, arguments), (whole_name, whole_arguments) in zip(found.calls, whole.calls, strict=False):
        assert name == whole_name and whole_arguments.startswith(arguments)


PLACES = st.lists(st.integers(0, 10_000), max_size=12)


@settings(max_examples=examples(CASES), deadline=None)
@given(answers(), PLACES, st.integers(0, 10_000))
def test_an_answer_is_what_was_meant(answer: Answer, places: list[int], end: int) -> None:
    check(answer, EXACT, places)
    check_cut_off(answer, end)


@settings(max_examples=examples(CASES), deadline=None)
@given(answers(spelled=False), PLACES)
def test_literals_that_are_no_tokens(answer: Answer, places: list[int]) -> None:
    check(answer, HARMONY, places)


@pytest.mark.long(extended=True)
@pytest.mark.timeout(300)
@settings(max_examples=LONG, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(answers(), answers(spelled=False), PLACES, st.integers(0, 10_000))
def test_a_thousand_answers(exact: Answer, spelled: Answer, places: list[int], end: int) -> None:
    check(exact, EXACT, places)
    check_cut_off(exact, end)
    check(spelled, HARMONY, places)


PIECES = (
    *LITERALS, *LITERALS, NEXT, "analysis", "commentary", "final", " to=functions.f", " to=", "functions.", "json", " ", "\n",
    "{", "}", '"', '{"x": 1}', "assistant", "user", "to", "Hi.", "é", "x" * 1100, "<|", "|>", "null", "[1]",
)  # fmt: skip
"""Any order of notation, and of words that look like it."""


@settings(max_examples=examples(CASES * 3), deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=14),
    st.sampled_from(Place),
    st.sampled_from(("auto", "none")),
    PLACES,
    st.sampled_from((None, "", "x", "<|end|>")),
)
def test_any_text_is_read_alike(
    pieces: list[str], place: Place, mode: str, places: list[int], cut_before: str | None
) -> None:
    """Also broken answers, and ends by limits and stops: no error, no notation, and the same for every cut."""
    for notation in (EXACT, HARMONY):
        text = marked("".join(pieces)) if notation is EXACT else "".join(pieces)

        def read(parts: Sequence[str], notation: ModelNotation = notation) -> Seen:
            return seen(parts, parser_of(notation, mode, place=place), cut_before)  # type: ignore[arg-type]

        whole = read([text])
        assert read([*text]) == read(cut(text, places)) == whole
        for part in shown(whole):
            assert not any(mark in part for mark in LITERAL_OF)
            assert notation is EXACT or not any(literal in part for literal in LITERALS)
        assert all(NAME.fullmatch(name) for name, _ in whole.calls)
        assert mode == "auto" or not whole.calls
