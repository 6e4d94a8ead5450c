"""Mistral's own names on chat: honoured, without effect, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.fakes import House, error_of

FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


async def test_any_forces_a_call_as_required_does(house: House) -> None:
    grammars = []
    for choice in ("any", "required"):
        house.engine.requests.clear()
        await house.chat(tools=TOOLS, tool_choice=choice)
        grammars.append(house.asked().grammar)
    assert grammars[0] == grammars[1] is not None
    response = await house.chat(tool_choice="any")
    assert (response.status_code, error_of(response)["param"]) == (400, "tool_choice")


async def test_types_of_tools_and_choices_may_be_left_out(house: House) -> None:
    asked = []
    for tools, choice in (
        (TOOLS, {"type": "function", "function": {"name": "f"}}),
        ([{"function": FUNCTION}], {"function": {"name": "f"}}),
    ):
        house.engine.requests.clear()
        await house.chat(tools=tools, tool_choice=choice)
        asked.append((house.asked().prompts, house.asked().grammar))
    assert asked[0] == asked[1]
    assert asked[0][1] is not None


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_random_seed_is_the_seed(house: House, route: str) -> None:
    ask = getattr(house, route)
    for body in ({"random_seed": 7}, {"random_seed": 7, "seed": 7}, {"random_seed": 7.0, "seed": None}):
        house.engine.requests.clear()
        response = await ask(**body)
        assert response.status_code == 200, response.text
        assert "x-cohort-ignored" not in response.headers
        assert house.asked().seed == 7
    house.engine.requests.clear()
    for seeds in ((0, 7), (7, 0), (-1, 7)):
        response = await ask(seed=seeds[0], random_seed=seeds[1])
        assert (response.status_code, error_of(response)["param"]) == (400, "random_seed")
    assert not house.engine.requests


async def test_what_the_sdk_sends_by_default_has_no_effect(house: House) -> None:
    body: dict[str, Any] = {
        "safe_prompt": False, "parallel_tool_calls": True, "prompt_mode": None, "guardrails": None, "stream": False,
    }  # fmt: skip
    response = await house.chat(**body)
    assert response.status_code == 200, response.text
    assert "x-cohort-ignored" not in response.headers
    prediction = {"type": "content", "content": "Hello"}
    response = await house.chat(prediction=prediction, metadata={"a": 1})
    assert (response.status_code, response.headers["x-cohort-ignored"]) == (200, "prediction, metadata")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("safe_prompt", True),
        ("prompt_mode", "reasoning"),
        ("guardrails", [{"block_on_error": True}]),
        ("top_prompt_logprobs", 2),
        ("prompt_logprobs", True),
    ],
)
async def test_what_changes_the_result_is_refused(house: House, name: str, value: Any) -> None:
    response = await house.chat(**{name: value})
    assert (response.status_code, error_of(response)["param"]) == (400, name)
    assert "only /v1/chat" not in error_of(response)["message"]  # which is this path


async def test_dimension_of_vectors(house: House) -> None:
    response = await house.post("/v1/embeddings", {"input": "a", "output_dimension": 8})
    assert (response.status_code, error_of(response)["param"]) == (400, "output_dimension")
    assert "'dimensions'" in error_of(response)["message"]
