"""Of the fixed list, what is to be compiled: schemas, regular expressions, grammars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.hostile.case import Hostile, call, raw
from tests.hostile.fields import CHAT, COMPLETION, VALID, bad

_S: dict[str, Any] = {"type": "string"}


def constraints() -> Iterator[Hostile]:
    """Schemas, expressions and grammars that are refused by their size or at the first look."""
    kind = "constraints"
    deep: dict[str, Any] = _S
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    schemas: list[Any] = [
        deep, {"enum": [f"v{i}" for i in range(5000)]}, {"enum": []}, {"enum": ["x" * 100_000]}, {"type": "wizard"},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:1/schema.json"}, {"$ref": "file:///etc/passwd"}, {"type": "object", "properties": 5},
        {"type": "string", "pattern": "("}, {"type": "string", "pattern": "(?<=a)b\\1"}, {"type": "string",
        "minLength": 5, "maxLength": 2},
        {"type": "integer", "minimum": 5, "maximum": 1}, {"not": {}}, {"type": "integer", "multipleOf": 0},
        {"x-guidance": {"a": 1}},
        {"properties": {f"p{i}": _S for i in range(20_000)}, "type": "object"}, {"type": "string", "format": 3},
        {"type": "number", "minimum": raw("NaN")}, {"type": "number", "minimum": raw("1e999")}, {"type": "string",
        "minLength": -1},
    ]  # fmt: skip
    for schema in schemas:
        for path in (CHAT, COMPLETION):
            format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            yield bad(kind, path, "response_format", response_format=format_)
        yield bad(kind, CHAT, "structured_outputs", structured_outputs={"json": schema})
        forced = {"type": "function", "function": {"name": "f", "parameters": schema}}
        yield bad(kind, CHAT, None, tools=[forced], tool_choice="required")
    for wrong in (
        {"regex": "("}, {"regex": "a{5,2}"}, {"regex": "\\"}, {"regex": "x" * 70_000}, {"regex": "(?P=a)"}, {"regex": "(?=a)b"},
        {"grammar": "start: missing"}, {"grammar": "{{"}, {"grammar": "root ::= nothing"}, {"grammar": "x" * 70_000},
        {"grammar": ""},
        {"choice": []}, {"choice": ["x" * 70_000]}, {"choice": ["x"] * 2000}, {"choice": [5]}, {"json": "{"}, {"json": "5"},
        {"json": "[" * 50_000}, {}, {"regex": "a", "choice": ["a"]}, {"json_object": False},
        {"json_object": True, "whitespace_pattern": "a"},
        {"regex": "a", "nonsense": 1}, {"structural_tag": "x"},
    ):  # fmt: skip
        yield bad(kind, COMPLETION, "structured_outputs", structured_outputs=wrong)
    for format_ in (
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "xml"},
        {"type": 5},
        {},
        {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
    ):
        yield bad(kind, CHAT, "response_format", response_format=format_)


def bombs() -> Iterator[Hostile]:
    """What would take a compiler minutes or gigabytes; each may take its deadline."""
    for regex in (".*" * 20_000, "(a{1000}){1000}", "(b{999}){1000}", "(" * 5000 + ")" * 5000):
        yield call(
            "bombs",
            COMPLETION,
            {**VALID[COMPLETION], "structured_outputs": {"regex": regex}},
            "structured_outputs",
            turns=True,
        )
    for grammar in (
        "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000,
        "start: " + "(" * 20_000 + '"a"' + ")" * 20_000,
    ):
        yield call(
            "bombs",
            CHAT,
            {**VALID[CHAT], "structured_outputs": {"grammar": grammar}},
            "structured_outputs",
            turns=True,
        )
    for schema in (
        {"type": "integer", "multipleOf": 1_000_003},
        {"type": "string", "pattern": "(a{1000}){1000}", "minLength": 500, "maxLength": 100_000},
    ):
        format_ = {"type": "json_schema", "json_schema": {"name": "bomb", "schema": schema}}
        yield call("bombs", CHAT, {**VALID[CHAT], "response_format": format_}, "response_format", turns=True)
