"""What gpt-oss has been seen to write, and where other servers showed notation, lost an answer or answered with an error."""
# ruff: noqa: E501 -- an answer stands on one line

from __future__ import annotations

import pytest

from server.answer.harmony.marks import MARKS, marked
from server.answer.harmony.reader import MAX_HEADER
from server.answer.reasoning import Place, Thought
from server.answer.tools.events import CallArguments, CallBegun
from tests.server.answer.harmony.messages import HARMONY, NEXT, Seen, parser_of, seen, seen_exactly

A, C, F = "<|channel|>analysis<|message|>", "<|channel|>commentary<|message|>", "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
X: list[tuple[str, str]] = [("f", '{"x": 1}')]
ONE = '{"x": 1}'

RECORDED = {
    "all channels": (f"{A}Hm.<|end|>{NEXT}{C}I look.<|end|>{NEXT}{CALL}{ONE}<|call|>", Seen("Hm.", "I look.", X)),
    "a name with the channel behind it": (f" to=functions.f<|channel|>commentary <|constrain|>json<|message|>{ONE}<|call|>", Seen(calls=X)),
    "a channel twice": (f"<|channel|>commentary to=functions.f<|channel|>commentary <|constrain|>json<|message|>{ONE}<|call|>", Seen(calls=X)),
    "a call on analysis": (f"{A}Hm.<|end|>{NEXT}<|channel|>analysis to=functions.get_weather code<|message|>{ONE}<|call|>", Seen("Hm.", "", [("get_weather", ONE)])),
    "a call within thoughts": (f"{A}Hm. {CALL}{ONE}<|call|>", Seen("Hm. ", "", X)),
    "a call within thoughts, in words": (f'{A}I call functions.f with {{"x": 1}}<|end|>{NEXT}{F}No.<|return|>', Seen('I call functions.f with {"x": 1}', "No.")),
    "no end before another role's message": (f"{A}Hm.{NEXT}{F}Yes.<|return|>", Seen("Hm.", "Yes.")),
    "no end and no start": (f"{A}Hm.{F}Yes.<|return|>", Seen("Hm.", "Yes.")),
    "no start": (f"{A}Hm.<|end|>{F}Yes.<|return|>", Seen("Hm.", "Yes.")),
    "no start, but the role": (f"{A}Hm.<|end|>assistant{F}Yes.<|return|>", Seen("Hm.", "Yes.")),
    "the beginning twice": (f"{NEXT}{A}Hm.<|end|>{NEXT}{NEXT}{F}Yes.<|return|>", Seen("Hm.", "Yes.")),
    "a type as recipient": (f"<|channel|>commentary to=<|constrain|>json<|message|>{ONE}<|call|>", Seen("", ONE)),
    "an odd type": (f"<|channel|>commentary to=functions.f <|constrain|>response<|message|>{ONE}<|call|>", Seen(calls=X)),
    "a dash in a name": (f"<|channel|>commentary to=functions.web-browsing <|constrain|>json<|message|>{ONE}<|call|>", Seen(calls=[("web-browsing", ONE)])),
    "a dash before the channel": ("<|channel|>––commentary<|message|>I look.<|end|>", Seen("", "I look.")),
    "signs behind the channel": (f"<|channel|>commentary?commentary?<|message|>I look.<|end|>{NEXT}{A}Hm.<|end|>{NEXT}{F}Yes.", Seen("Hm.", "I look.\nYes.")),
    "nonsense for a channel": (f"<|channel|>??<|end|>{NEXT}{A}Hm.<|end|>{NEXT}{F}Yes.<|return|>", Seen("??\nHm.", "Yes.")),
    "to itself": (f"<|channel|>commentary to=assistant<|channel|>commentary?<|message|>I look.<|end|>{NEXT}{F}Yes.", Seen("", "I look.\nYes.")),
    "a final answer without its beginning": ("<|channel|>final The answer is 42.<|return|>", Seen("", "The answer is 42.")),
    "thoughts without their beginning": (f"<|channel|>analysis Hm.<|end|>{NEXT}{F}Yes.", Seen("Hm.", "Yes.")),
    "a call without its beginning": (f"<|channel|>commentary to=functions.f <|constrain|>json{ONE}<|call|>", Seen(calls=X)),
    "a recipient and nothing else": ("<|channel|>commentary to=functions.f<|call|>", Seen()),
    "a misspelled channel": ("<|channel|>finalx<|message|>Yes.<|return|>", Seen("", "Yes.")),
    "an unknown channel": ("<|channel|>reply<|message|>Yes.<|return|>", Seen("", "Yes.")),
    "the beginning of a beginning": (f"{A}Hm.<|end|><|start|>{NEXT}{F}Yes.<|return|>", Seen("Hm.", "Yes.")),
    "no channel behind its mark": ("<|channel|><|message|>Yes.<|return|>", Seen("", "Yes.")),
    "stray tokens": (f"{A}Hm.<|end|> 364 {NEXT}{F}Yes.<|return|>", Seen("Hm.\n 364 ", "Yes.")),
    "an answer without a header": (f"{A}Hm.<|end|>The answer is 42.", Seen("Hm.", "The answer is 42.")),
    "text between messages": (f"{A}Hm.<|end|>So.{NEXT}{F}Yes.<|return|>", Seen("Hm.\nSo.", "Yes.")),
    "text without any message": ("The answer is 42.", Seen("", "The answer is 42.")),
    "two calls": (f"{CALL}{ONE}<|end|>{NEXT}<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{{}}<|call|>", Seen(calls=[*X, ("get_weather", "{}")])),
    "two calls, stopped twice": (f"{CALL}{ONE}<|call|>{NEXT}{CALL}{ONE}<|call|>", Seen(calls=X * 2)),
    "a call behind a final answer": (f"{F}I look.<|end|>{NEXT}{CALL}{ONE}<|call|>", Seen("", "I look.", X)),
    "a name run into the channel": (f" to=functions.get_weathercommentary json<|message|>{ONE}<|call|>", Seen(calls=[("get_weather", ONE)])),
    "another namespace": (f"<|channel|>commentary to=tools.f <|constrain|>json<|message|>{ONE}<|call|>", Seen(calls=X)),
    "a function of no offer": (f"<|channel|>commentary to=repo_browser.open_file code<|message|>{ONE}<|call|>", Seen(calls=[("repo_browser.open_file", ONE)])),
    "python in thoughts": ("<|channel|>analysis to=python code<|message|>print(1)<|call|>", Seen("print(1)")),
    "no arguments": (f"{CALL}<|call|>", Seen(calls=[("f", "{}")])),
    "null as arguments": (f"{CALL} null <|call|>", Seen(calls=[("f", "{}")])),
    "arguments and more": (f"{CALL}{ONE}\n\nassistant<|call|>", Seen(calls=X)),
    "notation in arguments": (f'{CALL}{{"x": "a<|message|>b"}}<|call|>', Seen(calls=[("f", '{"x": "ab"}')])),
    "its own result": (f"{CALL}{ONE}<|call|><|start|>functions.f to=assistant<|channel|>commentary<|message|>42<|end|>{NEXT}{F}42.", Seen(calls=X)),
    "the user's next message": (f"{F}Yes.<|end|><|start|>user<|message|>And?<|end|>{NEXT}{F}No.", Seen("", "Yes.")),
}  # fmt: skip


@pytest.mark.parametrize("case", RECORDED)
def test_an_answer_is_read(case: str) -> None:
    text, expected = RECORDED[case]
    assert seen_exactly(text) == expected
    for pieces in ([text], [*text], [text[at : at + 5] for at in range(0, len(text), 5)]):
        assert seen(pieces, parser_of(HARMONY)) == expected, "literals are spelled out"


@pytest.mark.parametrize("end", ["<|return|>", "<|call|>", "<|end|>", ""])
@pytest.mark.parametrize(
    ("message", "expected"),
    [(f"{A}Hm.", Seen("Hm.")), (f"{C}I look.", Seen("", "I look.")), (f"{F}Yes.", Seen("", "Yes.")), (CALL + ONE, Seen(calls=X))],
)  # fmt: skip
def test_any_end_ends_any_channel(message: str, end: str, expected: Seen) -> None:
    assert seen_exactly(message + end) == expected
    assert seen([message + end], parser_of(HARMONY)) == expected
    parser = parser_of()
    for piece in marked(message):
        parser.push(piece)
        assert not parser.ended
    parser.push(MARKS.get(end, ""))
    assert parser.ended == (end in ("<|return|>", "<|call|>"))


def test_literals_in_a_text_are_text() -> None:
    """A model that explains its format spells literals with ordinary tokens."""
    spelled = f"It ends with <|end|>, and {CALL}{ONE}<|call|> is a call."
    text = marked(F) + spelled + MARKS["<|return|>"]
    for pieces in ([text], [*text]):
        assert seen(pieces) == Seen("", spelled)


@pytest.mark.parametrize(
    ("text", "cut_before", "expected"),
    [
        ("<|chan", "", Seen()), ("<|channel|>fin", "", Seen()), ("to=functions.f", "", Seen()), (F + "a <|e", "", Seen("", "a ")), (F + "a <b", "", Seen("", "a <b")),
        (A + "Hm.<|end|><|start|>assis", "", Seen("Hm.")), (CALL, "", Seen()), (CALL + '{"x"', "", Seen(calls=[("f", '{"x"')])),
        (CALL + ONE, "<|call|>", Seen(calls=X)), (CALL, "<|call|>", Seen(calls=[("f", "{}")])), (F + "a <", "|end|>", Seen("", "a ")), (F + "a <", "b", Seen("", "a <")),
        ("<|channel|>final", "", Seen()), ("<|channel|>final", None, Seen()), ("<|channel|>final So", None, Seen("", "So")), ("assistant", None, Seen("", "assistant")),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_off(text: str, cut_before: str | None, expected: Seen) -> None:
    for pieces in ([text], [*text]):
        assert seen(pieces, parser_of(HARMONY), cut_before) == expected


def test_a_call_that_is_cut_off_is_not_complete() -> None:
    for text, cut_before, finished in (
        (CALL + ONE, "", 1), (CALL + '{"x"', "", 0), (CALL + '{"x"', None, 0), (CALL, None, 1), (CALL, "", 0), (CALL + "[1]", None, 1), (CALL + "[1]", "", 0),
        (f"{CALL}{ONE}<|end|>{NEXT}{CALL}" + '{"x', "", 0),
    ):  # fmt: skip
        parser = parser_of(HARMONY)
        seen([text], parser, cut_before)
        assert parser.all_finished == bool(finished), (text, cut_before)


def test_calls_without_an_offer_are_no_answer() -> None:
    """They are neither text for the user, nor to be carried out."""
    text = f"{A}Hm.<|end|>{NEXT}{CALL}{ONE}<|end|>{NEXT}{F}Yes.<|return|>"
    assert seen_exactly(text, mode="none") == Seen(f"Hm.\n{ONE}", "Yes.")


def test_one_call_ends_the_answer() -> None:
    parser = parser_of(HARMONY, several=False)
    text = f"{CALL}{ONE}"
    assert seen([f"{text}<|end|>{NEXT}{CALL}{ONE}"], parser) == Seen(calls=X)
    parser = parser_of(HARMONY, several=False)
    assert [number for number, char in enumerate(text, 1) if parser.push(char) and parser.ended] == [
        len(text)
    ]


def test_where_the_prompt_ends() -> None:
    rest = f"<|end|>{NEXT}{F}Yes.<|return|>"
    assert seen_exactly(f"Hm.{rest}", place=Place.INSIDE) == Seen("Hm.", "Yes.")
    assert seen_exactly("Yes.<|return|>", place=Place.AFTER) == Seen("", "Yes.")


def test_a_stream_flows() -> None:
    """Text is held back in headers only."""
    parser = parser_of()
    mark = MARKS.__getitem__
    assert (
        parser.push(mark("<|channel|>")) == parser.push("analysis") == parser.push(mark("<|message|>")) == []
    )
    assert parser.push("Let me see <|") == [Thought("Let me see <|")]
    assert parser.push(mark("<|end|>")) == parser.push(mark("<|start|>")) == parser.push("assistant") == []
    assert (
        parser.push(mark("<|channel|>") + "commentary to=functions.f " + mark("<|constrain|>") + "json") == []
    )
    assert parser.push(mark("<|message|>")) == []
    begun, first = parser.push('{"x')
    assert isinstance(begun, CallBegun) and begun.name == "f" and first == CallArguments(0, '{"x')
    assert parser.push('": "once') == [CallArguments(0, '": "once')]


def test_a_long_header_is_text() -> None:
    """It is not held back for ever, and takes linear time."""
    long = "x" * 3000
    for start in ("<|channel|>", "<|channel|>final "):
        assert seen_exactly(f"{start}{long}<|end|>{NEXT}{F}Yes.") == Seen("", f"{long}\nYes.")
    call = seen_exactly(f"<|channel|>commentary to=functions.{long}<|message|>{{}}<|call|>")
    assert not call.calls and not call.text, "a name of no length that could be one"
    parser = parser_of(HARMONY)
    assert parser.push(f"<|channel|>{long[:MAX_HEADER]}") == [long[:MAX_HEADER]]
    assert seen(["<|channel|>"] * 3000 + ["n"] * 60_000, parser_of(HARMONY)).text
