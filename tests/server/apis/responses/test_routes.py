"""POST /v1/responses: what reaches the template and the engine, and what the client gets."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.errors import BrokeExecutor, ExecutorFailed, InvalidRequest, Overloaded
from engine.text.generation import TextDelta
from server.answer.carried_reasoning import decoded_reasoning, encoded_reasoning
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from server.answer.tools.hermes import Hermes
from server.http import event_stream
from server.state.responses.store import MemoryResponseStore
from tests.server.api_schema import check_answer
from tests.server.fakes import MAX_MODEL_LEN, TEMPLATE, House, error_of, says, spells, steps

FUNCTION = {
    "type": "function",
    "name": "f",
    "description": "Does f.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
CRM = {
    "type": "namespace",
    "name": "mcp__crm",
    "description": "CRM.",
    "tools": [{**FUNCTION, "name": "find"}],
}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
STRICT = (
    "{% for m in messages %}{% if m.role != 'user' and not loop.first and messages[loop.index0 - 1].role == 'system' %}"
    "{{ raise_exception('turns') }}{% endif %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
    "{% endif %}{% endfor %}" + TEMPLATE
)  # fmt: skip
HERMES = ModelNotation(Hermes("hermes"), REASONING["qwen3"])
CALLED = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"x":1}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "42"}


async def ask(house: House, **body: Any) -> Any:
    response = await house.post("/v1/responses", {"model": "fake", "input": "Hi", **body})
    check_answer(response)
    return response


def prompt_of(house: House) -> str:
    return bytes(house.engine.requests[-1].prompts[0]).decode()


def ignored(response: Any) -> list[str]:
    return [name for name in response.headers.get("x-cohort-ignored", "").split(", ") if name]


def events_of(response: Any) -> list[dict[str, Any]]:
    lines = response.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def types_of(response: Any) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events_of(response)]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


async def test_answer_has_openais_shape(house: House) -> None:
    response = await ask(house, metadata={"a": "b"}, instructions="Be brief.", max_output_tokens=9, user="u")
    answer = response.json()
    assert answer["id"].startswith("resp_") and answer["output"][0]["id"].startswith("msg_")
    assert without_ids(answer["output"]) == [
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}],
        }
    ]
    assert answer["usage"] == {
        "input_tokens": len("<s>[system:Be brief.][user:Hi][assistant:"),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len("<s>[system:Be brief.][user:Hi][assistant:") + 4,
    }
    echoed = {
        "status": "completed",
        "metadata": {"a": "b"},
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "user": "u",
    }
    assert {name: answer[name] for name in echoed} == echoed
    assert answer["completed_at"] >= answer["created_at"]
    assert house.asked().max_tokens == 9
    assert "x-cohort-ignored" not in response.headers


async def test_stream_has_openais_events_and_adds_up(house: House) -> None:
    response = await ask(house, stream=True)
    assert types_of(response) == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 3, "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    *_, done, last = events_of(response)
    assert last["response"]["output"] == [done["item"]]
    assert done["item"]["content"][0]["text"] == "Hello!"
    assert {event["response"]["id"] for event in events_of(response) if "response" in event} == {
        last["response"]["id"]
    }
    assert "[DONE]" not in response.text


async def test_items_reach_the_template(house: House) -> None:
    items = [
        {"role": "developer", "content": "Rules."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me"}]},
        CALLED,
        RESULT,
        {"role": "user", "content": "Go on."},
    ]
    await ask(house, instructions="Sys.", input=items, tools=[FUNCTION])
    shown = prompt_of(house)
    assert shown.index("Sys.") < shown.index("Rules.") < shown.index("[user:one]") < shown.index("Let me")
    assert '(f={"x": 1})' in shown
    assert shown.endswith("[tool:42][user:Go on.][assistant:")
    assert shown.count("[system:") == 1


async def test_arguments_of_a_call_may_be_an_object(house: House) -> None:
    """As in a chat, and listed as OpenAI's text."""
    prompts = []
    for arguments in ('{"x":1,"city":"Ă"}', {"x": 1, "city": "Ă"}):
        items = [{"role": "user", "content": "Hi"}, {**CALLED, "arguments": arguments}, RESULT]
        response = await ask(house, input=items, tools=[FUNCTION])
        assert response.status_code == 200, response.text
        assert "x-cohort-ignored" not in response.headers
        prompts.append(prompt_of(house))
        listed = (await house.get(f"/v1/responses/{response.json()['id']}/input_items?order=asc")).json()[
            "data"
        ]
        assert listed[1]["arguments"] == '{"x":1,"city":"Ă"}'
    assert prompts[0] == prompts[1]
    assert '(f={"x": 1, "city": "Ă"})' in prompts[0]
    for wrong in (5, ["x"], True):
        items = [{"role": "user", "content": "Hi"}, {**CALLED, "arguments": wrong}, RESULT]
        refused = await ask(house, input=items, tools=[FUNCTION])
        assert (refused.status_code, error_of(refused)["param"]) == (400, "input.1.arguments")


@pytest.mark.parametrize(
    ("item", "thought"),
    [
        ({"content": [{"type": "reasoning_text", "text": "deep"}], "summary": []}, "deep"),
        ({"encrypted_content": encoded_reasoning("deep é"), "summary": []}, "deep é"),
        ({"summary": [{"type": "summary_text", "text": "short"}]}, "short"),
        ({"encrypted_content": "gAAAA-of-another-server", "summary": []}, None),
        ({"encrypted_content": "cohort.1.!!!", "summary": []}, None),
    ],
)
async def test_reasoning_comes_back(item: dict[str, Any], thought: str | None) -> None:
    template = (
        "{% for m in messages %}{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}{% endfor %}"
        + TEMPLATE
    )
    house = House(template=template)
    said = {"type": "message", "role": "assistant", "content": "Yes"}
    items = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", **item},
        said,
        {"role": "user", "content": "r"},
    ]
    response = await ask(house, input=items)
    assert response.status_code == 200
    assert (f"<{thought}>" in prompt_of(house)) == (thought is not None)
    assert ("input[].encrypted_content" in ignored(response)) == (thought is None)


async def test_a_template_that_wants_turns_gets_them() -> None:
    house = House(template=STRICT)
    items = [
        {"role": "user", "content": "a"},
        {"role": "developer", "content": "late"},
        {"role": "user", "content": "b"},
    ]
    response = await ask(house, input=items)
    assert response.status_code == 200, response.text
    assert prompt_of(house).count("[user:") == 1 and "late" in prompt_of(house)


async def test_items_of_openais_servers_are_left_out_and_reported(house: House) -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"role": "user", "content": "q"},
    ]
    response = await ask(house, input=items)
    assert ignored(response) == ["input[].web_search_call"]
    assert prompt_of(house).endswith("[user:q][assistant:")


async def test_images_are_refused_or_named(house: House) -> None:
    items = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]
    response = await ask(house, input=items)
    assert error_of(response)["param"] == "input.0.content.0.type"
    house.state.unread_parts = "placeholder"
    response = await ask(house, input=items)
    assert response.status_code == 200 and "[image not read]" in prompt_of(house)
    assert "input[].content[].input_image" in ignored(response)


async def test_tools_round_trip() -> None:
    house = House(notation=HERMES)
    house.engine.script = spells(f"<think>hm</think>Let me{CALL}")
    response = await ask(house, tools=[FUNCTION], stream=True, include=["reasoning.encrypted_content"])
    reasoning, message, call = output = events_of(response)[-1]["response"]["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Let me"
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "f", {"x": 1})
    assert call["id"].startswith("fc_") and call["call_id"].startswith("call_")
    assert events_of(response)[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    added = [event["item"] for event in events_of(response) if event["type"].endswith("item.added")]
    done = [event["item"] for event in events_of(response) if event["type"].endswith("item.done")]
    assert done == output
    assert [(one["id"], one["type"]) for one in added] == [(one["id"], one["type"]) for one in output]
    house.engine.script = says("42")
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": [{"type": "input_text", "text": "42"}],
    }
    again = await ask(house, tools=[FUNCTION], input=[{"role": "user", "content": "Hi"}, *output, result])
    assert again.status_code == 200, again.text
    assert "[tool:42]" in prompt_of(house) and '(f={"x": 1})' in prompt_of(house)


async def test_stream_and_whole_are_the_same() -> None:
    house = House(notation=HERMES)
    house.engine.script = spells(f"<think>hm</think>Let me{CALL}{CALL}")
    streamed = events_of(await ask(house, tools=[FUNCTION], stream=True))[-1]["response"]
    whole = (await ask(house, tools=[FUNCTION])).json()
    for one in (streamed, whole):
        one["output"] = [
            {k: v for k, v in item.items() if k not in ("id", "call_id")} for item in one["output"]
        ]
        for name in ("id", "created_at", "completed_at"):
            del one[name]
    assert streamed == whole
    assert len(whole["output"]) == 4


async def test_custom_tools_have_a_text_as_input() -> None:
    house = House(notation=HERMES)
    house.engine.script = spells(
        '<tool_call>{"name": "patch", "arguments": {"input": "*** Begin\\né"}}</tool_call>'
    )
    response = await ask(house, tools=[PATCH], stream=True)
    [call] = events_of(response)[-1]["response"]["output"]
    assert (call["type"], call["name"], call["input"]) == ("custom_tool_call", "patch", "*** Begin\né")
    assert "custom_tool_call_input.delta" in types_of(response) and "custom_tool_call_input.done" in types_of(
        response
    )
    assert "start: /.+/" in prompt_of(house)
    assert ignored(response) == ["tools[].format"]
    result = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}
    house.engine.script = says("Done")
    await ask(house, tools=[PATCH], input=[{"role": "user", "content": "q"}, call, result])
    assert "*** Begin" in prompt_of(house)


async def test_calls_into_a_namespace_come_back_apart() -> None:
    house = House(notation=HERMES)
    house.engine.script = spells('<tool_call>{"name": "mcp__crm__find", "arguments": {"x": 1}}</tool_call>')
    response = await ask(house, tools=[CRM, FUNCTION])
    [call] = response.json()["output"]
    assert (call["name"], call["namespace"]) == ("find", "mcp__crm")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    await ask(house, tools=[CRM], input=[{"role": "user", "content": "q"}, call, result])
    assert "(mcp__crm__find=" in prompt_of(house)


async def test_tools_that_run_elsewhere_are_left_out_unless_forced() -> None:
    house = House(notation=HERMES)
    offered = [{"type": "web_search"}, {"type": "local_shell"}, FUNCTION]
    response = await ask(house, tools=offered)
    assert ignored(response) == ["tools[].web_search", "tools[].local_shell"]
    assert '"f"' in prompt_of(house) and "web_search" not in prompt_of(house)
    assert [tool["type"] for tool in response.json()["tools"]] == ["web_search", "local_shell", "function"]
    assert (await ask(house, tools=[{"type": "web_search"}])).status_code == 200
    for choice in ({"type": "web_search"}, "required"):
        refused = await ask(house, tools=[{"type": "web_search"}], tool_choice=choice)
        assert error_of(refused)["param"] == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        "any",
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "patch"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
    ],
)
async def test_forced_calls_have_a_grammar(choice: Any) -> None:
    house = House(notation=HERMES)
    name = "patch" if "patch" in str(choice) else "f"
    argument = {"input": "x"} if name == "patch" else {"x": 1}
    call = {"name": name, "arguments": argument}
    house.engine.script = spells(f"<tool_call>{json.dumps(call)}</tool_call>")
    response = await ask(house, tools=[FUNCTION, PATCH], tool_choice=choice)
    assert response.status_code == 200, response.text
    assert house.asked().grammar is not None
    assert response.json()["output"][0]["name"] == name
    assert response.json()["tool_choice"] == choice


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        {"type": "function"},
        {"type": "function", "name": "g"},
        {"type": "custom", "name": "f"},
        {"type": "allowed_tools", "mode": "required", "tools": []},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]},
        {"type": "mcp", "server_label": "x"},
        {},
    ],
)
async def test_bad_choices_are_refused(choice: Any) -> None:
    house = House(notation=HERMES)
    response = await ask(house, tools=[FUNCTION], tool_choice=choice)
    assert response.status_code == 400
    assert error_of(response)["param"] == "tool_choice"


async def test_structured_output(house: House) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format_ = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    response = await ask(house, text={"format": format_})
    assert house.engine.requests[-1].grammar is not None
    assert response.json()["text"]["format"] == format_
    await ask(house, text={"format": {"type": "json_object"}})
    assert house.engine.requests[-1].grammar is not None
    refused = await ask(house, text={"format": {"type": "json_schema", "name": "x"}})
    assert error_of(refused)["param"] == "text.format.schema"
    house.judge.refusal = InvalidRequest("no such type", None)
    refused = await ask(house, text={"format": {**format_, "schema": {"type": "nonsense"}}})
    assert error_of(refused)["param"] == "text.format.schema"


async def test_reasoning_settings_reach_the_template() -> None:
    switched = (
        "{% if enable_thinking is defined %}[{{ enable_thinking }}]{% endif %}{{ reasoning_effort or '' }}"
        + TEMPLATE
    )
    house = House(template=switched)
    await ask(house, reasoning={"effort": "high"})
    assert prompt_of(house).startswith("[True]high")
    await ask(house, reasoning={"effort": "none"})
    assert prompt_of(house).startswith("[False]<")
    response = await ask(house, reasoning={"effort": "low", "summary": "auto"}, text={"verbosity": "low"})
    assert ignored(response) == ["text.verbosity", "reasoning.summary"]
    assert ignored(await ask(House(), reasoning={"effort": "high"})) == ["reasoning.effort"]


async def test_logprobs(house: House) -> None:
    house.engine.script = spells("ab")
    include = ["message.output_text.logprobs"]
    whole = (await ask(house, include=include, top_logprobs=2)).json()["output"][0]["content"][0]
    assert [one["token"] for one in whole["logprobs"]] == ["a", "b"]
    assert house.engine.requests[-1].sampling.logprobs == 2
    streamed = events_of(await ask(house, include=include, stream=True))
    deltas = [event for event in streamed if event["type"] == "response.output_text.delta"]
    assert [one["token"] for event in deltas for one in event["logprobs"]] == ["a", "b"]
    assert streamed[-1]["response"]["output"][0]["content"][0]["logprobs"] == whole["logprobs"]
    assert ignored(await ask(house, top_logprobs=2, include=["file_search_call.results"])) == [
        "top_logprobs", "include.file_search_call.results",
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_the_limit_makes_it_incomplete(house: House, stream: bool) -> None:
    house.engine.script = says("a", "b", finish="length")
    response = await ask(house, stream=stream, max_output_tokens=2)
    answer = events_of(response)[-1]["response"] if stream else response.json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete"
    assert not stream or types_of(response)[-1] == "incomplete"


async def test_the_limit_is_what_fits(house: House) -> None:
    await ask(house, max_output_tokens=10**6)
    asked = house.asked()
    assert asked.max_tokens == MAX_MODEL_LEN - len(asked.prompts[0])


async def test_truncation_drops_the_oldest(house: House) -> None:
    items: list[dict[str, Any]] = [{"role": "developer", "content": "Rules."}]
    items += [{"role": "user", "content": f"old-{number} " + "x" * 60} for number in range(20)]
    items += [{"role": "user", "content": "q"}, CALLED, RESULT, {"role": "user", "content": "last"}]
    refused = await ask(house, input=items)
    assert error_of(refused)["code"] == "context_length_exceeded"
    assert error_of(refused)["param"] == "input"
    response = await ask(house, input=items, truncation="auto")
    assert response.status_code == 200, response.text
    shown = prompt_of(house)
    assert "Rules." in shown and "last" in shown and "old-0 " not in shown and "old-19" in shown
    assert len(house.asked().prompts[0]) > MAX_MODEL_LEN - 80, "more was dropped than had to be"
    hopeless = await ask(house, input="x" * 600, truncation="auto")
    assert error_of(hopeless)["code"] == "context_length_exceeded"


async def test_a_refusal_before_the_first_event_has_its_status(house: House) -> None:
    house.engine.refusal = Overloaded("full", retry_after=3)
    response = await ask(house, stream=True)
    assert response.status_code == 429 and response.headers["retry-after"] == "3"
    assert error_of(response)["code"] == "overloaded"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ExecutorFailed("gone"), "server_error"),
        (Overloaded("full"), "rate_limit_exceeded"),
        (BrokeExecutor("b"), "server_error"),
    ],
)
async def test_a_failed_stream_ends_with_an_event(house: House, error: Exception, code: str) -> None:
    house.engine.script = steps(TextDelta(0, "Hel", (1,)), error)
    response = await ask(house, stream=True)
    last = events_of(response)[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed" and last["response"]["error"]["code"] == code
    assert last["response"]["output"][0]["status"] == "incomplete"
    stored = await house.get(f"/v1/responses/{last['response']['id']}")
    assert stored.json() == last["response"]


async def test_a_silent_stream_repeats_in_progress(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream.EventStream.__init__, "__defaults__", (0.01, event_stream._OPENAI))
    go = asyncio.Event()
    house.engine.script = steps(go, TextDelta(0, "Hi", (1,)), TextDelta(0, "", (), finish_reason="stop"))
    asyncio.get_running_loop().call_later(0.4, go.set)
    response = await ask(house, stream=True)
    assert types_of(response)[:4] == ["created", "in_progress", "in_progress", "in_progress"]


async def test_a_client_that_leaves_aborts(house: House) -> None:
    house.engine.script = steps(asyncio.Event())
    for stream in (False, True):
        house.engine.paused.clear()
        task = asyncio.create_task(ask(house, stream=stream))
        await house.engine.paused.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(house.engine.aborted) == 2
    assert len(house.state.responses._responses) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "nonsense"}]}, "input.0.type"),
        ({"input": [RESULT]}, "input.0.call_id"),
        ({"input": [CALLED]}, "input"),
        ({"input": [CALLED, CALLED, RESULT]}, "input.1.call_id"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools.1.name"),
        ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools.0.name"),
        ({"tools": [{**CRM, "tools": [{**FUNCTION, "name": "!"}]}]}, "tools.0.tools.0.name"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_token": 3}, "max_output_token"),
        ({"reasoning": {"effort": "very"}}, "reasoning.effort"),
    ],
)
async def test_mistakes_are_named(body: dict[str, Any], param: str) -> None:
    response = await ask(House(notation=HERMES), **body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


async def test_without_a_store_nothing_is_kept(house: House) -> None:
    house.state.responses = MemoryResponseStore(0, 1, 1.0)
    response = await ask(house, store=True)
    assert response.json()["store"] is False and ignored(response) == ["store"]
    assert (await house.get(f"/v1/responses/{response.json()['id']}")).status_code == 404
    assert error_of(await ask(house, background=True))["param"] == "background"


async def test_what_codex_sends_is_answered() -> None:
    """The second turn of a session of Codex 0.169.0, its long texts shortened: after a call of `exec_command`."""
    body = json.loads((Path(__file__).parent / "data" / "codex_turn.json").read_text("utf-8"))
    house = House(notation=HERMES)
    assert house.state.model is not None
    house.state.model = replace(house.state.model, max_model_len=100_000)
    house.engine.script = spells("<think>I see.</think>blue heron")
    response = await ask(house, **body)
    assert response.status_code == 200, response.text
    reasoning, message = events_of(response)[-1]["response"]["output"]
    assert decoded_reasoning(reasoning["encrypted_content"]) == "I see."
    assert message["content"][0]["text"] == "blue heron"
    shown = prompt_of(house)
    assert shown.count("[system:") == 1 and shown.count("[tool:") == 1 and "exec_command=" in shown
    assert '"multi_agent_v1__spawn_agent"' in shown and "web_search" not in shown
    assert ignored(response)[:2] == ["client_metadata", "input[].content[].annotations"]
    assert {"tools[].web_search", "reasoning.summary"} <= set(ignored(response))


async def test_counted_tokens_are_those_of_the_response(house: House) -> None:
    house.notation = HERMES
    asked = {
        "model": "fake",
        "input": [{"role": "user", "content": "Hi"}, CALLED, RESULT],
        "tools": [FUNCTION, CRM],
    }

    async def count(**body: Any) -> Any:
        response = await house.post("/v1/responses/input_tokens", {**asked, **body})
        check_answer(response)
        return response

    for body in ({}, {"instructions": "Be brief."}, {"tool_choice": "none"}, {"tools": None}):
        usage = (await ask(house, **{**asked, **body})).json()["usage"]
        counted = (await count(**body)).json()
        assert counted == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    stored = (await ask(house, input="Hi")).json()
    again = (await ask(house, input="Ho", previous_response_id=stored["id"])).json()
    counted = (await count(input="Ho", previous_response_id=stored["id"], tools=None)).json()
    assert counted["input_tokens"] == again["usage"]["input_tokens"]
    served = len(house.engine.requests)
    long = [{"role": "user", "content": "a" * 300}] * 3
    assert (await count(input=long)).json()["input_tokens"] > MAX_MODEL_LEN
    assert (await count(input=long, truncation="auto", tools=None)).json()["input_tokens"] < MAX_MODEL_LEN
    refused = error_of(await count(input=[{"type": "item_reference", "id": "x"}]))
    assert refused["param"] == "input.0.id"
    assert len(house.engine.requests) == served, "nothing is generated"
