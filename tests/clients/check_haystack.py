"""Haystack: its chat generator and embedders for an OpenAI-compatible server."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, Document, StreamingChunk
from haystack.tools import Tool
from haystack.utils import Secret

from tests.clients.samples import COUNT, COUNTED, HUGO, HUGO_IS, PARIS, WEATHER, Person, numbers

TOOL = Tool(function=lambda city: f"It is sunny in {city}.", **WEATHER)
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}


@pytest.fixture
def where(url: str, api_key: str, model: str) -> dict[str, Any]:
    return {
        "model": model,
        "api_base_url": f"{url}/v1",
        "api_key": Secret.from_token(api_key),
        "max_retries": 0,
    }


def ask(where: dict[str, Any], text: str, **settings: Any) -> ChatMessage:
    tools = [TOOL] if settings.pop("with_tool", False) else None
    callback = settings.pop("streaming_callback", None)
    kwargs = {"temperature": 0, "max_tokens": 200, **settings}
    # Beside a format OpenAI's SDK takes strict functions alone.
    strict = "response_format" in kwargs
    generator = OpenAIChatGenerator(
        **where, tools=tools, streaming_callback=callback, generation_kwargs=kwargs, tools_strict=strict
    )
    [reply] = generator.run([ChatMessage.from_user(text)])["replies"]
    return reply  # type: ignore[no-any-return]


def test_chat_and_stream(where: dict[str, Any]) -> None:
    whole = ask(where, COUNT)
    assert numbers(whole.text) == COUNTED
    chunks: list[StreamingChunk] = []
    streamed = ask(where, COUNT, streaming_callback=chunks.append)
    assert streamed.text == "".join(chunk.content for chunk in chunks) == whole.text
    assert streamed.meta["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("text", "settings"),
    [
        (PARIS, {}),
        (COUNT, {"tool_choice": "required"}),
        (COUNT, {"tool_choice": "required", "response_format": FORMAT}),
    ],
    ids=["free", "forced", "forced beside a format"],
)
def test_tools(where: dict[str, Any], text: str, settings: dict[str, Any], stream: bool) -> None:
    callback = {"streaming_callback": lambda _: None} if stream else {}
    [call] = ask(where, text, with_tool=True, **settings, **callback).tool_calls
    assert call.tool_name == "get_weather"
    assert isinstance(call.arguments["city"], str)


def test_structured_output(where: dict[str, Any]) -> None:
    assert Person(**json.loads(ask(where, HUGO, response_format=FORMAT).text or "")) == HUGO_IS
    assert Person(**json.loads(ask(where, HUGO, response_format=Person).text or "")) == HUGO_IS


def test_embeddings(where: dict[str, Any]) -> None:
    one = OpenAITextEmbedder(**where).run("One")["embedding"]
    assert math.isclose(sum(x * x for x in one), 1, abs_tol=1e-3)
    documents = [Document(content="One"), Document(content="Two")]
    first, second = OpenAIDocumentEmbedder(**where, progress_bar=False).run(documents)["documents"]
    assert first.embedding != second.embedding
