"""Random JSON schemas, from a seed: what clients send, in every mixture."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = (r"^[A-Z]{3}-[0-9]{2,4}$", r"^(yes|no|maybe)$", "[aeiou]", r"^\w+@\w+\.com$", r"^[^x]{1,5}$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "duration", "hostname")
NAMES = ("name", "age", "tags", "id", "price", "is open", "größe", "a/b", "x", "address", "unit\t1", 'qu"ote')
WORDS = ("red", "green", "blau", "", "ü", 'a"b', "a\\b", "line\nbreak", "true", "7")


class Schemas:
    """One generator of schemas; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._defs: dict[str, Any] = {}

    def make(self) -> dict[str, Any]:
        """A whole schema, with its definitions."""
        self._defs = {}
        root = self._object(3) if self._random.random() < 0.7 else self._any(3)
        if self._random.random() < 0.1:
            root = self._list_of_itself()
        if self._defs:
            root["$defs"] = self._defs
        return root

    def _any(self, depth: int) -> dict[str, Any]:
        plain = [
            self._string,
            self._integer,
            self._number,
            self._enum,
            self._const,
            self._boolean,
            self._several,
        ]
        nested = [self._object, self._array, self._any_of, self._reference, self._all_of, self._one_of]
        choose = self._random.choice(plain + nested * 2 if depth > 0 else plain)
        made: dict[str, Any] = choose(depth - 1)
        if self._random.random() < 0.2:
            made["description"] = "said by nobody"
        return made

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(0, 4))
        made: dict[str, Any] = {"type": "object", "properties": {n: self._any(depth - 1) for n in names}}
        required = [name for name in names if self._random.random() < 0.6]
        if required or self._random.random() < 0.5:
            made["required"] = required
        match self._random.randint(0, 4):
            case 0 | 1:
                made["additionalProperties"] = False
            case 2:
                made["additionalProperties"] = self._any(0)
            case 3:
                made["patternProperties"] = {"^p_[a-z]+$": self._any(0)}
                made["additionalProperties"] = self._any(0)
        if self._random.random() < 0.15 and len(required) == len(names):
            if made.get("additionalProperties") is not False:
                made["minProperties"] = len(required) + 1
            made["maxProperties"] = len(required) + self._random.randint(1, 3)
        return made

    def _array(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "array", "items": self._any(depth - 1)}
        if self._random.random() < 0.6:
            made["minItems"] = self._random.randint(0, 3)
        if self._random.random() < 0.7:
            made["maxItems"] = made.get("minItems", 0) + self._random.randint(0, 3)
        if self._random.random() < 0.2:
            made["prefixItems"] = [self._any(0) for _ in range(self._random.randint(1, 2))]
            if self._random.random() < 0.5:
                made["items"] = False
                made.pop("minItems", None)
        return made

    def _string(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"type": "string"}
        match self._random.randint(0, 4):
            case 0:
                made["pattern"] = self._random.choice(PATTERNS)
            case 1:
                made["format"] = self._random.choice(FORMATS)
            case 2:
                made["minLength"] = self._random.randint(0, 5)
                made["maxLength"] = made["minLength"] + self._random.randint(0, 10)
            case 3:
                made["maxLength"] = self._random.randint(0, 12)
        return made

    def _integer(self, depth: int) -> dict[str, Any]:
        made = {
            "type": "integer",
            **self._bounds(self._random.randint(-300, 300), self._random.randint(2, 400)),
        }
        if self._random.random() < 0.15:
            made["multipleOf"] = self._random.choice((2, 3, 5))
        return made

    def _number(self, depth: int) -> dict[str, Any]:
        low = round(self._random.uniform(-50, 50), 2)
        return {"type": "number", **self._bounds(low, round(self._random.uniform(0.5, 100), 2))}

    def _bounds(self, low: float, width: float) -> dict[str, Any]:
        made: dict[str, Any] = {}
        if self._random.random() < 0.7:
            made[self._random.choice(("minimum", "exclusiveMinimum"))] = low
        if self._random.random() < 0.7:
            made[self._random.choice(("maximum", "exclusiveMaximum"))] = round(low + width, 2)
        return made

    def _enum(self, depth: int) -> dict[str, Any]:
        values: list[Any] = self._random.sample(WORDS, 3)
        values += self._random.sample((1, 2.5, None, True, [1, "a"], {"k": "v"}, -3), 2)
        return {"enum": values}

    def _const(self, depth: int) -> dict[str, Any]:
        return {"const": self._random.choice((*WORDS, 0, 1.25, None, False, [], {"a": {"b": [1]}}))}

    def _boolean(self, depth: int) -> dict[str, Any]:
        return {"type": self._random.choice(("boolean", "null"))}

    def _several(self, depth: int) -> dict[str, Any]:
        return {"type": self._random.sample(("string", "integer", "null", "boolean"), 2)}

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._any(depth - 1) for _ in range(self._random.randint(1, 3))]}

    def _one_of(self, depth: int) -> dict[str, Any]:
        """Told apart by a constant, as programs write unions."""
        kinds = self._random.sample(("cat", "dog", "bird"), 2)
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, "value": self._any(0)},
                    "required": ["kind"],
                }
                for kind in kinds
            ]
        }

    def _all_of(self, depth: int) -> dict[str, Any]:
        left, right = self._random.sample(NAMES, 2)
        return {
            "allOf": [
                {"type": "object", "properties": {left: self._any(0)}, "required": [left]},
                {"type": "object", "properties": {right: self._any(0)}},
            ]
        }

    def _reference(self, depth: int) -> dict[str, Any]:
        if not self._defs or self._random.random() < 0.5:
            name = f"d{len(self._defs)}"
            self._defs[name] = {}  # reserves the name
            self._defs[name] = self._any(depth - 1)
        else:
            name = self._random.choice(list(self._defs))
        return {"$ref": f"#/$defs/{name}"}

    def _list_of_itself(self) -> dict[str, Any]:
        self._defs["node"] = {
            "type": "object",
            "properties": {
                "value": self._any(0),
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
        return {"$ref": "#/$defs/node"}
