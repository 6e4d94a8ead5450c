"""gpt-oss: a call is a message to a function (OpenAI's Harmony format, server/answer/harmony/).

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Rome"}<|call|>
     to=functions.f<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>         as gpt-oss' template writes it

The model's answer ends with its first call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from server.answer.harmony.marks import (
    CALL,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    FINAL,
    LITERALS,
    MESSAGE,
    NEXT,
    START,
)
from server.answer.reasoning.base import Thought
from server.answer.reasoning.harmony import preamble
from server.answer.tools.events import Event
from server.answer.tools.harmony_parser import HarmonyParser
from server.answer.tools.notation import Arguments, NamedCall, ToolNotation, json_text
from server.answer.tools.parser import CallParser, Functions
from server.grammar.lark import TEXT, Lark


class HarmonyCalls:
    """Calls in a text with spelled literals; all else is text. It reads what templates write. Answers of a model are read by
    `HarmonyParser` itself."""

    def __init__(self, functions: Functions) -> None:
        self._parser = HarmonyParser(functions, apart=False)

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""
        return self._parser.num_calls

    @property
    def num_finished(self) -> int:
        """Number of calls that are complete."""
        return self._parser.num_finished

    def push(self, text: str) -> list[Event]:
        """Take more text; returns the events that are certain by now, in order."""
        return [one for one in self._parser.push(text) if not isinstance(one, Thought)]

    def finish(self, cut_before: str | None = None) -> list[Event]:
        """End the text."""
        pieces = self._parser.push("", last=True, cut_before=cut_before)
        return [one for one in pieces if not isinstance(one, Thought)]


class Harmony(ToolNotation):
    """The notation described in the module's docstring."""

    @property
    def literals(self) -> tuple[str, ...]:
        return LITERALS

    def parser(self, functions: Functions, hidden: frozenset[str]) -> CallParser:
        return HarmonyCalls(functions)

    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        usual, written = (
            lark.literal(f" {CONSTRAIN}json{MESSAGE}"),
            lark.literal(f"{CHANNEL}{COMMENTARY} json{MESSAGE}"),
        )
        choices = [
            alternative
            for name, one in arguments.items()
            for alternative in (
                f"{lark.literal(f'{CHANNEL}{COMMENTARY} to=functions.{name}')} {usual} {one.json}",
                f"{lark.literal(f' to=functions.{name}')} {written} {one.json}",
            )
        ]
        return lark.rule("call", " | ".join(choices))

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        call, before = self.calls(lark, arguments, several), preamble(lark)
        # Spelled out, these would begin another message; as tokens they are no text.
        forbidden = [one for one in (CHANNEL, START) if not lark.is_token(one)]
        spelled = "".join(f" & ~/{TEXT}{re.escape(one)}{TEXT}/" for one in forbidden)
        text = lark.rule("FINAL", f"/{TEXT}/{spelled}")
        return f"{before}? ({call} | {lark.literal(CHANNEL + FINAL + MESSAGE)} {text})"

    def written(self, calls: Sequence[NamedCall]) -> str:
        return NEXT.join(
            f"{CHANNEL}{COMMENTARY} to=functions.{name} {CONSTRAIN}json{MESSAGE}{json_text(arguments)}{CALL}"
            for name, arguments in calls
        )
