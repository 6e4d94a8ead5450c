"""Checks of JSON schemas before they are compiled: their size, and keywords that the compiler would silently ignore.

llguidance itself refuses standard keywords that it does not support (`not`, `if`, `uniqueItems`, ...). Keywords that do not
restrict values (annotations, and each `format` that the compiler does not know) are removed: it would refuse these too.
Keywords that it accepts but does not enforce are refused here:

- bounds of numbers that a float cannot hold exactly: it computes with floats;
- `minProperties` that only repeated names could satisfy: it does not keep names of additional properties distinct;
- strings in `enum` and `const` that JSON can only write with `\\u` escapes. These are disabled: a name or string written in
  a second way would evade the rules for the first.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from engine.errors import FIELD, InvalidRequest
from server.schemas.structured import MAX_CONSTRAINT_BYTES

MAX_DEPTH = 100
"""Greatest nesting of objects and lists; a nested object of a schema takes two levels."""
MAX_ENUM_ENTRIES = 1024
MAX_GRAMMAR_LENGTH = 512 * 1024
"""Greatest length of all parts of a grammar together, in characters."""

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
DATA = frozenset({"enum", "const", "default", "examples", "example"})
_OLD = frozenset({"divisibleBy", "extends", "disallow"})
"""Keywords of JSON schema draft 3 that later drafts do not have: their sender believes that they have an effect."""
FORMATS = frozenset(
    {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
"""Formats that the compiler enforces. In JSON schema (2020-12, validation, 7.2.1) every other format is an annotation."""
_DRAFT = re.compile(r"https?://json-schema\.org/(draft-0[3467]|draft/20(?:19-09|20-12))/schema#?")
"""Dialects that the compiler knows. It takes any other for the address of a file, which it cannot fetch."""
_URI = re.compile(r"(?:[\w.~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*#?|#[\w.-]+", re.ASCII)
_UNWRITABLE = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")


def check_size(value: Any, param: str) -> int:
    """The approximate size of JSON data in bytes. Raises InvalidRequest if it is too large or too deep. Stops at the limit,
    however large the data is."""
    size, waiting = 0, [(value, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise refusal(param, f"it should be nested at most {MAX_DEPTH} deep")
        if isinstance(node, dict | list):
            size += 2 + len(node)
            if size <= MAX_CONSTRAINT_BYTES:
                if isinstance(node, dict):
                    size += sum(map(len, node))
                    waiting.extend((one, depth + 1) for one in node.values())
                else:
                    waiting.extend((one, depth + 1) for one in node)
        elif isinstance(node, str):
            size += len(node)
        elif isinstance(node, float) and not math.isfinite(node):
            raise refusal(param, "its numbers should be finite")
        else:
            size += 1
        if size > MAX_CONSTRAINT_BYTES:
            raise refusal(param, f"it should have at most {MAX_CONSTRAINT_BYTES} bytes")
    return size


def prepared_schema(schema: dict[str, Any], param: str, closed: bool = False) -> dict[str, Any]:
    """The schema for the compiler, without keywords that have no effect (`uniqueItems: false`, ...). `closed`: objects that list
    their properties have no others. Does not modify `schema`. Raises InvalidRequest."""
    check_size(schema, param)
    if "x-guidance" in schema:
        raise refusal(param, "'x-guidance' is not supported in a schema")
    ready: dict[str, Any] = _Walk(param, closed).schema(schema)
    text = json.dumps(ready, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode("utf-8", "replace")) > MAX_CONSTRAINT_BYTES:
        raise refusal(param, f"it should have at most {MAX_CONSTRAINT_BYTES} bytes")
    return ready


def refusal(param: str, reason: str) -> InvalidRequest:
    """The error for a value at fault."""
    return InvalidRequest(f"Invalid value for '{FIELD}': {reason}.", param=param, code="invalid_value")


def _close_zero(node: dict[str, Any]) -> None:
    """Move an exclusive bound of 0: the compiler treats 0 as greater than `exclusiveMinimum` 0 if the other bound is below 1, and
    likewise from below. A bound close to 0 allows slightly less than requested, and nothing else. Modifies `node`."""
    for open_, closed, others, sign in (
        ("exclusiveMinimum", "minimum", ("maximum", "exclusiveMaximum"), 1.0),
        ("exclusiveMaximum", "maximum", ("minimum", "exclusiveMinimum"), -1.0),
    ):
        if not _is_number(node.get(open_)) or node[open_] != 0:
            continue
        if closed in node and not _is_number(node[closed]):
            continue  # which the compiler refuses
        bounds = [sign * node[name] for name in others if _is_number(node.get(name))]
        if bounds and 0 < min(bounds) < 1:
            node.pop(open_)
            least = sign * min(1e-9, min(bounds) / 1000)
            own_bound = node.get(closed)
            node[closed] = (
                max(least, own_bound, key=lambda one: sign * one) if _is_number(own_bound) else least
            )


def _says_nothing(name: str, value: Any) -> bool:
    """Whether a keyword that the compiler does not support has a value that allows everything."""
    if name == "propertyNames":  # which are texts anyway; Zod writes it for each record
        return value is True or value in ({}, {"type": "string"})
    if name == "format":
        return value is None or (isinstance(value, str) and value not in FORMATS)
    if name == "$schema":
        return value is None or (isinstance(value, str) and not _DRAFT.fullmatch(value))
    if name in ("$id", "id"):  # a title, where it is no address
        return isinstance(value, str) and not _URI.fullmatch(value)
    return name == "uniqueItems" and value is False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _Walk:
    """Copies a schema. Unknown keywords may hold schemas too, since `$ref` can point anywhere."""

    def __init__(self, param: str, closed: bool) -> None:
        self._param, self._closed = param, closed

    def schema(self, node: Any) -> Any:
        if isinstance(node, list):  # `items` of old drafts, or an unknown keyword
            return [self.schema(one) for one in node]
        if not isinstance(node, dict):
            return node
        self._check(node)
        copy = {
            name: self._keyword(name, value) for name, value in node.items() if not _says_nothing(name, value)
        }
        _close_zero(copy)
        if self._closed and ("properties" in copy or "patternProperties" in copy):
            copy.setdefault("additionalProperties", False)
        return copy

    def _keyword(self, name: str, value: Any) -> Any:
        if name in DATA:
            return value
        if name == "$schema" and isinstance(value, str) and (draft := _DRAFT.fullmatch(value)):
            scheme = "http" if draft[1].startswith("draft-0") else "https"
            return f"{scheme}://json-schema.org/{draft[1]}/schema"
        if name in MAPS and isinstance(value, dict):
            return {key: self.schema(one) for key, one in value.items()}
        return self.schema(value)

    def _check(self, node: dict[str, Any]) -> None:
        for name in _NUMBERS:
            self._check_number(name, node.get(name))
        if old := _OLD & node.keys():
            raise refusal(self._param, f"'{min(old)}' is not supported in a schema")
        for name in _LISTS & node.keys():
            if not isinstance(node[name], list):
                raise refusal(self._param, f"'{name}' should be a list of schemas")
        values = node.get("enum")
        if isinstance(values, list):
            if len(values) > MAX_ENUM_ENTRIES:
                raise refusal(self._param, f"an 'enum' should have at most {MAX_ENUM_ENTRIES} entries")
            self._check_texts(values)
        self._check_texts(node.get("const"))
        self._check_min_properties(node)

    def _check_number(self, name: str, value: Any) -> None:
        if isinstance(value, bool):
            raise refusal(self._param, f"'{name}' should be a number")
        if isinstance(value, int) and (abs(value) >= 2**63 or int(float(value)) != value):
            raise refusal(
                self._param, f"'{name}' {str(value)[:40]} cannot be enforced exactly; use a bound below 2**53"
            )

    def _check_min_properties(self, node: dict[str, Any]) -> None:
        least, required = node.get("minProperties"), node.get("required")
        certain = len(set(map(str, required))) if isinstance(required, list) else 0
        if isinstance(least, int) and least > certain + 1:
            reason = (
                f"'minProperties' {least} is not supported beside {certain} required properties: it can be one more "
                "than those"
            )
            raise refusal(self._param, reason)

    def _check_texts(self, value: Any) -> None:
        if isinstance(value, str):
            if _UNWRITABLE.search(value):
                raise refusal(self._param, "its texts should have no control characters")
        elif isinstance(value, dict):
            for one in (*value, *value.values()):
                self._check_texts(one)
        elif isinstance(value, list):
            for one in value:
                self._check_texts(one)
