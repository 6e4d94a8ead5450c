"""Types of arguments in notations that write them as bare text: `5` is a number or a string as the function's schema says.

schema                         text       argument
{"type": "string"}             5          "5"
{"type": "integer"}            5          5
{"type": ["string", "null"]}   null       null
none                           5          5, and "Rome" for Rome
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from server.answer.tools.notation import Schema, json_text
from server.answer.tools.python_literals import python_json

ALL = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
TEXT_ONLY = frozenset({"string"})
MAX_SCHEMAS = 256
"""Number of schemas that are looked at for one type; the rest may allow anything."""
_DEPTH = 16
"""Number of references and alternatives that are followed one behind the other."""
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Words of Python that models write in place of JSON's."""


def kinds(schema: Any, root: Any) -> frozenset[str]:
    """The JSON types that a schema allows. References lead into `root`. Never raises, whatever the client sent, and looks at
    MAX_SCHEMAS schemas at most: references may lead in circles, and alternatives multiply them."""
    return _Kinds(root).of(schema, 0)


class _Kinds:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._num_left = MAX_SCHEMAS

    def of(self, schema: Any, depth: int) -> frozenset[str]:
        self._num_left -= 1
        if not isinstance(schema, Mapping) or depth > _DEPTH or self._num_left < 0:
            return ALL
        kinds_here = ALL
        if isinstance(reference := schema.get("$ref"), str):
            kinds_here &= self.of(_referred(reference, self._root), depth + 1)
        match schema.get("type"):
            case str(name):
                kinds_here &= _with_integers({name})
            case [*names]:
                kinds_here &= _with_integers({name for name in names if isinstance(name, str)})
        if isinstance(values := schema.get("enum"), list):
            kinds_here &= _with_integers(set(map(kind_of, values)))
        if "const" in schema:
            kinds_here &= _with_integers({kind_of(schema["const"])})
        for name in ("anyOf", "oneOf"):
            if isinstance(alternatives := schema.get(name), list):
                kinds_here &= frozenset().union(
                    *(self.of(one, depth + 1) for one in alternatives[:MAX_SCHEMAS])
                )
        if isinstance(together := schema.get("allOf"), list):
            for one in together[:MAX_SCHEMAS]:
                kinds_here &= self.of(one, depth + 1)
        return kinds_here


def properties_of(schema: Schema | None) -> Mapping[str, Any]:
    """The schemas of a function's parameters by name."""
    members = schema.get("properties") if isinstance(schema, Mapping) else None
    return members if isinstance(members, Mapping) else {}


def kind_of(value: Any) -> str:
    """The JSON type of a decoded value. A whole number is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def json_value(text: str, allowed: frozenset[str]) -> str:
    """The JSON of an argument that a model wrote as bare text. A value of a type that is not allowed is passed on as what it
    is, if there is no better reading: the client's own check names it."""
    if allowed == TEXT_ONLY:
        return json_text(text)
    stripped = _WORDS.get(text.strip(), text.strip())
    try:
        kind = kind_of(msgspec.json.decode(stripped))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        python = (
            python_json(stripped)
            if {"object", "array"} & allowed and stripped[:1] in ("{", "[", "(")
            else None
        )
        return python or json_text(text)
    if kind in allowed or "string" not in allowed:
        return stripped
    return json_text(text)


def resolved(schema: Any, root: Any) -> Any:
    """The schema that a chain of references leads to, without what stands beside them; the schema itself if there is none."""
    for _ in range(_DEPTH):
        if not (isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str)):
            break
        schema = _referred(reference, root)
    return schema


def _with_integers(names: set[str]) -> frozenset[str]:
    return frozenset(names | ({"integer"} if "number" in names else set()))


def _referred(reference: str, root: Any) -> Any:
    """The schema at a reference such as `#/$defs/city`; None if there is none."""
    if not reference.startswith("#"):
        return None
    node = root
    for key in reference[1:].split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node
