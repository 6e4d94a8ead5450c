"""The interface of a notation of tool calls: the parser that reads calls, the grammar that produces them, and calls as text."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.answer.tools.parser import CallParser, Functions
from server.grammar.lark import TEXT, Lark, spelled

Schema = Mapping[str, Any]
NamedCall = tuple[str, Mapping[str, Any]]
"""Type of a call that is known: the function's name and its arguments."""


@dataclass
class Arguments:
    """The arguments of one function in a grammar. `schema` describes an object; `part` adds the grammar of a JSON schema and
    returns the name of its rule; `refuse` raises the error for a schema that the notation cannot enforce; `strict` means that
    all of the schema must be enforced."""

    schema: Schema
    part: Callable[[Schema], str]
    refuse: Callable[[str], None]
    strict: bool = False
    _json: str = field(default="", init=False)

    @property
    def json(self) -> str:
        """The rule of the arguments as one JSON object."""
        if not self._json:
            self._json = self.part(self.schema)
        return self._json


@dataclass(frozen=True)
class ToolNotation(ABC):
    """One notation. Stateless."""

    name: str

    @property
    @abstractmethod
    def literals(self) -> tuple[str, ...]:
        """Literals that may be special tokens of a model; only the parser sees them."""

    @abstractmethod
    def parser(self, functions: Functions, hidden: frozenset[str]) -> CallParser:
        """A parser for one choice."""

    @abstractmethod
    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        """A Lark expression for one call, or with `several` for one or more. `arguments` are by the function's name."""

    @abstractmethod
    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        """A Lark expression for text with any number of calls in it, or none (with `several` False at most one, and no text
        after it). Every call that the parser recognises follows `arguments`."""

    @abstractmethod
    def written(self, calls: Sequence[NamedCall]) -> str:
        """The text with which a model makes these calls."""


@dataclass(frozen=True)
class OpenedNotation(ToolNotation):
    """A notation of which each block of calls begins with the same literal, `opening`."""

    @property
    @abstractmethod
    def opening(self) -> str:
        """The literal."""

    @property
    def other_openings(self) -> tuple[str, ...]:
        """Literals with which the parser accepts calls too, and that text beside calls must not contain."""
        return ()

    @abstractmethod
    def block(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        """A Lark expression for what follows `opening`: one call, or with `several` one or more."""

    @property
    def between(self) -> str | None:
        """Text between two blocks; None if all calls are in one block."""
        return None

    def calls(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        call = lark.rule("call", f"{lark.literal(self.opening)} {self.block(lark, arguments, several)}")
        if not several or self.between is None:
            return call
        return f"{call} ({lark.literal(self.between)} {call})*"

    def calls_in_text(self, lark: Lark, arguments: Mapping[str, Arguments], several: bool) -> str:
        forbidden = [TEXT + spelled(one) for one in self.other_openings]
        before = lark.text_before("before", self.opening, *forbidden)
        call = lark.rule("call", f"{before} {self.block(lark, arguments, several)}")
        rest = lark.text_without("rest", TEXT + spelled(self.opening), *forbidden)
        return f"{call}* {rest}" if several else f"{call} | {rest}"


def named_arguments(lark: Lark, arguments: Mapping[str, Arguments], between: str) -> str:
    """Alternatives: each function's name as a JSON string, `between`, its arguments."""
    return " | ".join(
        f"{lark.literal(json.dumps(name) + between)} {one.json}" for name, one in arguments.items()
    )


def call_object(call: NamedCall, key: str = "arguments") -> str:
    """A call as a JSON object."""
    name, arguments = call
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def json_string_piece(text: str) -> str:
    """A piece of a string, escaped as in JSON: the pieces add up to the escaped string."""
    return json_text(text)[1:-1]


def json_text(value: Any) -> str:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False)
