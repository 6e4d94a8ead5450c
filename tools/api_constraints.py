"""What the description of the API demands, in a line for each endpoint and each schema: a change that loses a constraint shows.

A line has a name, how many constraints of each kind are in it, and a digest of all of them with their places and values. What
stands in another schema counts there. `python -m tools.api_docs write` writes the lines to tests/server/openapi_constraints.txt.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

KINDS = frozenset(
    "additionalProperties const enum exclusiveMaximum exclusiveMinimum format maxItems maxLength maxProperties maximum minItems "
    "minLength minProperties minimum multipleOf pattern propertyNames required type uniqueItems $ref".split()
)
"""Keywords of JSON Schema that limit what is valid, and OpenAPI's `required` of parameters and bodies."""
_METHODS = ("get", "post", "put", "patch", "delete", "head")
_PROSE = ("description", "summary", "title", "example", "examples", "default", "tags", "operationId")
_NAMES = ("properties", "patternProperties", "$defs", "content", "responses", "headers", "dependentSchemas")
"""Keywords whose own keys are names, and no keywords."""


def constraints(node: Any, place: str = "", names: bool = False) -> Iterator[tuple[str, str, str]]:
    """Place, kind and value (as JSON) of each constraint below a node. `names`: the node's keys are names."""
    if isinstance(node, list):
        for number, one in enumerate(node):
            yield from constraints(one, f"{place}/{number}")
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if not names and (key in _PROSE or key.startswith("x-")):
            continue
        if not names and key in KINDS and not isinstance(value, dict):
            yield (
                place,
                key,
                json.dumps(sorted(value) if key == "required" and isinstance(value, list) else value),
            )
        else:
            yield from constraints(value, f"{place}/{key}", not names and key in _NAMES)


def lines(document: dict[str, Any]) -> list[str]:
    """A line for each operation and each schema of an OpenAPI document, in the order of their names."""
    parts = {
        f"{method.upper()} {path}": one
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        if method in _METHODS
    }
    return sorted(_line(name, part) for name, part in (parts | document["components"]["schemas"]).items())


def _line(name: str, part: Any) -> str:
    found = sorted(constraints(part))
    counts = Counter(kind for _, kind, _ in found)
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:10]
    return " ".join([f"{name}:", *(f"{kind}={counts[kind]}" for kind in sorted(counts)), digest])


def differences(before: list[str], now: list[str]) -> Iterator[str]:
    """What changed between two lists of lines, a sentence for each endpoint or schema."""
    old, new = (dict(line.split(": ", 1) for line in lines) for lines in (before, now))
    for name in sorted(old.keys() | new.keys()):
        match old.get(name), new.get(name):
            case str(one), None:
                yield f"{name} is gone, with {one}"
            case None, str(other):
                yield f"{name} is new, with {other}"
            case str(one), str(other) if one != other:
                was, is_now = one.split()[:-1], other.split()[:-1]
                lost = [word for word in was if word not in is_now]
                gained = [word for word in is_now if word not in was]
                yield (
                    f"{name}: {' '.join(lost)} became {' '.join(gained)}"
                    if lost or gained
                    else f"{name}: a value changed"
                )
