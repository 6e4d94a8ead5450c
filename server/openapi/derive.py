"""JSON schemas of answers, made from the TypedDicts that the encoders fill (`server.schemas.answers`).

    class                        closed object, `NotRequired` members optional
    Literal                      const or enum
    A | B of classes             oneOf, an entry for each `type` that a class may have; any other union: anyOf
    Annotated[T, Meta(...)]      bounds, pattern and description
    Raw                          left out: a member that may be given as encoded JSON

A class or alias that is a component of its own is referred to by its name.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from server.openapi.schema import BOOLEAN, INTEGER, NUMBER, STRING, Schema, closed, ref

_PLAIN: dict[Any, Schema] = {
    str: STRING,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    None: {"type": "null"},
    type(None): {"type": "null"},
    Any: {},
}
_TYPE_OF = {str: "string", int: "integer"}


class Derivation:
    """Schemas of types. `names`: names of the components, by type."""

    def __init__(self, names: Mapping[Any, str]) -> None:
        self._names = names

    def component(self, kind: Any, description: str = "") -> Schema:
        """The schema of a component itself."""
        schema = self._expand(kind)
        return {"description": description, **schema} if description else schema

    def schema(self, kind: Any) -> Schema:
        """The schema of a type, or a reference to its component. Raises TypeError for a type that no answer may have."""
        try:
            name = self._names.get(kind)
        except TypeError:  # an annotation with a dict in it
            name = None
        return self._expand(kind) if name is None else ref(name)

    def _expand(self, kind: Any) -> Schema:
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        if is_typeddict(kind):
            return self._object(kind)
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated(args[0], args[1:])
        if origin is Literal:
            return _literal(args)
        if origin in (Union, types.UnionType):
            return self._union(args)
        if origin in (list, Sequence):
            return {"type": "array", "items": self.schema(args[0])}
        if origin in (dict, Mapping):
            members = self.schema(args[1])
            return {"type": "object", **({"additionalProperties": members} if members else {})}
        raise TypeError(f"{kind}: not a type of answers")

    def _object(self, kind: Any) -> Schema:
        required: dict[str, Schema] = {}
        optional: dict[str, Schema] = {}
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if get_origin(hint) is NotRequired:
                optional[name] = self.schema(get_args(hint)[0])
            else:
                required[name] = self.schema(hint)
        return closed(required, optional)

    def _union(self, args: Iterable[Any]) -> Schema:
        kinds = [kind for kind in args if kind is not msgspec.Raw]
        schemas = [self.schema(kind) for kind in kinds]
        if len(schemas) == 1:
            return schemas[0]
        if all(map(is_typeddict, kinds)):
            return {"oneOf": [variant for schema in schemas for variant in _variants(schema)]}
        return {"anyOf": schemas}

    def _annotated(self, kind: Any, annotations: Iterable[Any]) -> Schema:
        schema = self.schema(kind)
        length = "Items" if schema.get("type") == "array" else "Length"
        for meta in annotations:
            assert isinstance(meta, msgspec.Meta), meta
            limits = {
                "minimum": meta.ge,
                f"min{length}": meta.min_length,
                f"max{length}": meta.max_length,
                "pattern": meta.pattern,
                "description": meta.description,
            }
            schema |= {name: limit for name, limit in limits.items() if limit is not None}
        if schema.get("type") == "object" and "description" in schema:
            schema = {"description": schema.pop("description"), **schema}
        return schema


def _variants(schema: Schema) -> Iterable[Schema]:
    """A schema for each `type` that an object may have: tools tell the members of a union apart by it."""
    kind = schema.get("properties", {}).get("type", {})
    if "enum" not in kind:
        yield schema
        return
    for value in kind["enum"]:
        yield {**schema, "properties": {**schema["properties"], "type": {"type": "string", "const": value}}}


def _literal(values: tuple[Any, ...]) -> Schema:
    kind = _TYPE_OF.get(type(values[0]))
    typed: Schema = {} if kind is None else {"type": kind}
    return typed | ({"const": values[0]} if len(values) == 1 else {"enum": list(values)})
