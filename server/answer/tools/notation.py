"""How one kind of model writes calls: the parser that reads it, and the grammar that makes it."""

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
        """Notation that may be special tokens of a model; they are shown to the parser and to nobody else."""

    @abstractmethod
    def parser(self, names: frozenset[str], hidden: frozenset[str]) -> ToolParser:
        """A parser for one choice."""

    @abstractmethod
    def calls(self, lark: Lark, arguments: Mapping[str, str], several: bool) -> str:
        """A Lark expression for one call, or with `several` for any number from one on.

        `arguments` has for each function the rule that its arguments follow, such as `@f0`.
        """

    @abstractmethod
    def calls_in_text(self, lark: Lark, arguments: Mapping[str, str], several: bool) -> str:
        """A Lark expression for text with any number of calls in it, from none on (with `several` False at most one, and
        nothing after it). What the parser takes for a call keeps to `arguments`."""


def named_arguments(lark: Lark, arguments: Mapping[str, str], between: str) -> str:
    """Alternatives: each function's name as a JSON string, `between`, its arguments."""
    return " | ".join(
        f"{lark.literal(json.dumps(name) + between)} {rule}" for name, rule in arguments.items()
    )
