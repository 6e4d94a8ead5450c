"""Answers in Harmony, made at random together with what a client should see of them, and the parser's answer."""
# ruff: noqa: E501 -- a header stands on one line

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from server.answer.choice import AnswerParser, Reading
from server.answer.harmony.marks import LITERALS, MARKS, marked
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING, Place, Thought
from server.answer.tools.events import CallArguments, CallBegun, Event
from server.answer.tools.registry import tool_notation
from server.schemas.tool_choice import Function, Mode, ToolChoice

NAMES = ("f", "get_weather", "web-browsing", "json_lookup")
FUNCTIONS = tuple(Function(number, name, None, False) for number, name in enumerate(NAMES))
NEXT = "<|start|>assistant"
IDS = dict(enumerate(MARKS.values(), 300))
HARMONY = ModelNotation(tool_notation("openai", ""), REASONING["openai_gptoss"])
"""Without marks: the literals are spelled out."""
EXACT = ModelNotation(tool_notation("openai", ""), REASONING["openai_gptoss"], marks=IDS)


@dataclass
class Seen:
    """What a client sees of an answer."""

    thoughts: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)

    def add(self, pieces: Iterable[Thought | Event]) -> Seen:
        for piece in pieces:
            match piece:
                case Thought(more):
                    assert more, "an empty piece says nothing"
                    self.thoughts += more
                case CallBegun(index, _, name):
                    assert index == len(self.calls), "indices are dense"
                    self.calls.append((name, ""))
                case CallArguments(index, more):
                    assert index == len(self.calls) - 1, "arguments belong to the call that began last"
                    self.calls[index] = (self.calls[index][0], self.calls[index][1] + more)
                case str(more):
                    assert more, "an empty piece says nothing"
                    self.text += more
        return self


def parser_of(
    notation: ModelNotation = EXACT, mode: Mode = "auto", several: bool = True, place: Place = Place.UNDECIDED
) -> AnswerParser:
    choice = ToolChoice(mode, FUNCTIONS if mode != "none" else (), several)
    return Reading(notation, choice, place, lambda token_id: b"").parser()


def seen(pieces: Sequence[str], parser: AnswerParser | None = None, cut_before: str | None = None) -> Seen:
    """What a client sees of an answer that comes in these pieces."""
    parser = parser or parser_of()
    out = Seen()
    for piece in pieces:
        out.add(parser.push(piece))
    return out.add(parser.push("", last=True, cut_before=cut_before))


def seen_exactly(text: str, mode: Mode = "auto", place: Place = Place.UNDECIDED) -> Seen:
    """The same for a text of which each literal is a token; streamed by characters, and as a whole."""
    pieces = marked(text)
    whole = seen([pieces], parser_of(EXACT, mode, place=place))
    assert seen([*pieces], parser_of(EXACT, mode, place=place)) == whole
    return whole


@dataclass(frozen=True)
class Message:
    """One message with its header and what it adds to the answer. `body` is free of literals unless they are spelled."""

    kind: str
    header: str
    body: str
    name: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer. `spelled`: with literals as text; `exact`: with marks for those that are notation, and none for those in the
    text of a message. `expected`: what a client sees."""

    spelled: str
    exact: str
    expected: Seen


CALL_HEADERS = (
    "<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
    " to=functions.NAME<|channel|>commentary json<|message|>",
    " to=functions.NAME<|channel|>commentary <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.NAME<|message|>",
    "<|channel|>analysis to=functions.NAME code<|message|>",
    "<|channel|>commentary to=functions.NAME<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.NAME <|constrain|>response<|message|>",
    "<|channel|>commentary<|constrain|>json to=functions.NAME<|message|>",
    "<|channel|>final to=functions.NAME <|constrain|>json<|message|>",
    "<|channel|>commentary to=NAME json<|message|>",
    "<|channel|>commentary to=tool.NAME code<|message|>",
    " to=functions.NAMEcommentary json<|message|>",
)
HEADERS = {
    "thought": ("<|channel|>analysis<|message|>", "<|channel|> analysis <|message|>", "<|channel|>analysis?<|message|>", "<|channel|>analysis to=assistant<|message|>"),
    "text": (
        "<|channel|>final<|message|>",
        "<|channel|>commentary<|message|>",
        "<|channel|>final <|constrain|>json<|message|>",
        "<|channel|>commentary to=user<|message|>",
        "<|channel|>––commentary<|message|>",
        "<|channel|>finalx<|message|>",
        "<|channel|>odd<|message|>",
        "<|message|>",
        "<|channel|>analysis<|channel|>final<|message|>",
    ),
}  # fmt: skip
WORDS = (
    "Hm",
    " so",
    "\n",
    "é",
    "\U0001f600",
    "<",
    "<|",
    "|>",
    "{",
    "}",
    "analysis",
    "assistantfinal",
    "to=functions.f ",
    " json",
    '"',
    "a b",
)


@st.composite
def messages(draw: st.DrawFn, spelled: bool) -> Message:
    """A message; with `spelled` its text may spell literals."""
    kind = draw(st.sampled_from(("thought", "text", "call")))
    words = (*WORDS, *LITERALS) if spelled else WORDS
    body = "".join(draw(st.lists(st.sampled_from(words), max_size=6)))
    if kind != "call":
        return Message(kind, draw(st.sampled_from(HEADERS[kind])), body)
    name = draw(st.sampled_from(NAMES))
    header = draw(st.sampled_from(CALL_HEADERS)).replace("NAME", name)
    arguments = draw(st.sampled_from(({}, {"x": body}, {"a": {"b": [1, body, "}"]}}, {body: '"\\'})))
    return Message(kind, header, json.dumps(arguments, ensure_ascii=draw(st.booleans())), name)


@st.composite
def answers(draw: st.DrawFn, spelled: bool = True) -> Answer:
    """An answer of up to six messages. Ends are missing where the next message begins with a special token."""
    text: list[str] = []
    exact: list[str] = []
    parts: dict[str, list[str]] = {"thought": [], "text": []}
    expected = Seen()

    def write(notation: str, body: str = "") -> None:
        text.append(notation + body)
        exact.append(marked(notation) + body)

    found = draw(st.lists(messages(spelled), min_size=1, max_size=6))
    for number, message in enumerate(found):
        write(message.header, message.body)
        if message.kind == "call":
            expected.calls.append((message.name, message.body))
        else:
            parts[message.kind].append(message.body)
        if number == len(found) - 1:
            write(draw(st.sampled_from(("<|return|>", "<|call|>", "<|end|>", ""))))
            break
        following = found[number + 1].header
        begins = [NEXT, NEXT + NEXT, f"assistant{NEXT}"]
        if following.startswith("<|channel|>"):
            begins += ["", "assistant", " "]
        begin = draw(st.sampled_from(begins))
        may_lack_end = (begin or following).startswith(("<|start|>", "<|channel|>"))
        write(draw(st.sampled_from(("<|end|>", "<|call|>", "") if may_lack_end else ("<|end|>", "<|call|>"))))
        write(begin)
    expected.thoughts = "\n".join(filter(None, parts["thought"]))
    expected.text = "\n".join(filter(None, parts["text"]))
    return Answer("".join(text), "".join(exact), expected)
