"""Objects of a call's arguments, without names that the schema does not list.

A JSON schema that does not mention additional properties allows any. Functions take only their own parameters: an invented name
makes the call fail, and a small model that begins one may go on until the context is full. So a schema with `properties` that
does not mention others allows only those, wherever omitting the others is certain to keep the answer valid.
"""

from __future__ import annotations

from typing import Any

from server.grammar.schemas import DATA, MAPS

_TOGETHER = frozenset({"$ref", "allOf", "anyOf"})
"""Keywords that constrain the same object as the keywords beside them."""
_OF_OBJECTS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"}
)
_CONDITIONS = frozenset(
    {
        "oneOf", "not", "if", "then", "else", "contains", "dependentSchemas", "dependentRequired", "dependencies",
        "unevaluatedProperties", "extends", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
"""Keywords with which an object may be valid because a subschema does not match, or because of names listed elsewhere."""


def closed_by_name(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` in each object that lists properties and does not mention others. Of objects
    without properties only the outermost is closed: a function without parameters. A nested one often means any object.

    The result allows nothing that the schema forbids. If this, or that the result allows any value at all, cannot be decided for
    each object separately (conditions, `oneOf`, subschemas that describe one object together, required names that are not among
    the properties), the schema is returned unchanged. Does not modify `schema`, which should have passed `check_size`.
    """
    if not _each_stands_alone(schema):
        return schema
    closed: dict[str, Any] = _closed(schema)
    if schema.get("properties") == {}:
        closed.setdefault("additionalProperties", False)
    return closed


def _each_stands_alone(node: Any) -> bool:
    if isinstance(node, list):
        return all(map(_each_stands_alone, node))
    if not isinstance(node, dict):
        return True
    together = len(_TOGETHER & node.keys())
    if _CONDITIONS & node.keys() or together > 1 or (together and _OF_OBJECTS & node.keys()):
        return False
    if "allOf" in node and not (isinstance(node["allOf"], list) and len(node["allOf"]) == 1):
        return False
    if _is_open(node) and (not _has_what_it_needs(node) or _lists_objects(node)):
        return False
    return all(map(_each_stands_alone, _children(node)))


def _is_open(node: dict[str, Any]) -> bool:
    return "properties" in node and "additionalProperties" not in node


def _has_what_it_needs(node: dict[str, Any]) -> bool:
    """Whether the listed properties satisfy `required` and `minProperties`."""
    names, required, least = node["properties"], node.get("required", []), node.get("minProperties", 0)
    if not isinstance(names, dict) or not isinstance(required, list) or not isinstance(least, int):
        return False  # which the compiler refuses, in the words of the schema as it was sent
    names = {name for name, schema in names.items() if schema is not False}
    return all(isinstance(one, str) and one in names for one in required) and least <= len(names)


def _lists_objects(node: dict[str, Any]) -> bool:
    """Whether the schema lists whole values, which may have names that are not among the properties."""
    values = node.get("enum")
    return "const" in node or (isinstance(values, list) and any(isinstance(one, dict) for one in values))


def _children(node: dict[str, Any]) -> list[Any]:
    """Schemas and lists of schemas in a schema."""
    children: list[Any] = []
    for name, value in node.items():
        if name in MAPS and isinstance(value, dict):
            children.extend(value.values())
        elif name not in DATA:
            children.append(value)
    return children


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    copy: dict[str, Any] = {}
    for name, value in node.items():
        if name in MAPS and isinstance(value, dict):
            copy[name] = {key: _closed(one) for key, one in value.items()}
        else:
            copy[name] = value if name in DATA else _closed(value)
    if node.get("properties") and _is_open(node):
        copy["additionalProperties"] = False
    return copy
