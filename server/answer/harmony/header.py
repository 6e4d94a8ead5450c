"""The header of a message: role, channel, recipient and type of content, in whatever order a model writes them.

Models repeat parts, misspell channels, forget `<|message|>` and put the recipient before or behind the channel. No header is an
error: each one gives a kind of message, and its words are never part of a name or a text.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from server.answer.harmony.marks import (
    ANALYSIS,
    ASSISTANT,
    CHANNEL,
    COMMENTARY,
    CONSTRAIN,
    FINAL,
    MARKS,
    START,
)

CHANNELS = (ANALYSIS, COMMENTARY, FINAL)
FUNCTIONS = "functions."
"""Namespace of the functions that a client offers."""

_MIN_CHANNEL = 4
"""Number of letters from which the beginning of a channel's name stands for it."""
_PARTS = re.compile(f"([{MARKS[START]}{MARKS[CHANNEL]}{MARKS[CONSTRAIN]}])")
_RECIPIENT = re.compile(r"\s*to=([\w.:/-]*)")
_ROLE = re.compile(r"\s*(?:(?!to=)([\w.:/-]+))?")
_CHANNEL = re.compile(r"([^\w\s]*)\s*(?:(?!to=)([A-Za-z]+))?")
_TYPE = re.compile(r"\s*(?:json|code)\b", re.IGNORECASE)
_TYPE_WORD = re.compile(r"\s*\w*")
_OTHERS = ("user", "system", "developer", "tool")
"""Roles of which a message is no part of an answer."""
_SELF = frozenset({ASSISTANT, "user", "all", "self"})
"""Recipients that stand for no function: text for the user, or the model's own."""
_SUFFIXES = (*CHANNELS, "json", "code", ASSISTANT)
"""Words of a header that run into a function's name if a special token between them is missing."""


class Kind(Enum):
    """Kinds of messages."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"
    FOREIGN = "foreign"
    """A message of another role: the model goes on with the conversation by itself, and its answer has ended."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. `channel`: one of CHANNELS, "" for another or none. `name`: the called function, for a call.
    `rest`: text that belongs to no part of the header, which is the message's text if `<|message|>` is missing."""

    kind: Kind
    channel: str = ""
    name: str = ""
    rest: str = ""


def parsed(text: str, functions: Collection[str]) -> Header:
    """The header in a text with marks, up to and without `<|message|>`. `functions`: names of those on offer."""
    role = channel = recipient = ""
    rest: list[str] = []
    before, *pairs = _PARTS.split(text)
    for mark, part in [(MARKS[START], before), *zip(pairs[::2], pairs[1::2], strict=True)]:
        if mark == MARKS[START]:
            match = _ROLE.match(part)
            role, end = (match[1] or role, match.end()) if match else (role, 0)
        elif mark == MARKS[CHANNEL]:
            word, end = _channel(part)
            channel = word or channel
        else:
            match = _TYPE_WORD.match(part)
            end = match.end() if match else 0
        if match := _RECIPIENT.match(part, end):
            recipient, end = match[1] or recipient, match.end()
        if match := _TYPE.match(part, end):
            end = match.end()
        rest.append(part[end:])
    channel = channel or _known(role)
    kind, name = _kind(role, channel, recipient, functions)
    return Header(kind, channel, name, "".join(rest).lstrip())


def _channel(part: str) -> tuple[str, int]:
    """The channel that a part of a header names, "" for none, and where its name ends."""
    match = _CHANNEL.match(part)
    word = _known(match[2] or "") if match else ""
    return (word, match.end()) if match and word else ("", 0)


def _known(word: str) -> str:
    """The channel that a word stands for, with letters too few or too many; "" for none."""
    word = word.lower()
    for name in CHANNELS:
        if word.startswith(name) or (len(word) >= _MIN_CHANNEL and name.startswith(word)):
            return name
    return ""


def _kind(role: str, channel: str, recipient: str, functions: Collection[str]) -> tuple[Kind, str]:
    if role in _OTHERS or role.startswith(FUNCTIONS):
        return Kind.FOREIGN, ""
    if recipient and recipient not in _SELF:
        name = _function(recipient, functions)
        # The channel of a call is often "analysis". Without a function's name it is one of the model's own tools, there.
        if recipient.startswith(FUNCTIONS) or name in functions or channel != ANALYSIS:
            return Kind.CALL, name
    return (Kind.REASONING if channel == ANALYSIS else Kind.TEXT), ""


def _function(recipient: str, functions: Collection[str]) -> str:
    """The name of the function that a recipient means: one on offer, if possible."""
    name = recipient.removeprefix(FUNCTIONS)
    for candidate in (name, recipient, name.rpartition(".")[2]):
        if candidate in functions:
            return candidate
        for suffix in _SUFFIXES:
            if candidate.removesuffix(suffix) in functions:
                return candidate.removesuffix(suffix)
    return name or recipient


def may_begin(text: str) -> bool:
    """Whether a text without marks may be the beginning of a header. A beginning of a header's beginning is one, too."""
    text = text.lstrip()
    if ASSISTANT.startswith(text):
        return True
    text = text.removeprefix(ASSISTANT).lstrip()
    return "to=".startswith(text[:3]) and _OPEN.fullmatch(text) is not None


_OPEN = re.compile(r"(?:to?)?|to=[\w.:/-]*(?:\s+(?:j(?:s(?:on?)?)?|c(?:o(?:de?)?)?)?)?\s*")
