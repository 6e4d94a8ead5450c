"""Schemas of answers say what their types say, with every bound."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from msgspec import Meta, Raw

from server.openapi.derive import Derivation
from server.openapi.schema import closed


class Part(TypedDict):
    """A component."""

    text: str


class Other(TypedDict):
    """No component: it stands where it is used."""

    kind: Literal["other"]


class Whole(TypedDict):
    """Everything that a type can say."""

    name: Annotated[str, Meta(min_length=1, pattern="^a")]
    count: Annotated[int, Meta(ge=0, description="How many.")]
    parts: Annotated[list[Part], Meta(min_length=1, max_length=2)]
    either: Part | Other
    encoded: Part | Raw | None
    reason: Literal["stop", "length"] | None
    by_name: dict[str, float]
    plain: dict[str, Any]
    nothing: None
    late: NotRequired[bool]


def test_a_schema_has_every_constraint_of_the_type() -> None:
    derivation = Derivation({Part: "Part"})
    part = {"$ref": "#/components/schemas/Part"}
    assert derivation.component(Whole, "All.") == closed(
        {
            "name": {"type": "string", "minLength": 1, "pattern": "^a"},
            "count": {"type": "integer", "minimum": 0, "description": "How many."},
            "parts": {"type": "array", "items": part, "minItems": 1, "maxItems": 2},
            "either": {"oneOf": [part, closed({"kind": {"type": "string", "const": "other"}})]},
            "encoded": {"anyOf": [part, {"type": "null"}]},
            "reason": {"anyOf": [{"type": "string", "enum": ["stop", "length"]}, {"type": "null"}]},
            "by_name": {"type": "object", "additionalProperties": {"type": "number"}},
            "plain": {"type": "object"},
            "nothing": {"type": "null"},
        },
        {"late": {"type": "boolean"}},
        "All.",
    )
    assert derivation.component(Part) == closed({"text": {"type": "string"}})


def test_a_type_that_no_answer_has_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        Derivation({}).schema(set[int])
