"""gpt-oss: a call is a message to a function, on the channel "commentary" (OpenAI's Harmony format).

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Rome"}<|call|>
     to=functions.f<|channel|>commentary json<|message|>{"city": "Rome"}<|call|>         as gpt-oss' template writes it

An answer's other messages are split by server/answer/reasoning/harmony.py, which hands calls on. The model's answer ends with
its first call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from server.answer.reasoning.harmony import (
    CALL,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    END,
    FINAL,
    LITERALS,
    MESSAGE,
    NEXT,
    START,
)
from server.answer.tools.notation import Arguments, NamedCall, ToolNotation, json_text
from server.answer.tools.parser import NAME, Functions, ToolParser, Wait
from server.grammar.lark import Lark

_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_MAX_PARTS = 4
"""Parts of a header between its special tokens: role and recipient, channel, type of content."""


class HarmonyParser(ToolParser):
    """Parser of this notation. The end of a call's message is never shown."""

    opening = (CHANNEL, START, CALL, END)
    closing = (CALL, END)

    def _parse(self) -> Wait[None]:
        after_call = yield from self._headless()
        while opening := (yield from self._outside()):
            if opening in (CHANNEL, START) and (yield from self._message()):
                after_call = True
            elif opening in (CALL, END) and after_call:
                after_call, self._mark = False, None
            else:
                self._no_call()

    def _headless(self) -> Wait[bool]:
        """Read a call at the beginning of the answer, of which the prompt has opened the header. True if there is one."""
        self._stay()
        char = yield from self._next()
        self._at -= len(char)
        if (yield from self._one_of("to=functions.")):
            self._at -= len("to=functions.")
            if (yield from self._message()):
                return True
        self._go_back()
        return False

    def _message(self) -> Wait[bool]:
        """Read a message from within its header on. True if it was a call."""
        header: list[str] = []
        while len(header) < _MAX_PARTS:
            header.append((yield from self._word("<")))
            mark = yield from self._one_of(MESSAGE, CHANNEL, CONSTRAIN)
            if mark == MESSAGE:
                break
            if not mark:
                return False
        else:
            return False
        recipient = _RECIPIENT.search(" ".join(header))
        if recipient is None or not NAME.fullmatch(recipient[1]):
            return False
        char = yield from self._next()
        self._at -= len(char)
        if char != "{":
            return False
        yield from self._named(recipient[1])
        return True


class Harmony(ToolNotation):
    """The notation described in the module's docstring."""

    @property
    def literals(self) -> tuple[str, ...]:
        return LITERALS

    def parser(self, functions: Functions, hidden: frozenset[str]) -> ToolParser:
        return HarmonyParser(functions, hidden)

    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        end = lark.literal(f" {CONSTRAIN}json{MESSAGE}")
        choices = " | ".join(
            f"{lark.literal(f'{CHANNEL}{COMMENTARY} to=functions.{name}')} {end} {one.json}"
            for name, one in arguments.items()
        )
        return lark.rule("call", choices)

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        call = self.calls(lark, arguments, several)
        preamble = lark.rule(
            "preamble",
            f"{lark.literal(CHANNEL + COMMENTARY + MESSAGE)} {lark.text_before('before', END)} {lark.literal(NEXT)}",
        )
        final = lark.literal(CHANNEL + FINAL + MESSAGE)
        spelled = "".join(f" & ~/(?s:.*){re.escape(one)}(?s:.*)/" for one in (CHANNEL, START))
        text = lark.rule("FINAL", f"/(?s:.*)/{spelled}")
        return f"{preamble}? ({call} | {final} {text})"

    def written(self, calls: Sequence[NamedCall]) -> str:
        return NEXT.join(
            f"{CHANNEL}{COMMENTARY} to=functions.{name} {CONSTRAIN}json{MESSAGE}{json_text(arguments)}{CALL}"
            for name, arguments in calls
        )
