"""Pydantic AI: agents with functions and typed output, by Chat Completions, Responses and Ollama's model class.

Its forms of output: a tool whose call is forced, the response format beside functions ("native"), and the schema in the prompt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.tools import ToolDefinition

from tests.clients.samples import COUNT, COUNTED, HUGO, HUGO_IS, PARIS, Person, numbers

SETTINGS: Any = {"temperature": 0, "max_tokens": 200}


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel], ids=["chat", "responses"])
def served(request: pytest.FixtureRequest, url: str, api_key: str, model: str) -> Model:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0)
    return request.param(model, provider=OpenAIProvider(openai_client=client))  # type: ignore[no-any-return]


def get_weather(city: str) -> str:
    """Get the weather of a city"""
    return f"It is sunny in {city}."


def calls(messages: list[Any]) -> list[ToolCallPart]:
    return [
        part
        for one in messages
        if isinstance(one, ModelResponse)
        for part in one.parts
        if isinstance(part, ToolCallPart)
    ]


def test_text_and_stream(served: Model, loop: asyncio.Runner) -> None:
    agent = Agent(served, model_settings=SETTINGS, instructions="You are a helpful assistant.")

    async def ask() -> tuple[str, str, Any]:
        whole = await agent.run(COUNT)
        async with agent.run_stream(COUNT) as stream:
            text = "".join([part async for part in stream.stream_text(delta=True, debounce_by=None)])
        return whole.output, text, whole.usage

    whole, streamed, usage = loop.run(ask())
    assert numbers(whole) == COUNTED
    assert streamed == whole
    usage = usage() if callable(usage) else usage
    assert usage.output_tokens > 0


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput, PromptedOutput])
def test_output(served: Model, loop: asyncio.Runner, form: Any) -> None:
    agent: Any = Agent(served, output_type=form(Person), model_settings=SETTINGS, retries=0)
    result = loop.run(agent.run(HUGO))
    assert isinstance(result.output, Person)
    if form is NativeOutput:
        assert result.output == HUGO_IS


@pytest.mark.parametrize("form", [ToolOutput, NativeOutput])
def test_streamed_output(served: Model, loop: asyncio.Runner, form: Any) -> None:
    agent: Any = Agent(served, output_type=form(Person), model_settings=SETTINGS, retries=0)

    async def ask() -> Any:
        async with agent.run_stream(HUGO) as stream:
            return [one async for one in stream.stream_output(debounce_by=None)]

    assert loop.run(ask())[-1].name == "Hugo"


def test_a_function_is_called(served: Model, loop: asyncio.Runner) -> None:
    agent: Any = Agent(served, tools=[get_weather], model_settings=SETTINGS)
    result = loop.run(agent.run(PARIS))
    [call] = calls(result.all_messages())[:1]
    assert call.tool_name == "get_weather"
    assert call.args_as_dict() == {"city": "Paris"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_forced_call_beside_a_format(served: Model, loop: asyncio.Runner, stream: bool) -> None:
    """One request as an agent with native output makes it, its functions forced."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    parameters = ModelRequestParameters(
        function_tools=[
            ToolDefinition(name="get_weather", description="Get the weather", parameters_json_schema=schema)
        ],
        output_mode="native",
        output_object=OutputObjectDefinition(json_schema=Person.model_json_schema(), name="Person"),
    )
    asked: Any = {
        "model_settings": {**SETTINGS, "tool_choice": "required"},
        "model_request_parameters": parameters,
    }

    async def ask() -> ModelResponse:
        messages = [ModelRequest.user_text_prompt(COUNT)]
        if not stream:
            return await model_request(served, messages, **asked)
        async with model_request_stream(served, messages, **asked) as events:
            async for _ in events:
                pass
            return events.get()

    [call] = calls([loop.run(ask())])
    assert call.tool_name == "get_weather"
    assert isinstance(json.loads(call.args_as_json_str())["city"], str)


def test_embeddings(url: str, api_key: str, model: str, loop: asyncio.Runner) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=api_key)
    embedder = Embedder(OpenAIEmbeddingModel(model, provider=provider))
    result = loop.run(embedder.embed_documents(["One", "Two"]))
    one, two = result.embeddings
    assert len(one) == len(two)
    assert list(one) != list(two)


def test_errors(served: Model, loop: asyncio.Runner) -> None:
    agent: Any = Agent(served, model_settings={"temperature": -1})
    with pytest.raises(ModelHTTPError) as refusal:
        loop.run(agent.run(COUNT))
    assert refusal.value.status_code == 400
