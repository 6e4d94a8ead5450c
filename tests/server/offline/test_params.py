"""`StructuredOutputsParams` asks for what a mapping with the same names asks for."""

from __future__ import annotations

from typing import Any

import pytest

from cohort_server import SamplingParams, StructuredOutputsParams
from engine.errors import InvalidRequest
from server.grammar.forms import constraint_of
from server.schemas.base import parse
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    "given",
    [
        {"json": SCHEMA},
        {"json": SCHEMA, "disable_any_whitespace": True},
        {"regex": "a+"},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "a"'},
        {"json_object": True, "whitespace_pattern": " ?"},
    ],
    ids=lambda given: " ".join(given),
)
def test_same_grammar_as_a_mapping(given: dict[str, Any]) -> None:
    found = []
    for asked in (StructuredOutputsParams(**given), given):
        params = SamplingParams(structured_outputs=asked)
        found.append(constraint_of(parse(CompletionRequest, params.completion_body("Hi"))))
        found.append(constraint_of(parse(ChatRequest, params.chat_body(MESSAGES))))
    assert found[0] is not None
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("given", [{}, {"regex": "a", "choice": ["a"]}])
def test_not_exactly_one_is_refused(given: dict[str, Any]) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**given))
    with pytest.raises(InvalidRequest, match="exactly one of"):
        constraint_of(parse(CompletionRequest, params.completion_body("Hi")))
