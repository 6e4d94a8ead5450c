"""docs/api.md and the table of constraints from the wire types and tables of the server: `python -m tools.api_docs write|check`.

The prose is in api_docs_text.py. Every table is derived, so it cannot promise what the server does not do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from server.apis.description import OPERATIONS, document_of
from server.apis.dialects import DIALECTS
from server.http.auth import is_admin
from server.openapi.operation import Operation
from server.schemas import extras
from tools import api_constraints
from tools import api_docs_text as text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
CONSTRAINTS = ROOT / "tests" / "server" / "openapi_constraints.txt"

Schema = dict[str, Any]
Rows = Sequence[Sequence[str]]


def main(argv: Sequence[str]) -> int:
    """Write both files, or print which of them are stale; `write-json PATH` writes the description itself, for a release."""
    match list(argv):
        case ["write-json", target]:
            Path(target).write_text(
                json.dumps(document_of(DIALECTS), indent=1, ensure_ascii=False) + "\n", "utf-8"
            )
            return 0
        case ["write" | "check"]:
            pass
        case _:
            print("usage: python -m tools.api_docs write|check|write-json PATH", file=sys.stderr)
            return 2
    found = {PAGE: page(), CONSTRAINTS: "\n".join(api_constraints.lines(document_of(DIALECTS))) + "\n"}
    stale = [path for path, text in found.items() if not path.exists() or path.read_text("utf-8") != text]
    if list(argv) == ["write"]:
        for path in stale:
            path.write_text(found[path], "utf-8")
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is stale: run `make api-docs`", file=sys.stderr)
    return 1 if stale else 0


def page() -> str:
    """docs/api.md."""
    schemas: dict[str, Schema] = document_of(DIALECTS)["components"]["schemas"]
    parts = [
        text.INTRODUCTION,
        _endpoints(),
        text.KEYS,
        text.HEADERS,
        text.ERRORS,
        text.STREAMS,
        text.PARAMETERS,
    ]
    shown: set[str] = set()
    for operation in OPERATIONS:
        if operation.request is not None:
            parts += _endpoint(operation, schemas, shown)
    parts += [text.OTHERS, *_answers(), text.LIMITS]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _endpoints() -> str:
    rows = []
    for one in OPERATIONS:
        key = (
            ""
            if one.keyless
            else "`--metrics-key`"
            if one.own_key
            else "admin"
            if is_admin(one.path)
            else "yes"
        )
        link = one.summary if one.request is None else f"[{one.summary}](#{_anchor(one)})"
        rows.append((f"`{one.method.upper()} {one.path}`", link, key))
    return _table(("Endpoint", "What it does", "Key"), rows)


def _anchor(operation: Operation) -> str:
    """The anchor that GitHub makes of the heading."""
    kept = "".join(c for c in f"{operation.method} {operation.path}" if c.isalnum() or c in " _-")
    return kept.replace(" ", "-").lower()


def _endpoint(operation: Operation, schemas: dict[str, Schema], shown: set[str]) -> Iterator[str]:
    """A section: parameters, objects within them that were not shown before, refused and ignored parameters."""
    model = operation.request
    assert model is not None
    body = schemas[model.__name__]
    yield f"## {operation.method.upper()} {operation.path}"
    yield f"{operation.summary}. {operation.description}".strip()
    yield _fields(body)
    for name in _inside(body, schemas):
        if name not in shown:
            shown.add(name)
            yield f"**{name}**. {_line(schemas[name].get('description', ''))}"
            yield _fields(schemas[name])
    fields = set(body["properties"])
    refused = {name: f"{_line(reason)}" for name, reason in model.rules.refused.items()}
    for name, neutral in model.rules.unsupported.items():
        if name not in fields:
            refused.setdefault(name, _refusal(neutral, extras.hint(name, model)))
    if refused:
        yield f"Refused with 400 (null is always accepted): {_listed(refused)}."
    ignored = ", ".join(f"`{name}`" for name in sorted(extras.HARMLESS - fields))
    yield f"Ignored, and listed in `x-cohort-ignored`: {ignored}, and unknown keys."
    first = next(iter(operation.examples.values()))
    yield f"```json\n{json.dumps(first, indent=2)}\n```"


def _refusal(neutral: extras.Values, hint: str | None) -> str:
    told = []
    if neutral:
        told.append("accepted: " + " or ".join(json.dumps(value) for value in neutral))
    if hint is not None:
        told.append(hint)
    return "; ".join(told)


def _listed(refused: dict[str, str]) -> str:
    return ", ".join(
        f"`{name}`" + (f" ({reason})" if reason else "") for name, reason in sorted(refused.items())
    )


def _fields(schema: Schema) -> str:
    required = schema.get("required", ())
    fields = sorted(schema["properties"].items(), key=lambda item: item[0] not in required)
    rows = [
        (
            f"`{name}`",
            kind(field),
            "required" if name in required else field.get("x-default", "none"),
            field["x-origin"],
            field["description"],
        )
        for name, field in fields
    ]
    return _table(("Parameter", "Type and range", "Default", "From", "Meaning"), rows)


def _inside(schema: Any, schemas: dict[str, Schema]) -> list[str]:
    """The names of the objects in a body, in the order in which they occur."""
    found: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                walk(one)
        elif isinstance(node, dict):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.append(name)
                walk(schemas[name])
            for one in node.values():
                walk(one)

    walk(schema)
    return found


def kind(schema: Schema) -> str:
    """A schema in a few words: `integer, 1 to 128`."""
    for union in ("anyOf", "oneOf"):
        if union in schema:
            members = [kind(one) for one in schema[union] if one.get("type") != "null"]
            return "; or ".join(dict.fromkeys(members))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            items = kind(schema["items"])
            return f"list of {f'({items})' if ',' in items else items}{_bounds(schema, 'Items', '')}"
        case "object":
            return f"object{_bounds(schema, 'Properties', 'keys')}"
        case "string":
            pattern = f" matching `{schema['pattern']}`" if "pattern" in schema else ""
            return f"string{_bounds(schema, 'Length', 'characters')}{pattern}".replace("|", "\\|")
        case "integer" | "number" as number:
            return f"{number}{_range(schema)}"
        case None:
            return "anything"
        case other:
            return str(other)


def _bounds(schema: Schema, what: str, unit: str) -> str:
    low, high = schema.get(f"min{what}"), schema.get(f"max{what}")
    if low is None and high is None:
        return ""
    unit = f" {unit}" if unit else ""
    if low and high is not None:
        return f", {low} to {high}{unit}"
    return f", at most {high}{unit}" if high is not None else f", at least {low}{unit}"


def _range(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    if isinstance(high, int) and abs(high) >= 2**31 - 1:
        return ", 64 bits" if isinstance(low, int) and low < -(2**31) else f", at least {low}"
    return f", {low} to {high}" if high is not None else f", at least {low}"


def _answers() -> Iterator[str]:
    for one in OPERATIONS:
        if one.request is None:
            statuses = ", ".join(["200", *map(str, sorted({*one.errors, *([503] if one.not_ready else [])}))])
            yield f"**`{one.method.upper()} {one.path}`**. {_line(f'{one.summary}. {one.description}')} Statuses: {statuses}."


def _line(words: str) -> str:
    return " ".join(words.split())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_line(cell) for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
