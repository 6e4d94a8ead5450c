"""A constraint that the API's description loses is named, whatever its kind and place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.apis.description import document_of
from server.apis.dialects import DIALECTS
from tools import api_constraints, api_docs

BEFORE = api_constraints.lines(document_of(DIALECTS))
REQUEST = "ChatRequest"


def changed(change: Callable[[dict[str, Any]], object]) -> list[str]:
    """What is said of a description after `change`."""
    one = copy.deepcopy(document_of(DIALECTS))
    change(one)
    return list(api_constraints.differences(BEFORE, api_constraints.lines(one)))


def properties(document: dict[str, Any]) -> dict[str, Any]:
    found = document["components"]["schemas"][REQUEST]["properties"]
    assert isinstance(found, dict)
    return found


def with_kind(node: Any, kind: str) -> dict[str, Any]:
    """The first object below a node that has a keyword."""
    if isinstance(node, dict) and kind in node and not isinstance(node[kind], dict):
        return node
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return next((found for one in inner if (found := with_kind(one, kind))), {})


KINDS = "additionalProperties const enum exclusiveMaximum maxItems maxLength maximum minItems minLength minimum type".split()


@pytest.mark.parametrize("kind", KINDS)
def test_a_constraint_that_is_gone_is_named(kind: str) -> None:
    [told] = changed(lambda one: with_kind(properties(one), kind).pop(kind))
    assert told.startswith(f"{REQUEST}: ") and f"{kind}=" in told


def test_other_changes_are_named() -> None:
    def other_limit(one: dict[str, Any]) -> None:
        with_kind(properties(one), "maximum")["maximum"] += 1

    def moved(one: dict[str, Any]) -> None:
        """The same counts, at another place."""
        found = properties(one)
        found["temperature"], found["top_p"] = found["top_p"], found["temperature"]

    assert changed(other_limit) == changed(moved) == [f"{REQUEST}: a value changed"]
    assert changed(lambda one: one["components"]["schemas"][REQUEST].pop("required"))
    assert "is gone" in changed(lambda one: one["components"]["schemas"].pop("Error"))[0]
    assert "is new" in changed(lambda one: one["paths"].update({"/v9": {"get": {}}}))[0]
    assert changed(lambda one: one["paths"]["/v1/requests"]["get"]["parameters"].clear())


def test_prose_and_order_are_no_constraints() -> None:
    def retold(one: dict[str, Any]) -> None:
        field = properties(one)["temperature"]
        field["description"] = "Something else."
        field["x-default"] = "7"
        schemas = one["components"]["schemas"]
        schemas[REQUEST]["properties"] = dict(reversed(properties(one).items()))
        schemas[REQUEST]["required"] = schemas[REQUEST]["required"][::-1]

    assert changed(retold) == []


def test_properties_are_no_keywords() -> None:
    """A field may be called as a keyword is."""
    schema = {
        "properties": {"type": {"type": "string"}, "pattern": {"maxLength": 3}, "description": {"minimum": 1}}
    }
    assert sorted(kind for _, kind, _ in api_constraints.constraints(schema)) == [
        "maxLength",
        "minimum",
        "type",
    ]


def test_the_table_is_short_and_says_what_changed() -> None:
    """`make api-docs` takes a change that is meant."""
    kept = api_docs.CONSTRAINTS.read_text("utf-8").splitlines()
    assert len(kept) < 400 and list(api_constraints.differences(kept, BEFORE)) == []


def test_the_description_is_written_for_a_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert api_docs.main(["write-json", str(tmp_path / "openapi.json")]) == 0
    assert json.loads((tmp_path / "openapi.json").read_text("utf-8")) == document_of(DIALECTS)
    assert api_docs.main(["write-json"]) == 2 and "write-json PATH" in capsys.readouterr().err
