"""DSPy's language models and embedder, and a program by a signature."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from tests.clients.samples import COUNT, COUNTED, HUGO, HUGO_IS, WEATHER, Person, numbers


class Plain(dspy.Adapter):
    """The input alone as the prompt, and the answer as the output: the tiny model follows no longer prompts."""

    def format(self, signature: Any, demos: Any, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": inputs["text"]}]

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return {"answer": completion}


@pytest.fixture(params=["openai", "hosted_vllm"])
def lm(request: pytest.FixtureRequest, url: str, api_key: str, model: str) -> Any:
    return dspy.LM(
        f"{request.param}/{model}", api_base=f"{url}/v1", api_key=api_key, temperature=0, max_tokens=300, cache=False,
        num_retries=0,
    )  # fmt: skip


def test_plain(lm: Any) -> None:
    [text] = lm(messages=[{"role": "user", "content": COUNT}])
    assert numbers(text if isinstance(text, str) else text["text"]) == COUNTED


def test_structured_output_and_a_forced_call(lm: Any) -> None:
    """What its adapters send to the server, which they would do with a model that follows their prompts."""
    [text] = lm(messages=[{"role": "user", "content": HUGO}], response_format=Person)
    assert Person.model_validate_json(text if isinstance(text, str) else text["text"]) == HUGO_IS
    tools = [{"type": "function", "function": WEATHER}]
    for beside in ({}, {"response_format": Person}):
        asked = {"messages": [{"role": "user", "content": COUNT}], "tools": tools, "tool_choice": "required"}
        [answer] = lm(**asked, **beside)
        [call] = answer["tool_calls"]
        assert call.function.name == "get_weather"


def test_predict_by_a_signature(lm: Any) -> None:
    """A whole program: the adapter's prompt, the answer in its notation, and the parsed field."""

    class Count(dspy.Signature):
        """Count."""

        text: str = dspy.InputField()
        answer: str = dspy.OutputField()

    with dspy.context(lm=lm, adapter=Plain()):
        assert numbers(dspy.Predict(Count)(text=COUNT).answer) == COUNTED


def test_embedder(url: str, api_key: str, model: str) -> None:
    embedder = dspy.Embedder(f"openai/{model}", api_base=f"{url}/v1", api_key=api_key, caching=False)
    one, two = embedder(["One", "Two"])
    assert len(one) == len(two)
    assert list(one) != list(two)
