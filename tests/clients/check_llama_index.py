"""LlamaIndex: its classes for a server like OpenAI's, and for Ollama."""

from __future__ import annotations

import math
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from ollama import AsyncClient, Client

from tests.clients.samples import COUNT, COUNTED, HUGO, PARIS, Person, numbers


def get_weather(city: str) -> str:
    """Get the weather of a city"""
    return f"It is sunny in {city}."


TOOL = FunctionTool.from_defaults(get_weather)


@pytest.fixture(params=["openai-like", "ollama"])
def llm(request: pytest.FixtureRequest, url: str, api_key: str, model: str) -> FunctionCallingLLM:
    if request.param == "ollama":
        headers = {"Authorization": f"Bearer {api_key}"}
        return Ollama(
            model=model, base_url=url, temperature=0, context_window=2048,
            client=Client(host=url, headers=headers), async_client=AsyncClient(host=url, headers=headers),
        )  # fmt: skip
    return OpenAILike(
        model=model, api_base=f"{url}/v1", api_key=api_key, temperature=0, max_tokens=200, context_window=2048,
        is_chat_model=True, is_function_calling_model=True, max_retries=0,
    )  # fmt: skip


def test_chat_and_stream(llm: Any) -> None:
    asked = [ChatMessage(role="user", content=COUNT)]
    whole = llm.chat(asked)
    assert numbers(whole.message.content) == COUNTED
    parts = list(llm.stream_chat(asked))
    assert "".join(part.delta or "" for part in parts) == whole.message.content
    assert numbers(llm.complete(COUNT).text) == COUNTED


def test_tools(llm: Any) -> None:
    answer = llm.chat_with_tools([TOOL], user_msg=PARIS)
    [call] = llm.get_tool_calls_from_response(answer)
    assert (call.tool_name, call.tool_kwargs) == ("get_weather", {"city": "Paris"})
    last = list(llm.stream_chat_with_tools([TOOL], user_msg=PARIS))[-1]
    [streamed] = llm.get_tool_calls_from_response(last)
    assert (streamed.tool_name, streamed.tool_kwargs) == (call.tool_name, call.tool_kwargs)


def test_a_forced_call(url: str, api_key: str, model: str) -> None:
    llm = OpenAILike(
        model=model, api_base=f"{url}/v1", api_key=api_key, temperature=0, max_tokens=100, context_window=2048,
        is_chat_model=True, is_function_calling_model=True, max_retries=0,
    )  # fmt: skip
    schema = {"name": "person", "schema": Person.model_json_schema()}
    for beside in ({}, {"response_format": {"type": "json_schema", "json_schema": schema}}):
        answer = llm.chat_with_tools([TOOL], user_msg=COUNT, tool_required=True, **beside)
        [call] = llm.get_tool_calls_from_response(answer)
        assert isinstance(call.tool_kwargs["city"], str)


def test_structured_output(llm: Any) -> None:
    person = llm.structured_predict(Person, PromptTemplate("{text}"), text=HUGO)
    assert isinstance(person, Person)
    assert person.name == "Hugo"


def test_embeddings(url: str, api_key: str, model: str) -> None:
    embedding = OpenAILikeEmbedding(model_name=model, api_base=f"{url}/v1", api_key=api_key)
    one, two = embedding.get_text_embedding_batch(["One", "Two"])
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    assert one != two
    assert len(embedding.get_query_embedding("One")) == len(one)
