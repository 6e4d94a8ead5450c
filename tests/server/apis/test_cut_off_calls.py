"""A call that `max_tokens` or a stop string cuts off, in every API: no notation is shown, streamed or whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.api_schema import check_answer
from tests.server.fakes import House, spells

HI = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
FUNCTION = {"name": "f", "parameters": PARAMETERS}
BEFORE = "Well.\n"
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 12}}\n</tool_call>'
ARGUMENTS = '{"x": 12}'
BEGUN = CALL.index(ARGUMENTS)
"""Where the arguments begin, and with them the call."""
Said = tuple[str, list[str], str]
"""Content, the arguments of each call, and the reason for the end."""


def data_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def chat(house: House, **body: Any) -> list[Said]:
    sent = {
        "model": "fake",
        "messages": HI,
        "tools": [{"type": "function", "function": FUNCTION}],
        **body,
    }
    [choice] = (await house.post("/v1/chat/completions", sent)).json()["choices"]
    message = choice["message"]
    whole = (
        message["content"] or "",
        [one["function"]["arguments"] for one in message.get("tool_calls", ())],
        choice["finish_reason"],
    )
    content, calls, reason = "", list[str](), ""
    for event in data_of((await house.post("/v1/chat/completions", {**sent, "stream": True})).text):
        [choice] = event["choices"]
        content += choice["delta"].get("content") or ""
        for call in choice["delta"].get("tool_calls", ()):
            calls += [""] if "id" in call else []
            calls[-1] += call["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    return [whole, (content, calls, reason)]


def of_response(response: dict[str, Any]) -> Said:
    parts = [item for item in response["output"] if item["type"] == "message"]
    content = "".join(item["content"][0]["text"] for item in parts)
    calls = [item["arguments"] for item in response["output"] if item["type"] == "function_call"]
    details = response["incomplete_details"]
    assert (response["status"] == "incomplete") == (details is not None)
    last = response["output"][-1]["status"] if response["output"] else response["status"]
    assert last == response["status"]
    return content, calls, "completed" if details is None else details["reason"]


async def responses(house: House, **body: Any) -> list[Said]:
    sent = {"model": "fake", "input": "Hi", "tools": [{"type": "function", **FUNCTION}], **body}
    whole = await house.post("/v1/responses", sent)
    check_answer(whole)
    stream = await house.post("/v1/responses", {**sent, "stream": True})
    check_answer(stream)
    events = data_of(stream.text)
    content = "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")
    said = of_response(events[-1]["response"])
    assert said[0] == content
    return [of_response(whole.json()), said]


async def messages(house: House, **body: Any) -> list[Said]:
    sent = {
        "model": "fake",
        "max_tokens": 99,
        "messages": HI,
        "tools": [{"name": "f", "input_schema": PARAMETERS}],
        **body,
    }
    told = (await house.post("/v1/messages", sent)).json()
    content = "".join(one["text"] for one in told["content"] if one["type"] == "text")
    inputs = [one["input"] for one in told["content"] if one["type"] == "tool_use"]
    text, calls, reason = "", list[str](), ""
    for event in data_of((await house.post("/v1/messages", {**sent, "stream": True})).text):
        match event:
            case {"content_block": {"type": "tool_use"}}:
                calls.append("")
            case {"delta": {"type": "text_delta", "text": more}}:
                text += more
            case {"delta": {"type": "input_json_delta", "partial_json": more}}:
                calls[-1] += more
            case {"delta": {"stop_reason": str(told_reason)}}:
                reason = told_reason
    assert [set(one) <= {"x"} for one in inputs] == [True] * len(calls), "what is not complete is left out"
    return [(content, calls, told["stop_reason"]), (text, calls, reason)]


async def ollama(house: House, **body: Any) -> list[Said]:
    sent = {
        "model": "fake",
        "messages": HI,
        "tools": [{"type": "function", "function": FUNCTION}],
        **body,
    }

    def said(lines: list[dict[str, Any]]) -> Said:
        calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
        arguments = [json.dumps(one["function"]["arguments"]) for one in calls]
        return "".join(line["message"]["content"] for line in lines), arguments, lines[-1]["done_reason"]

    whole = (await house.post("/api/chat", {**sent, "stream": False})).json()
    lines = [json.loads(line) for line in (await house.post("/api/chat", sent)).text.splitlines()]
    return [said([whole]), said(lines)]


APIS = {
    "chat": (chat, "length"),
    "responses": (responses, "max_output_tokens"),
    "messages": (messages, "max_tokens"),
    "ollama": (ollama, "length"),
}


@pytest.mark.parametrize("api", APIS)
async def test_a_limit_shows_no_beginning_of_a_call(house: House, api: str) -> None:
    ask, reason = APIS[api]
    for end in range(0, len(CALL), 3):
        house.engine.script = spells(BEFORE + CALL[:end], finish="length", size=1000)
        arguments = CALL[BEGUN:end][: len(ARGUMENTS)]
        if api == "ollama":  # a call comes whole or not at all
            arguments = arguments if arguments == ARGUMENTS else ""
        told = await ask(house)
        assert told[0] == told[1], end
        content, calls, ended = told[0]
        assert content.rstrip() == "Well." and ended == reason, (end, told)
        assert calls == ([arguments] if arguments else []), end


@pytest.mark.parametrize("api", APIS)
async def test_nothing_but_the_beginning_of_a_call(house: House, api: str) -> None:
    ask, reason = APIS[api]
    house.engine.script = spells(CALL[:12], finish="length")
    assert await ask(house) == [("", [], reason)] * 2


@pytest.mark.parametrize(
    ("api", "reason"),
    [("chat", "stop"), ("responses", "completed"), ("messages", "end_turn"), ("ollama", "stop")],
)
async def test_an_end_of_the_models_own_shows_it(house: House, api: str, reason: str) -> None:
    house.engine.script = spells(CALL[:12], finish="stop")
    assert await APIS[api][0](house) == [(CALL[:12], [], reason)] * 2


async def test_each_choice_is_cut_off_by_itself(house: House) -> None:
    house.engine.script = spells(BEFORE + CALL[:20], finish="length")
    tools = [{"type": "function", "function": FUNCTION}]
    body = (await house.chat(tools=tools, tool_choice="required", n=3, logprobs=True)).json()
    for choice in body["choices"]:
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Well.", "length")
        assert len(choice["logprobs"]["content"]) == len(BEFORE) + 20, (
            "those of what is not shown are among them"
        )


@pytest.mark.parametrize(
    "more", [{}, {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"}]
)
async def test_without_tools_the_text_is_untouched(house: House, more: dict[str, Any]) -> None:
    house.engine.script = spells(CALL[:12], finish="length")
    body = (await house.chat(**more)).json()
    assert body["choices"][0]["message"]["content"] == CALL[:12]
