"""Every format of reasoning: told apart from the answer however the text is cut, and its tokens counted."""
# ruff: noqa: E501 -- an answer stands on one line

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.answer.choice import Reading
from server.answer.harmony.marks import LITERALS
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place, ReasoningParser, ReasoningTokens, Thought, detected
from server.answer.reasoning.harmony import Channels
from server.answer.reasoning.tags import Tags
from server.answer.tools.events import CallArguments, CallBegun
from server.answer.tools.registry import tool_notation
from server.schemas.tool_choice import Function, ToolChoice
from tests.tiers import examples, sweep

HARMONY = REASONING["openai_gptoss"]
CASES = int(os.environ.get("FORMAT_CASES", "60"))
LONG = 1000
A, C, F = "<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>", "<|channel|>final<|message|>"
NEXT, END, RETURN = "<|start|>assistant", "<|end|>", "<|return|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


def split(kind: str, place: Place, pieces: Sequence[str]) -> list[list[str]]:
    """Pieces in order, neighbours of a kind as one."""
    parser = ReasoningParser(REASONING[kind], place)
    out: list[list[str]] = []
    for event in [event for piece in pieces for event in parser.push(piece)] + parser.finish():
        kind, text = ("thought", event.text) if isinstance(event, Thought) else ("text", event)
        assert text, "an empty event says nothing"
        if out and out[-1][0] == kind:
            out[-1][1] += text
        else:
            out.append([kind, text])
    return out


@pytest.mark.parametrize("name", [name for name, one in REASONING.items() if isinstance(one, Tags)])
def test_tags(name: str) -> None:
    notation = REASONING[name]
    assert isinstance(notation, Tags)
    block = f"{notation.opening}\nHm.\n{notation.closing}\n\nYes."
    place = Place.INSIDE if notation.assumed else Place.UNDECIDED
    for text in (block, block.removeprefix(notation.opening)):
        for pieces in ([text], list(text)):
            begins = place if text is block else Place.INSIDE
            assert split(name, begins, pieces) == [["thought", "Hm."], ["text", "Yes."]]

    def decode(ids: list[int]) -> str:
        return bytes(ids).decode()

    prompt = f"assistant\n{notation.opening}\n"
    assert notation.place(decode, list(prompt.encode()), None) is Place.INSIDE, "the template opens the block"
    assert notation.place(decode, list((prompt + notation.closing + "\n\n").encode()), None) is Place.AFTER
    counter = ReasoningTokens(notation, Place.INSIDE, lambda token_id: bytes([token_id]))
    counter.push(f"é{notation.closing}é".encode())
    assert counter.count == len(f"é{notation.closing}".encode())


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (f"{A}Hm.{END}{NEXT}{F}Yes.{RETURN}", [["thought", "Hm."], ["text", "Yes."]]),
        (f"{F}Yes.", [["text", "Yes."]]),
        (f"{A}a{END}{NEXT}{A}b{END}{NEXT}{F}c", [["thought", "a\nb"], ["text", "c"]]),
        (f"{A}a{END}{NEXT}{C}I look.{END}{NEXT}{F}c", [["thought", "a"], ["text", "I look.\nc"]]),
        (f"{A}a{END}{NEXT}{CALL}{{}}<|call|>", [["thought", "a"], ["text", "{}"]]),
        (" to=functions.f<|channel|>commentary json<|message|>{}", [["text", "{}"]]),
        (f"{A}never closed", [["thought", "never closed"]]),
        (f"{A}a{NEXT}{F}b", [["thought", "a"], ["text", "b"]]),
        (f"{A}a < b <|b{END}", [["thought", "a < b <|b"]]),
        ("Hello <b>", [["text", "Hello <b>"]]),
        (f"Hello{F}Yes", [["text", "Hello\nYes"]]),
        ("<|channel|>anal", []),
        ("<|channel|>", []),
        (f"<|channel|>odd{END}{NEXT}{F}x", [["thought", "odd"], ["text", "x"]]),
        ("tomorrow", [["text", "tomorrow"]]),
        ("to", [["text", "to"]]),
        ("<|channel|>" + "x" * 3000 + f"{END}{NEXT}{F}y", [["text", "x" * 3000 + "\ny"]]),
        ("", []),
    ],
)  # fmt: skip
def test_channels(text: str, pieces: list[list[str]]) -> None:
    for cut in ([text], list(text), [text[i : i + 7] for i in range(0, len(text), 7)]):
        assert split("openai_gptoss", Place.UNDECIDED, cut) == pieces


def test_thoughts_flow() -> None:
    parser = ReasoningParser(HARMONY, Place.UNDECIDED)
    assert parser.push(A) == []
    assert parser.push("Let me ") == [Thought("Let me ")]
    assert parser.push("see <|en") == [Thought("see ")]
    assert parser.push("d|>") == []
    assert parser.push(NEXT + F) == []
    assert parser.push("Yes") == ["Yes"]
    assert not parser.is_over


@pytest.mark.parametrize(
    ("prompt", "continued", "place"),
    [
        ("<|start|>user<|message|>Hi<|end|><|start|>assistant", None, Place.UNDECIDED),
        (f"<|start|>assistant{A}", None, Place.INSIDE),
        (f"<|start|>assistant{F}", None, Place.AFTER),
        (f"<|start|>assistant{F}Well", "Well", Place.AFTER),
    ],
)
def test_where_an_answer_begins(prompt: str, continued: str | None, place: Place) -> None:
    assert HARMONY.place(lambda ids: bytes(ids).decode()[-200:], list(prompt.encode()), continued) is place
    assert split("openai_gptoss", Place.INSIDE, [f"a{END}{NEXT}{F}b"]) == [["thought", "a"], ["text", "b"]]
    assert split("openai_gptoss", Place.AFTER, ["b"]) == [["text", "b"]]


def test_tokens_of_analysis_are_counted() -> None:
    """Also where a literal is one token, and over two messages."""
    words = [*LITERALS, "assistant", "analysis", "final", "Hm", "."]
    vocabulary = {number: word.encode() for number, word in enumerate(words)}
    ids = {word: number for number, word in enumerate(words)}

    def tokens(*texts: str) -> list[int]:
        return [ids[text] for text in texts]

    analysis = tokens("<|channel|>", "analysis", "<|message|>", "Hm", ".", "<|end|>")
    final = tokens("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Hm", "<|return|>")
    counter = ReasoningTokens(HARMONY, Place.UNDECIDED, vocabulary.__getitem__)
    counter.push([*analysis, *tokens("<|start|>", "assistant"), *analysis, *final])
    assert counter.count == 6 + 2 + 6
    inside = ReasoningTokens(HARMONY, Place.INSIDE, vocabulary.__getitem__)
    inside.push([*analysis[3:], *final])
    assert inside.count == 3


def words(kind: str) -> list[str]:
    more = [" ", "\n", "a", "é", "<", "Hm.", "{}", "to=", " to=functions.f", "<|", "<think>", "x" * 1100]
    if isinstance(REASONING[kind], Channels):
        return [*LITERALS, *more, A, F, CALL, NEXT, "analysis", "final", "<|cha", "nnel|>"]
    literals = REASONING[kind].literals
    return [*literals, *(one[:3] for one in literals), *(one[3:] for one in literals), *more]


def check_cuts(kind: str, place: Place, data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.sampled_from(words(kind)), max_size=14))
    text = "".join(pieces)
    whole = split(kind, place, [text])
    assert split(kind, place, pieces) == whole
    assert split(kind, place, list(text)) == whole


@pytest.mark.parametrize("kind", REASONING)
@settings(max_examples=examples(CASES), deadline=None)
@given(place=st.sampled_from(Place), data=st.data())
def test_pieces_do_not_matter(kind: str, place: Place, data: st.DataObject) -> None:
    check_cuts(kind, place, data)


@pytest.mark.long(extended=True)
@sweep(every=4)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", REASONING)
@settings(max_examples=LONG, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(place=st.sampled_from(Place), data=st.data())
def test_pieces_do_not_matter_in_a_thousand_texts(kind: str, place: Place, data: st.DataObject) -> None:
    check_cuts(kind, place, data)


def answer_of(pieces: Sequence[str]) -> tuple[str, str, list[list[str]]]:
    """Reasoning, text and calls of gpt-oss' answer, as chat completions reads them."""
    notation = ModelNotation(tool_notation("openai", ""), HARMONY)
    choice = ToolChoice("auto", (Function(0, "f", None, False),))
    parsers = Reading(notation, choice, Place.UNDECIDED, lambda token_id: b"").parser()
    thoughts, text, calls = "", "", list[list[str]]()
    for number, piece in enumerate(pieces):
        for event in parsers.push(piece, last=number == len(pieces) - 1):
            match event:
                case Thought(more):
                    thoughts += more
                case CallBegun(_, _, name):
                    calls.append([name, ""])
                case CallArguments(index, more):
                    calls[index][1] += more
                case str():
                    text += event
    return thoughts, text, calls


@pytest.mark.parametrize(
    "call",
    [f'{CALL}{{"x": 1}}<|call|>', f'{CALL}{{"x": 1}}', '<|channel|>commentary to=functions.f<|message|>{"x": 1}', '<|channel|>analysis to=functions.f code<|message|>{"x": 1}'],
)  # fmt: skip
def test_both_parsers_read_one_answer(call: str) -> None:
    text = f"{A}Hm.{END}{NEXT}{C}I look.{END}{NEXT}{call}"
    for pieces in ([text], list(text)):
        assert answer_of(pieces) == ("Hm.", "I look.", [["f", '{"x": 1}']])


@settings(max_examples=examples(CASES), deadline=None)
@given(st.lists(st.sampled_from([*words("openai_gptoss"), '{"x": 1}', "<|call|>"]), max_size=14))
def test_both_parsers_together_read_any_cut(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert answer_of([*pieces, ""]) == answer_of([text]) == answer_of([*text, ""])


def test_detection() -> None:
    assert detected("'<|channel|>analysis<|message|>' + thinking") is HARMONY
    assert detected("<seed:think> ... </seed:think>") is REASONING["seed_oss"]
    assert detected("<|START_THINKING|>{{ x }}<|END_THINKING|>") is REASONING["cohere"]
    assert detected("<|channel>thought\n{{ x }}<channel|>") is REASONING["gemma4"]
    assert detected("<thinking>{{ x }}</thinking>") is REASONING["thinking"]
