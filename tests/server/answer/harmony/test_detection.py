"""Which answers are read as Harmony: by the chat template, by the model's tokens, or because the operator says so."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from server.answer.choice import Reading
from server.answer.harmony.history import HarmonyHistory
from server.answer.harmony.marks import LITERALS, MARKS, marked
from server.answer.notation import ModelNotation, model_notation
from server.answer.reasoning import Place
from server.schemas.tool_choice import Function, ToolChoice
from server.templates.template import ChatTemplate
from tests.server.answer.harmony.messages import Seen, seen
from tests.server.templates import template_shapes
from tests.server.templates.harmony_shape import HARMONY

IDS = {literal: 200_000 + number for number, literal in enumerate(LITERALS)}
NO_CALLS = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{{ tools }}<|start|>assistant<|channel|>"
)
"""A template that shows tools, and neither calls nor reasoning."""
ANSWER = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
)


@dataclass
class Tokens:
    """A vocabulary's added tokens, which are special."""

    added_tokens: dict[str, int] = field(default_factory=lambda: dict(IDS))
    byte_level: bool = True

    def is_special(self, token_id: int) -> bool:
        return token_id >= 200_000


def notation_of(
    template: str = HARMONY,
    tokens: Tokens | None = None,
    tools: str | None = None,
    reasoning: str | None = None,
    asks: bool = True,
) -> ModelNotation:
    return model_notation(tokens or Tokens(), ChatTemplate(template, {}), tools, reasoning, asks=asks)


def names(notation: ModelNotation) -> tuple[str, str]:
    return notation.facts["tool_calls"], notation.facts["reasoning"]


def answer_of(notation: ModelNotation) -> Seen:
    choice = ToolChoice("auto", (Function(0, "f", None, False),))
    text = marked(ANSWER) if notation.marks else ANSWER
    return seen([text], Reading(notation, choice, Place.UNDECIDED, lambda token_id: b"").parser())


@pytest.mark.parametrize(
    "notation",
    [
        notation_of(),
        notation_of(NO_CALLS),
        notation_of(asks=False),
        notation_of(template_shapes.CHATML, tools="openai"),
        notation_of(template_shapes.CHATML, tools="openai", reasoning="openai_gptoss"),
        notation_of(template_shapes.CHATML, reasoning="openai_gptoss"),
        notation_of(tokens=Tokens({})),
        notation_of(tokens=Tokens(byte_level=False)),
    ],
    ids=[
        "template",
        "tokens",
        "hung",
        "name of calls",
        "both names",
        "name of reasoning",
        "no tokens",
        "no bytes",
    ],
)
def test_harmony(notation: ModelNotation) -> None:
    assert names(notation) == ("openai", "openai_gptoss") and not notation.unknown
    assert answer_of(notation) == Seen("Hm.", "I look.", [("f", "{}")])


def test_marks_stand_for_tokens() -> None:
    assert notation_of().marks == {IDS[literal]: mark for literal, mark in MARKS.items()}
    assert not notation_of(tokens=Tokens(byte_level=False)).marks, "other decoders join tokens"
    assert not notation_of(tokens=Tokens({one: IDS[one] for one in LITERALS[1:]})).marks
    assert not notation_of(template_shapes.TOOLS_IN_XML_AND_THINKING, tools="hermes").marks


def test_the_operator_turns_a_half_off() -> None:
    """Reasoning is text then, and calls are no calls; headers are shown in no case."""
    assert answer_of(notation_of(reasoning="none")) == Seen("", "Hm.\nI look.", [("f", "{}")])
    assert answer_of(notation_of(tools="none")) == Seen("Hm.\n{}", "I look.")
    raw = notation_of(tools="none", reasoning="none")
    assert not raw.is_harmony and not raw.marks


def test_another_format_of_calls() -> None:
    notation = notation_of(tools="hermes")
    assert names(notation) == ("hermes", "openai_gptoss") and not notation.marks
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    choice = ToolChoice("auto", (Function(0, "f", None, False),))
    parser = Reading(notation, choice, Place.UNDECIDED, lambda token_id: b"").parser()
    text = f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>I look.{call}<|return|>"
    assert seen([*text], parser) == Seen("Hm.", "I look.", [("f", "{}")])


def test_what_a_template_can_show_is_found_by_rendering() -> None:
    """A template that lacks the limits of gpt-oss' own is left to show what it can."""
    template = ChatTemplate(HARMONY, {})
    model_notation(Tokens(), template, None, None)
    assert template.history == HarmonyHistory(False, False, False)
    able = ChatTemplate(
        "{% for m in messages %}<|start|>{{ m.role }}<|channel|>analysis<|message|>{{ m.thinking }}|{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<|channel|>commentary to=functions.{{ c.function.name }}<|constrain|>json<|message|>"
        "{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% endfor %}{{ tools }}",
        {},
    )
    assert names(model_notation(Tokens(), able, None, None)) == ("openai", "openai_gptoss")
    assert able.history == HarmonyHistory(True, True, True)
    other = ChatTemplate(template_shapes.CHATML, {})
    model_notation(Tokens({}), other, None, None)
    assert other.history is None
