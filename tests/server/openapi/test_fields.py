"""Descriptions and rules stand on the wire types, and the description of the API says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.errors import InvalidRequest
from server.apis.tokens.schema import TokenizeRequest
from server.openapi.fields import FieldText, field_texts
from server.schemas.base import WireModel, parse
from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.embeddings import EmbeddingRequest
from server.schemas.structured import JsonSchemaFormat
from tests.server.api_schema import described, validator
from tests.server.fakes import House

USER = {"role": "user", "content": "Hi"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
NAMED = {"type": "function", "function": {"name": "f"}}


class Documented(WireModel):
    limit: int | None = None
    """vLLM: A text that is long enough
    for two lines. Default: 5."""
    bare: int | None = None


class Redefined(Documented):
    limit: int | None = None
    """Cohort: Another text."""


class Foreign(WireModel):
    limit: int | None = None
    """Nothing says where this comes from."""


def test_a_text_has_origin_meaning_and_default() -> None:
    assert field_texts(Documented) == {
        "limit": FieldText("vLLM", "A text that is long enough for two lines.", "5")
    }
    assert field_texts(Redefined) == {"limit": FieldText("Cohort", "Another text.", "")}


def test_a_text_without_an_origin_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"Foreign\.limit"):
        field_texts(Foreign)


def test_texts_are_found_by_the_names_that_clients_send() -> None:
    assert set(field_texts(JsonSchemaFormat)) == {"name", "description", "schema", "strict"}
    for model in (ChatRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest):
        assert set(field_texts(model)) == {
            field.alias or name for name, field in model.model_fields.items()
        }, model


def test_the_description_carries_text_origin_and_default() -> None:
    schemas = described()["components"]["schemas"]
    for model in (ChatRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest):
        for name, text in field_texts(model).items():
            about = schemas[model.__name__]["properties"][name]
            found = (about["x-origin"], about["description"], about.get("x-default", ""))
            assert found == tuple(text), (model, name)
    limits = [schemas[name]["properties"]["max_tokens"] for name in ("ChatRequest", "CompletionRequest")]
    assert [limit["x-default"] for limit in limits] == ["what fits the context", "16"]
    assert [limit["anyOf"][0]["minimum"] for limit in limits] == [1, 0]


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [USER], **more}


def says(role: str, *parts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return chat(messages=[USER, {"role": role, "content": list(parts)}])


RULES: list[tuple[tuple[str, dict[str, Any]], bool]] = [
    (says("user", {"type": "text", "text": "a"}), True),
    (says("user", {"type": "text"}), False),
    (says("user", {"type": "input_audio", "text": "a"}), False),
    (says("assistant", {"type": "refusal", "refusal": "a"}), True),
    (says("assistant", {"type": "refusal"}), False),
    (says("assistant", {"type": "thinking", "thinking": ["a"]}), True),
    (chat(messages=[{"role": "user"}]), False),
    (chat(messages=[USER, {"role": "assistant"}, USER]), True),
    (chat(tools=TOOLS, tool_choice="auto"), True),
    (chat(tools=TOOLS, tool_choice="f"), False),
    (chat(tools=TOOLS, tool_choice=NAMED), True),
    (chat(tools=TOOLS, tool_choice={"type": "function"}), False),
    (
        chat(
            tools=TOOLS,
            tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        ),
        True,
    ),
    (
        chat(
            tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
        ),
        False,
    ),
    (chat(truncate_prompt_tokens=-1), True),
    (chat(truncate_prompt_tokens=0), False),
    (("/tokenize", {"prompt": "a", "messages": None}), True),
    (("/tokenize", {"prompt": "a", "messages": [USER]}), False),
    (("/tokenize", {}), False),
]


@pytest.mark.parametrize(("call", "accepted"), RULES, ids=lambda value: json.dumps(value)[:80])
async def test_rules_that_types_do_not_say_are_described(
    house: House, call: tuple[str, dict[str, Any]], accepted: bool
) -> None:
    path, body = call
    name = {"/tokenize": "TokenizeRequest"}.get(path, "ChatRequest")
    assert validator(name).is_valid(body) == accepted
    response = await house.post(path, body)
    assert response.status_code == (200 if accepted else 400), response.text


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_both_names_of_the_output_limit(model: type[ChatRequest | CompletionRequest]) -> None:
    base = {"messages": [USER]} if model is ChatRequest else {"prompt": "Hi"}

    def limit(**more: int) -> tuple[int | None, str]:
        body = parse(model, json.dumps({**base, **more}).encode())
        return body.output_limit, body.output_limit_name

    assert limit() == (None, "max_tokens")
    assert limit(max_tokens=3) == (3, "max_tokens")
    assert limit(max_tokens=3, max_completion_tokens=5) == (5, "max_completion_tokens")
    with pytest.raises(InvalidRequest):
        limit(max_completion_tokens=0)
