"""Objects of arguments are closed where that leaves each answer valid, and nowhere else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from server.grammar.closing import closed_by_name
from server.grammar.forms import json_part
from tests.json_schemas import Schemas
from tests.server.answer.tools.test_tool_grammars import byte_tokenizer

NAMED = {"type": "object", "properties": {"a": {"type": "string"}}}
CLOSED = {**NAMED, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (NAMED, CLOSED),
        ({"type": "object", "properties": {}}, {"type": "object", "properties": {}, "additionalProperties": False}),
        (
            {"properties": {"a": {"type": "object", "properties": {}}}},
            {"properties": {"a": {"type": "object", "properties": {}}}, "additionalProperties": False},
        ),
        ({**NAMED, "required": ["a"]}, {**CLOSED, "required": ["a"]}),
        ({"type": "array", "items": NAMED}, {"type": "array", "items": CLOSED}),
        ({"prefixItems": [NAMED]}, {"prefixItems": [CLOSED]}),
        ({"anyOf": [NAMED, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        ({"allOf": [NAMED], "default": {}}, {"allOf": [CLOSED], "default": {}}),
        (
            {"$ref": "#/$defs/properties", "$defs": {"properties": NAMED}},
            {"$ref": "#/$defs/properties", "$defs": {"properties": CLOSED}},
        ),
        ({"properties": {"properties": NAMED}}, {"properties": {"properties": CLOSED}, "additionalProperties": False}),
        ({"enum": [NAMED], "const": NAMED}, {"enum": [NAMED], "const": NAMED}),
        ({"additionalProperties": NAMED}, {"additionalProperties": CLOSED}),
    ],
)  # fmt: skip
def test_what_names_its_properties_is_closed(schema: dict[str, Any], closed: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert closed_by_name(schema) == closed
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**NAMED, "additionalProperties": True},
        {**NAMED, "additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^x": {}}},
        {**NAMED, "required": ["b"]},
        {**NAMED, "minProperties": 2},
        {"allOf": [NAMED, {"properties": {"b": {}}}]},
        {"$ref": "#/$defs/x", "properties": {"b": {}}, "$defs": {"x": NAMED}},
        {"anyOf": [NAMED, {"required": ["b"]}], "properties": {"b": {}}},
        {"anyOf": [NAMED], "$ref": "#/$defs/x", "$defs": {"x": NAMED}},
        {"anyOf": [NAMED], "required": ["b"]},
        {"oneOf": [NAMED, {"properties": {"b": {}}}]},
        {"if": NAMED, "then": {"required": ["b"]}},
        {"properties": {"deep": {"items": {"not": NAMED}}}},
        {**NAMED, "enum": [{"a": "x", "b": 1}, {"a": "y"}]},
        {"items": {**NAMED, "const": {"b": 1}}},
        {"properties": {"a": False}, "minProperties": 1},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": 3},
        {"properties": {}, "required": "b"},
        {"properties": {}, "required": [["b"]]},
        {"allOf": NAMED},
    ],
)
def test_what_says_otherwise_or_cannot_be_judged_alone_is_left(schema: dict[str, Any]) -> None:
    assert closed_by_name(schema) == schema


def test_what_a_closed_schema_lets_a_model_write_fits_the_schema_that_was_sent() -> None:
    """Random schemas, and answers that the grammar of each closed one leads a random writer to."""
    _, tokenizer, _ = byte_tokenizer(None)
    closed = written = 0
    for seed in range(1500):
        schema = Schemas(seed).make()
        if schema.get("type") != "object" or (ready := closed_by_name(schema)) == schema:
            continue
        grammar = json.dumps({"grammars": [{"name": "start", **json_part(ready, "p")}]})
        if LLMatcher.validate_grammar(grammar, tokenizer):
            open_ = json.dumps({"grammars": [{"name": "start", **json_part(schema, "p")}]})
            assert LLMatcher.validate_grammar(open_, tokenizer), schema
            continue
        closed += 1
        text = an_answer(LLMatcher(tokenizer, grammar), tokenizer, random.Random(seed))
        if text is None:
            continue
        written += 1
        Draft202012Validator(schema).validate(json.loads(text))
        Draft202012Validator(ready).validate(json.loads(text))
    assert closed > 100
    assert written > closed // 2


def an_answer(matcher: LLMatcher, tokenizer: LLTokenizer, chance: random.Random) -> str | None:
    """Written byte by byte, among those allowed; prefers to end what it has begun. None where it does not come to an end."""
    ids: list[int] = []
    quick = {tokenizer.tokenize_str(one)[0] for one in '"}],0:'}
    for _ in range(600):
        if matcher.is_accepting():
            return tokenizer.decode_str(ids)
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(tokenizer.vocab_size) if mask[i >> 3] >> (i & 7) & 1]
        if not allowed:
            return None
        ending = [one for one in allowed if one in quick]
        one = chance.choice(ending if ending and chance.random() < 0.8 else allowed)
        matcher.consume_token(one)
        ids.append(one)
    return None
