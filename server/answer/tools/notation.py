"""The interface of a notation of tool calls: the parser that reads calls, and the grammar that produces them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from server.answer.tools.parser import ToolParser
from server.grammar.lark import Lark


@dataclass(frozen=True)
class ToolNotation(ABC):
    """One notation. Stateless."""

    name: str

    @property
    @abstractmethod
    def literals(self) -> tuple[str, ...]:
        """Literals that may be special tokens of a model; only the parser sees them."""

    @abstractmethod
    def parser(self, names: frozenset[str], hidden: frozenset[str]) -> ToolParser:
        """A parser for one choice."""

    @abstractmethod
    def calls(self, lark: Lark, arguments: Mapping[str, str], several: bool) -> str:
        """A Lark expression for one call, or with `several` for one or more.

        `arguments` maps each function to the rule of its arguments, such as `@f0`.
        """

    @abstractmethod
    def calls_in_text(self, lark: Lark, arguments: Mapping[str, str], several: bool) -> str:
        """A Lark expression for text with any number of calls in it, or none (with `several` False at most one, and no text
        after it). Every call that the parser recognises follows `arguments`."""


def named_arguments(lark: Lark, arguments: Mapping[str, str], between: str) -> str:
    """Alternatives: each function's name as a JSON string, `between`, its arguments."""
    return " | ".join(
        f"{lark.literal(json.dumps(name) + between)} {rule}" for name, rule in arguments.items()
    )
