"""`param` of an error names the element at fault, not only the list that holds it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.errors import ContextLengthExceeded
from tests.server.fakes import MAX_MODEL_LEN, House, error_of

LONG = "x" * 200_000
"""More characters than fit."""
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
TEXT, VECTORS, RESPONSES, CHAT = "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/chat/completions"
IDS = [1] * (MAX_MODEL_LEN + 1)

PLACES: list[tuple[str, dict[str, Any], str]] = [
    (TEXT, {"prompt": ["a", "b", LONG]}, "prompt.2"),
    (TEXT, {"prompt": [LONG]}, "prompt.0"),
    (TEXT, {"prompt": LONG}, "prompt"),
    (TEXT, {"prompt": [[1], [2], IDS]}, "prompt.2"),
    (TEXT, {"prompt": IDS}, "prompt"),
    (TEXT, {"prompt": [[1], [99999]]}, "prompt.1"),
    (TEXT, {"prompt": [1, 99999]}, "prompt"),
    (TEXT, {"prompt": ["a", 5]}, "prompt.1"),
    (TEXT, {"prompt": [[1], [2, "x"]]}, "prompt.1.1"),
    (TEXT, {"prompt": [1, 2, "x"]}, "prompt.2"),
    (TEXT, {"prompt": ["a", ""], "add_special_tokens": False}, "prompt.1"),
    (VECTORS, {"input": ["a", LONG]}, "input.1"),
    (VECTORS, {"input": [LONG]}, "input.0"),
    (VECTORS, {"input": LONG}, "input"),
    (VECTORS, {"input": ["a", ""]}, "input.1"),
    (VECTORS, {"input": [[1], [2], [99999]]}, "input.2"),
    (VECTORS, {"input": ["a", 5]}, "input.1"),
    ("/v1/rerank", {"query": "a", "documents": ["b", LONG]}, "documents.1"),
    ("/v1/rerank", {"query": "a", "documents": ["b", 5]}, "documents.1"),
    ("/v1/score", {"text_1": "a", "text_2": ["b", LONG]}, "text_2.1"),
    (RESPONSES, {"input": [USER, {"role": "user", "content": [{"type": "input_text"}]}]}, "input.1.content.0.text"),
    (RESPONSES, {"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]}, "input.1.content.0.type"),
    (RESPONSES, {"input": [USER, {"role": "user", "content": 5}]}, "input.1.content"),
    (RESPONSES, {"input": [USER, {"role": "wizard", "content": "x"}]}, "input.1.role"),
    (RESPONSES, {"input": [USER, {"type": "function_call"}]}, "input.1.call_id"),
    (RESPONSES, {"input": [USER, OUTPUT]}, "input.1.call_id"),
    (RESPONSES, {"input": [USER, 5]}, "input.1"),
    (RESPONSES, {"input": [USER, CALL, OUTPUT]}, "input.1.arguments"),
    (CHAT, {"messages": [USER, USER, {"role": "user", "content": [{"type": "text"}]}]}, "messages.2.content.0.text"),
    (CHAT, {"messages": [USER, USER, {"role": "user"}]}, "messages.2.content"),
    (CHAT, {"messages": [USER, 5]}, "messages.1"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), PLACES, ids=lambda value: str(value)[:60])
async def test_the_element_at_fault_is_named(path: str, body: dict[str, Any], param: str) -> None:
    # A template that iterates over the members of calls' arguments.
    house = House(template="{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.items() }}"
                  "{% endfor %}{{ m.content }}{% endfor %}")  # fmt: skip
    response = await house.post(path, body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["param"] == param, error
    if "'" in error["message"]:
        assert re.search(rf"'{re.escape(param)}[.']", error["message"]) or "type '" in error["message"], error
    house.state.threads.close()


@pytest.mark.parametrize(
    ("body", "param"), [({"prompt": ["a", "b"]}, "prompt.0"), ({"prompt": "a"}, "prompt"), ({"prompt": [[1]]}, "prompt.0")]
)  # fmt: skip
async def test_what_the_engine_refuses_is_named(house: House, body: dict[str, Any], param: str) -> None:
    house.engine.refusal = ContextLengthExceeded("'{param}' is too long.", "prompt")
    for stream in (False, True):
        error = error_of(await house.post(TEXT, {**body, "stream": stream}))
        assert (error["param"], error["message"]) == (param, f"'{param}' is too long.")
    house.engine.refusal = ContextLengthExceeded("too long", "input")
    vectors = {"input": body["prompt"]}
    assert error_of(await house.post(VECTORS, vectors))["param"] == param.replace("prompt", "input")
