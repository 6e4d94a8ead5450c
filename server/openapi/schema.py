"""Pieces of JSON schemas of answers."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def array(items: Schema, **limits: int) -> Schema:
    """A list of items of one schema."""
    return {"type": "array", "items": items, **limits}


def ref(name: str) -> Schema:
    """Reference to a component by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def closed(required: Schema, optional: Schema | None = None, description: str = "") -> Schema:
    """An object with these members and no others."""
    schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return {"description": description, **schema} if description else schema


def const(value: str) -> Schema:
    """Schema of a single text."""
    return {"type": "string", "const": value}


def one_of(*values: str) -> Schema:
    """Schema of several texts."""
    return {"type": "string", "enum": list(values)}
