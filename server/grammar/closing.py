"""Objects of a call's arguments, without names that the schema does not know.

A JSON schema that says nothing of other properties allows any. Functions take the parameters they have: a name made up on top
makes the call fail, and a small model that begins one may spell it until the context is full. So who writes `properties` and
says nothing of others gets those only, wherever leaving the others out is certain to keep the answer valid.
"""

from __future__ import annotations

from typing import Any

from server.grammar.schemas import DATA, MAPS

_TOGETHER = frozenset({"$ref", "allOf", "anyOf"})
"""What says something of the same object as the keywords beside it."""
_OF_OBJECTS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"}
)
_CONDITIONS = frozenset(
    {
        "oneOf", "not", "if", "then", "else", "contains", "dependentSchemas", "dependentRequired", "dependencies",
        "unevaluatedProperties", "extends", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
"""With these an object may be valid because of what a subschema does not allow, or of names that stand elsewhere."""


def closed_by_name(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` in each object that names properties and says nothing of others. Without any
    properties only the outermost is closed: a function without parameters. Further in it is how some write any object.

    All that the result allows, the schema allows too. Where that, or that the result allows anything, takes more than a look at
    each object by itself (conditions, `oneOf`, subschemas that describe one object together, required names that are not among
    the properties), the schema is returned as it is. Does not modify `schema`, which should have passed `check_size`.
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
    """Whether the named properties are enough for `required` and `minProperties`."""
    names, required, least = node["properties"], node.get("required", []), node.get("minProperties", 0)
    if not isinstance(names, dict) or not isinstance(required, list) or not isinstance(least, int):
        return False  # which the compiler refuses, in the words of the schema as it was sent
    names = {name for name, schema in names.items() if schema is not False}
    return all(isinstance(one, str) and one in names for one in required) and least <= len(names)


def _lists_objects(node: dict[str, Any]) -> bool:
    """Whether the values themselves are given, which may have names that the properties do not."""
    values = node.get("enum")
    return "const" in node or (isinstance(values, list) and any(isinstance(one, dict) for one in values))


def _children(node: dict[str, Any]) -> list[Any]:
    """Schemas and lists of schemas in a schema."""
    found: list[Any] = []
    for name, value in node.items():
        if name in MAPS and isinstance(value, dict):
            found.extend(value.values())
        elif name not in DATA:
            found.append(value)
    return found


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
