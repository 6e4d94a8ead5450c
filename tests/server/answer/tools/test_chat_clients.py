"""Conversations as clients send and read them: earlier calls in any form, and the official SDK's stream helper."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from tests.server.answer.tools.test_chat_tools import TEXTS, TOOLS
from tests.server.fakes import House, spells


async def test_earlier_calls_in_any_form(house: House) -> None:
    """Arguments cut off in an earlier turn are no reason to end the conversation."""
    written = ['{"a": 1}', {"a": 1}, "", None, '{"a": "cu', "[1]"]
    calls = [
        {"id": f"c{i}", "index": i, "type": "function", "function": {"name": "f", "arguments": one}}
        for i, one in enumerate(written)
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "hm", "annotations": [], "function_call": None},
        {"role": "tool", "tool_call_id": "c0", "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]},
    ]  # fmt: skip
    assert (await house.chat(messages=messages)).status_code == 200
    prompt = bytes(house.asked().prompts[0]).decode()
    shown = ['{"a": 1}', '{"a": 1}', "{}", "{}", json.dumps('{"a": "cu'), json.dumps("[1]")]
    assert "".join(f"(f={one})" for one in shown) in prompt
    assert "[tool:4\n2]" in prompt


@pytest.fixture
async def sdk(house: House) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx.ASGITransport(house.app)
    async with (
        httpx.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(
            base_url="http://server/v1", api_key="none", max_retries=0, http_client=http
        ) as client,
    ):
        yield client


@pytest.mark.parametrize("text", [text for text, *_ in TEXTS])
async def test_the_sdks_stream_helper(house: House, sdk: openai.AsyncOpenAI, text: str) -> None:
    """It adds up deltas, parses arguments as they come, and complains about most mistakes of order."""
    house.engine.script = spells(text, size=3)
    asked: Any = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
    whole = (await sdk.chat.completions.create(**asked)).choices[0]
    async with sdk.chat.completions.stream(**asked) as stream:
        seen = [event async for event in stream]
        final = (await stream.get_final_completion()).choices[0]
    assert final.finish_reason == whole.finish_reason
    assert (final.message.content or "") == (whole.message.content or "")
    calls, wanted = final.message.tool_calls or [], whole.message.tool_calls or []
    assert [call.function.name for call in calls] == [
        call.function.name for call in wanted if call.type == "function"
    ]
    assert [json.loads(call.function.arguments) for call in calls] == [{"x": 1}] * len(wanted)
    done = [event for event in seen if event.type == "tool_calls.function.arguments.done"]
    assert len(done) == len(wanted)
