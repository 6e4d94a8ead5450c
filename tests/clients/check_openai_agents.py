"""OpenAI's Agents SDK, by the Responses API (its default) and by Chat Completions.

Its agents force a call (`tool_choice: "required"`) beside the format of their output in the first request of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    StopAtTools,
    ToolCallItem,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError

from tests.clients.samples import COUNT, COUNTED, HUGO, HUGO_IS, PARIS, Person, numbers

set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city"""
    return f"It is sunny in {city}."


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=[OpenAIChatCompletionsModel, OpenAIResponsesModel], ids=["chat", "responses"])
def served(request: pytest.FixtureRequest, url: str, api_key: str, model: str) -> Any:
    return request.param(model, AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0))


def agent(served: Any, choice: str | None = None, **more: Any) -> Agent[Any]:
    settings = ModelSettings(temperature=0, max_tokens=200, tool_choice=choice)
    return Agent(
        name="Helper",
        instructions="You are a helpful assistant.",
        model=served,
        model_settings=settings,
        **more,
    )


def called(items: list[Any]) -> list[Any]:
    return [one.raw_item for one in items if isinstance(one, ToolCallItem)]


def test_text_and_stream(served: Any, loop: asyncio.Runner) -> None:
    async def ask() -> tuple[Any, str]:
        whole = await Runner.run(agent(served), COUNT)
        stream = Runner.run_streamed(agent(served), COUNT)
        pieces = [
            event.data.delta
            async for event in stream.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return whole, "".join(pieces)

    whole, streamed = loop.run(ask())
    assert numbers(whole.final_output) == COUNTED
    assert streamed == whole.final_output
    assert whole.context_wrapper.usage.output_tokens > 0


def test_output_type(served: Any, loop: asyncio.Runner) -> None:
    result = loop.run(Runner.run(agent(served, output_type=Person), HUGO))
    assert result.final_output == HUGO_IS


def test_a_function_is_called(served: Any, loop: asyncio.Runner) -> None:
    """Its result goes back to the model, which may call again."""
    helper = agent(served, tools=[get_weather])
    result = loop.run(
        Runner.run(helper, PARIS, max_turns=2, error_handlers={"max_turns": lambda _: "Enough."})
    )
    assert called(result.new_items)[0].arguments == '{"city": "Paris"}'
    assert any(getattr(one, "output", None) == "It is sunny in Paris." for one in result.new_items)


@pytest.mark.parametrize("choice", ["required", "get_weather"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_forced_call_beside_an_output_type(
    served: Any, loop: asyncio.Runner, choice: str, stream: bool
) -> None:
    helper = agent(
        served, choice, tools=[get_weather], output_type=Person,
        tool_use_behavior=StopAtTools(stop_at_tool_names=["get_weather"]),
    )  # fmt: skip

    async def ask() -> Any:
        if not stream:
            return await Runner.run(helper, COUNT)
        running = Runner.run_streamed(helper, COUNT)
        async for _ in running.stream_events():
            pass
        return running

    result = loop.run(ask())
    [call] = called(result.new_items)
    assert call.name == "get_weather"
    assert result.final_output.startswith("It is sunny in ")


def test_errors(served: Any, loop: asyncio.Runner) -> None:
    helper = Agent(name="Helper", model=served, model_settings=ModelSettings(temperature=-1))
    with pytest.raises(BadRequestError) as refusal:
        loop.run(Runner.run(helper, COUNT))
    assert refusal.value.param == "temperature"
