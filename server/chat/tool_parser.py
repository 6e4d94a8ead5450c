"""Tool calls in the Hermes and Qwen manner: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` in the text.

The parser takes text as it comes and gives back events: text to show, or a finished call. From `<tool_call>` on it holds
the text back until the closing tag, so a client gets one call in one piece. What turns out to be no call is text after all.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    """A finished tool call. `index` counts from 0 within a choice; `arguments` is JSON in a string."""

    index: int
    id: str
    name: str
    arguments: str

    def as_message_part(self) -> dict[str, Any]:
        """The form it has in a message that is not streamed."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


Event = str | Call


class _WrittenCall(msgspec.Struct):
    """What the model writes. The arguments stay as they were written: parsing them is the client's."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


class ToolParser:
    """Reads one choice's text. Modified by `push` and `finish` only."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self.num_calls = 0

    def push(self, text: str) -> list[Event]:
        """More text; returns what is certain by now, in order."""
        self._held += text
        events: list[Event] = []
        while True:
            if self._inside:
                body, closed, rest = self._held.partition(CLOSE)
                if not closed:
                    return events
                events.append(self._call(body) or f"{OPEN}{body}{CLOSE}")
                self._inside, self._held = False, rest
            else:
                before, opened, rest = self._held.partition(OPEN)
                if not opened:
                    # Blanks wait too: before a call they are notation, before anything else they are shown.
                    certain = len(before[: len(before) - _length_of_partial(before)].rstrip())
                    self._show(events, before[:certain])
                    self._held = before[certain:]
                    return events
                self._show(events, before.rstrip())
                self._inside, self._held = True, rest

    def finish(self) -> list[Event]:
        """The choice ended: a call without its closing tag counts if its JSON is whole."""
        held, self._held = self._held, ""
        if not self._inside:
            events: list[Event] = []
            self._show(events, held)
            return events
        self._inside = False
        return [self._call(held) or OPEN + held]

    def _show(self, events: list[Event], text: str) -> None:
        if text and not (self.num_calls and text.isspace()):
            events.append(text)

    def _call(self, body: str) -> Call | None:
        try:
            call = msgspec.json.decode(body.strip(), type=_WrittenCall)
            arguments = bytes(call.arguments or call.parameters or b"{}").decode()
            if arguments.startswith('"'):
                arguments = msgspec.json.decode(arguments, type=str)
        except (msgspec.DecodeError, RecursionError):
            return None
        made = Call(self.num_calls, f"call_{secrets.token_hex(12)}", call.name, arguments)
        self.num_calls += 1
        return made


def _length_of_partial(text: str) -> int:
    """How many characters at the end may be the beginning of OPEN."""
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-length:]):
            return length
    return 0
