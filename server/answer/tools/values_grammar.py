"""Grammars of values that are not written as JSON, built from their JSON schemas.

A value is written by its types, enums and constants, objects by their properties in the schema's order, lists by their items.
Numbers keep all of their schema. Other keywords are refused for strict functions, and have no effect for others. Values nested
deeper than DEPTH are free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from server.answer.tools.notation import Arguments
from server.answer.tools.tagged import check_object, listed_values, standing_alone
from server.answer.tools.typed import ALL, kinds, properties_of, resolved
from server.grammar.lark import Lark

DEPTH = 8
MAX_RULES = 4096
"""Number of rules of one grammar."""
_OF_LISTS = frozenset({"minItems", "maxItems", "prefixItems", "contains", "uniqueItems"})


class ValuesGrammar(ABC):
    """Rules for the values of one grammar. One writer: the notation that builds it."""

    comma = ","
    words: Mapping[str, str] = {"true": "true", "false": "false", "null": "null"}

    def __init__(self, lark: Lark) -> None:
        self._lark = lark
        self._count = 0
        self._free = ""

    @abstractmethod
    def listed(self, value: Any) -> str:
        """An expression for exactly this value."""

    @abstractmethod
    def string(self, schema: Any, arguments: Arguments) -> str:
        """An expression for a string of this schema."""

    @abstractmethod
    def key(self, name: str, arguments: Arguments) -> str:
        """An expression for the name of a property and what comes between it and the value."""

    @abstractmethod
    def any_key(self, arguments: Arguments) -> str:
        """The same for any name."""

    def object(self, schema: Any, arguments: Arguments, depth: int) -> str:
        """An expression for an object: its properties in the schema's order."""
        return f'"{{" {self.members(schema, arguments, depth)} "}}"'

    def members(self, schema: Any, arguments: Arguments, depth: int) -> str:
        """The properties of an object, each behind a comma but the first."""
        if not isinstance(schema, Mapping):
            schema = {}
        check_object(schema, arguments)
        comma = self._lark.literal(self.comma)
        required = schema.get("required") or ()
        # From the last property to the first: what may follow if nothing, or something, has been written before.
        first = later = '""'
        if schema.get("additionalProperties", True) is not False:
            pair = self._rule(f"{self.any_key(arguments)} {self.free(arguments)}")
            later = self._rule(f"({comma} {pair})*")
            first = self._rule(f"({pair} {later})?")
        for name, one in reversed(
            [(name, one) for name, one in properties_of(schema).items() if one is not False]
        ):
            pair = self._rule(f"{self.key(name, arguments)} ({self.value(one, arguments, depth + 1)})")
            here, after = f"{pair} {later}", f"{comma} {pair} {later}"
            if name not in required:
                here, after = f"{here} | {first}", f"{after} | {later}"
            first, later = self._rule(here), self._rule(after)
        return first

    def value(self, schema: Any, arguments: Arguments, depth: int) -> str:
        """An expression for a value."""
        if self._count > MAX_RULES:
            arguments.refuse("it is too large for this model's tool format")
        if (values := listed_values(schema, arguments.schema)) is not None:
            return " | ".join(map(self.listed, values))
        allowed = kinds(schema, arguments.schema)
        if depth > DEPTH or allowed == ALL:
            return self.free(arguments)
        node = resolved(schema, arguments.schema)
        rules = []
        if "string" in allowed:
            rules.append(self.string(node, arguments))
        if "object" in allowed:
            rules.append(self.object(node, arguments, depth))
        if "array" in allowed:
            node = node if isinstance(node, Mapping) else {}
            if arguments.strict and (keywords := sorted(_OF_LISTS & node.keys())):
                arguments.refuse(f"'{keywords[0]}' cannot be enforced in this model's tool format")
            items = node.get("items")
            rules.append(self._list(self._rule(self.value(items, arguments, depth + 1))))
        if "integer" in allowed:
            numbers = {"type": "number" if "number" in allowed else "integer"}
            alone = allowed <= {"integer", "number"}
            rules.append(arguments.part(standing_alone(schema, arguments.schema) if alone else numbers))
        if "boolean" in allowed:
            rules += [self._lark.literal(self.words[one]) for one in ("true", "false")]
        if "null" in allowed:
            rules.append(self._lark.literal(self.words["null"]))
        return " | ".join(rules) or self.free(arguments)

    def free(self, arguments: Arguments) -> str:
        """A rule for any value."""
        if not self._free:
            self._free = "free"
            comma = self._lark.literal(self.comma)
            pair = f"{self.any_key(arguments)} free"
            words = " | ".join(map(self._lark.literal, self.words.values()))
            alternatives = (
                self.string({}, arguments), arguments.part({"type": "number"}), words, self._list("free"),
                f'"{{" ({pair} ({comma} {pair})*)? "}}"',
            )  # fmt: skip
            self._lark.rule("free", " | ".join(alternatives))
        return self._free

    def _list(self, item: str) -> str:
        return f'"[" ({item} ({self._lark.literal(self.comma)} {item})*)? "]"'

    def _rule(self, expression: str) -> str:
        return self._lark.rule(f"g_{self._next()}", expression)

    def _next(self) -> int:
        self._count += 1
        return self._count
