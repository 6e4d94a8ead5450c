"""POST /v1/messages and /v1/messages/count_tokens: what reaches the template and the engine, and what the client gets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog

from engine.errors import BrokeExecutor, ExecutorFailed, Overloaded
from engine.text.generation import TextDelta
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from server.http import event_stream
from server.prepare.billing_header import without_billing_header
from tests.server.api_schema import check_answer
from tests.server.fakes import AS_JSON, MAX_MODEL_LEN, TEMPLATE, House, error_of, says, spells, steps

HI = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {
        "name": "f",
        "description": "Does f.",
        "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}},
    }
]
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
SWITCHED = "{% if enable_thinking %}[on]{% endif %}{{ reasoning_effort or '' }}" + TEMPLATE
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "{% if m.role == 'user' and not loop.first and messages[loop.index0 - 1].role == 'tool' %}{{ raise_exception('turns') }}"
    "{% endif %}{% endfor %}" + TEMPLATE
)  # fmt: skip


async def ask(house: House, **body: Any) -> Any:
    return await house.post("/v1/messages", {"model": "fake", "max_tokens": 16, "messages": HI, **body})


async def count(house: House, **body: Any) -> Any:
    return await house.post("/v1/messages/count_tokens", {"model": "fake", "messages": HI, **body})


def prompt_of(house: House) -> str:
    return bytes(house.engine.requests[-1].prompts[0]).decode()


def ignored(response: Any) -> list[str]:
    return [name for name in response.headers.get("x-cohort-ignored", "").split(", ") if name]


def event_types(response: Any) -> list[str]:
    return [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]


async def test_answer_has_anthropics_shape(house: House) -> None:
    response = await ask(house)
    assert response.status_code == 200
    check_answer(response)
    answer = response.json()
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "fake",
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("<s>[user:Hi][assistant:"),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 4,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert "x-cohort-ignored" not in response.headers


async def test_stream_has_anthropics_events(house: House) -> None:
    response = await ask(house, stream=True)
    check_answer(response)
    assert event_types(response) == [
        "message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    assert "[DONE]" not in response.text


async def test_a_query_makes_no_difference(house: House) -> None:
    response = await house.post("/v1/messages?beta=true", {"model": "fake", "max_tokens": 1, "messages": HI})
    assert response.status_code == 200


async def test_messages_reach_the_template(house: House) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "user", "content": "three"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "zz"},
                {"type": "text", "text": "Let me"},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
                    {"type": "text", "text": "4"}, {"type": "text", "text": "2"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such file", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
        {"role": "system", "content": "Be quick."},
    ]  # fmt: skip
    response = await ask(
        house, messages=messages, system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    )
    assert response.status_code == 200, response.text
    assert prompt_of(house) == (
        '<s>[system:A\n\nB][user:one\ntwo\nthree][assistant:Let me(f={"x": 1})(g={})][tool:4\n2][tool:Error: no such file]'
        "[user:Go on.][system:Be quick.][assistant:"
    )


async def test_ids_and_names_of_calls_reach_the_template() -> None:
    template = "{% for m in messages %}{{ m.role }} {{ m.name }} {{ m.tool_call_id }}{% for c in m.tool_calls %} {{ c.id }}{% endfor %};{% endfor %}"  # noqa: E501
    house, id_ = House(template=template), "toolu_0123456789abcdef01234567"
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_}]},
    ]  # fmt: skip
    await ask(house, messages=messages)
    assert "assistant   call_0123456789abcdef01234567;tool f call_0123456789abcdef01234567;" in prompt_of(
        house
    )
    house.state.threads.close()


async def test_documents_of_text_are_read(house: House) -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "contents"}
    blocks = [
        {"type": "document", "source": plain, "title": "T", "context": "C"},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "more"}]}},
        {
            "type": "search_result",
            "source": "url",
            "title": "S",
            "content": [{"type": "text", "text": "found"}],
        },
    ]
    response = await ask(house, messages=[{"role": "user", "content": blocks}])
    assert response.status_code == 200, response.text
    assert "[user:T\nC\ncontents\nmore\nS\nurl\nfound]" in prompt_of(house)


@pytest.mark.parametrize(
    "block",
    [
        IMAGE,
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
        {"type": "document", "source": {"type": "content", "content": [IMAGE]}},
    ],
)
async def test_what_is_not_read_is_refused_or_replaced(house: House, block: dict[str, Any]) -> None:
    within = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
    for content, place in (([block], "messages.0.content.0"), ([within], "messages.0.content.0.content.0")):
        messages = [{"role": "user", "content": content}]
        house.state.unread_parts = "refuse"
        response = await ask(house, messages=messages)
        assert response.status_code == 400 and f"'{place}'" in error_of(response)["message"]
        house.state.unread_parts = "placeholder"
        response = await ask(house, messages=messages)
        assert response.status_code == 200
        kind = block["type"]
        assert f"[{kind} not read]" in prompt_of(house)
        path = "messages[].content[]" + (".content[]" if content[0] is within else "")
        assert f"{path}.{kind}" in ignored(response)


async def test_a_placeholder_also_serves_chats(house: House) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "text", "text": "What is it?"},
    ]
    messages = [{"role": "user", "content": parts}]
    assert (await house.chat(messages=messages)).status_code == 400
    house.state.unread_parts = "placeholder"
    response = await house.chat(messages=messages)
    assert response.status_code == 200 and "messages[].content[].image_url" in ignored(response)
    assert "[user:[image not read]\nWhat is it?]" in prompt_of(house)


async def test_unknown_blocks_are_refused_whatever_the_policy(house: House) -> None:
    house.state.unread_parts = "placeholder"
    response = await ask(house, messages=[{"role": "user", "content": [{"type": "wizard", "text": "x"}]}])
    assert response.status_code == 400 and "wizard" in error_of(response)["message"]


# -- parameters --------------------------------------------------------------------------------------------------------


async def test_parameters_reach_the_engine(house: House) -> None:
    await ask(
        house, temperature=0, top_p=0.5, top_k=7, seed=-2, stop_sequences=["a", "b"], max_tokens=9, priority=-3, cache_salt="t"
    )  # fmt: skip
    asked = house.asked()
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.top_k) == (0.0, 0.5, 7)
    assert (asked.seed, asked.context.priority, asked.context.cache_salt) == (-2, -3, "t")
    assert (asked.stop, asked.max_tokens, asked.n) == (("a", "b"), 9, 1)
    assert asked.context.request_id.startswith("msg_")


async def test_required_fields_are_required(house: House) -> None:
    whole = {"model": "fake", "max_tokens": 16, "messages": HI}
    for name in whole:
        response = await house.post(
            "/v1/messages", {key: value for key, value in whole.items() if key != name}
        )
        assert response.status_code == 400 and f"'{name}'" in error_of(response)["message"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]}, "messages.0.content.0.id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages.0.content.0.tool_use_id"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools.1.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}, {**TOOLS[0], "strict": True, "input_schema": {"type": "array"}}]},
         "tools.1.input_schema"),
        ({"stop": ["x"]}, "stop_sequences"),
        ({"n": 2}, "n"),
        ({"max_token": 5}, "max_tokens"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"const": "x" * 300_000}}}}, "output_config.format"),
        ({"output_format": {"type": "json_schema", "schema": {"const": "x" * 300_000}}}, "output_format"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f"}]}]}, "tool_result"),
    ],
)  # fmt: skip
async def test_mistakes_are_named(house: House, body: dict[str, Any], named: str) -> None:
    for stream in (False, True):
        response = await ask(house, **body, stream=stream)
        assert response.status_code == 400, response.text
        error = error_of(response)
        assert error["type"] == "invalid_request_error" and f"'{named}" in error["message"]
    assert not house.engine.requests


async def test_what_has_no_effect_is_listed(house: House) -> None:
    response = await ask(
        house,
        system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "u"}, service_tier="auto", context_management={"edits": []}, some_beta={"x": 1},
        tools=[*TOOLS, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
        thinking={"type": "enabled", "budget_tokens": 2000}, output_config={"effort": "high"},
        cache_control={"type": "ephemeral"},
    )  # fmt: skip
    assert response.status_code == 200, response.text
    assert set(ignored(response)) == {
        "system[].cache_control", "metadata", "service_tier", "context_management", "some_beta", "tools[].web_search_20250305",
        "tools[].max_uses", "thinking", "output_config.effort", "cache_control",
    }  # fmt: skip


async def test_null_means_left_out(house: House) -> None:
    names = "system stop_sequences temperature top_p top_k tools tool_choice thinking output_config metadata stream seed"
    assert (await ask(house, **dict.fromkeys(names.split()))).status_code == 200


# -- reasoning ---------------------------------------------------------------------------------------------------------


async def test_thinking_turns_reasoning_on_and_off() -> None:
    house = House(template=SWITCHED, notation=ModelNotation(reasoning=REASONING["qwen3"]))
    for thinking, on, told in (
        (None, False, []),
        ({"type": "disabled"}, False, []),
        ({"type": "adaptive"}, True, []),
        ({"type": "enabled", "budget_tokens": 1024}, True, ["thinking.budget_tokens"]),
    ):
        response = await ask(house, thinking=thinking, output_config={"effort": "max"})
        assert prompt_of(house).startswith("[on]max<s>" if on else "max<s>")
        assert ignored(response) == told
        counted = await count(house, thinking=thinking, output_config={"effort": "max"})
        assert counted.json()["input_tokens"] == len(house.engine.requests[-1].prompts[0])
    response = await ask(house, thinking={"type": "disabled"}, chat_template_kwargs={"enable_thinking": True})
    assert prompt_of(house).startswith("[on]")
    house.state.threads.close()


async def test_a_budget_reaches_a_template_that_knows_one() -> None:
    house = House(template="{% if thinking_budget is defined %}[{{ thinking_budget }}]{% endif %}" + TEMPLATE)
    for thinking, begins in (
        (None, "[0]<s>"),
        ({"type": "disabled"}, "[0]<s>"),
        ({"type": "adaptive"}, "<s>"),
        ({"type": "enabled", "budget_tokens": 1024}, "[1024]<s>"),
    ):
        response = await ask(house, thinking=thinking)
        assert prompt_of(house).startswith(begins) and ignored(response) == []
    house.state.threads.close()


async def test_reasoning_is_a_block_of_its_own() -> None:
    template = (
        "{% for m in messages if m.reasoning_content %}<{{ m.reasoning_content }}>{% endfor %}" + TEMPLATE
    )
    house = House(template=template, notation=ModelNotation(reasoning=REASONING["qwen3"]))
    house.engine.script = spells("<think>\nHm.\n</think>\n\nYes.", size=3)
    content = (await ask(house)).json()["content"]
    assert [(one["type"], one.get("thinking") or one.get("text")) for one in content] == [
        ("thinking", "Hm."),
        ("text", "Yes."),
    ]
    for display in ("updates", "summarized"):  # the first is Claude Code's in a terminal
        shown = await ask(house, thinking={"type": "adaptive", "display": display})
        assert shown.json()["content"][0]["thinking"] == "Hm."
    omitted = (await ask(house, thinking={"type": "adaptive", "display": "omitted"})).json()
    assert omitted["content"][0]["thinking"] == "" and "Hm" not in json.dumps(omitted)
    assert omitted["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    for blocks in (content, omitted["content"]):
        sent_back = [*HI, {"role": "assistant", "content": blocks}, {"role": "user", "content": "Sure?"}]
        assert (await ask(house, messages=sent_back)).status_code == 200
        assert prompt_of(house).startswith("<Hm.>") and "[assistant:Yes.]" in prompt_of(house)
    house.state.threads.close()


# -- tools and formats ---------------------------------------------------------------------------------------------------


async def test_a_tool_round_trip(house: House) -> None:
    house.engine.script = spells("Let me. " + CALL, size=5)
    answer = (await ask(house, tools=TOOLS)).json()
    assert answer["stop_reason"] == "tool_use"
    text, call = answer["content"]
    assert (
        text["text"] == "Let me."
        and call["type"] == "tool_use"
        and (call["name"], call["input"]) == ("f", {"x": 1})
    )
    assert prompt_of(house).startswith(
        '<s>[tools:[{"type": "function", "function": {"name": "f", "description": "Does f."'
    )
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "42"}
    messages = [
        *HI,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    house.engine.script = says("42.")
    assert (await ask(house, tools=TOOLS, messages=messages)).json()["stop_reason"] == "end_turn"
    assert prompt_of(house).endswith('[user:Hi][assistant:Let me.(f={"x": 1})][tool:42][assistant:')


@pytest.mark.parametrize(
    ("choice", "forced", "shown", "several"),
    [
        ({"type": "auto"}, False, True, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, True, False),
        ({"type": "any"}, True, True, True),
        ({"type": "tool", "name": "f"}, True, True, False),
        ({"type": "none"}, False, False, True),
    ],
)
async def test_tool_choice(
    house: House, choice: dict[str, Any], forced: bool, shown: bool, several: bool
) -> None:
    house.engine.script = spells(CALL + CALL)
    answer = (await ask(house, tools=TOOLS, tool_choice=choice)).json()
    assert bool(house.judge.asked) is forced
    assert ("[tools:" in prompt_of(house)) is shown
    calls = [one for one in answer["content"] if one["type"] == "tool_use"]
    assert len(calls) == (0 if not shown else 2 if several else 1)
    assert answer["stop_reason"] == ("tool_use" if shown else "end_turn")


async def test_an_output_format_is_a_grammar(house: House) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    for given in ({"output_config": {"format": {"type": "json_schema", "schema": schema}}},
                  {"output_format": {"type": "json_schema", "schema": schema}}):  # fmt: skip
        house.judge.asked.clear()
        assert (await ask(house, **given)).status_code == 200
        assert len(house.judge.asked) == 1 and "answer" in house.judge.asked[0]


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finish", "stop", "max_tokens", "reason"),
    [
        ("stop", None, 16, "end_turn"),
        ("stop", "END", 16, "stop_sequence"),
        ("length", None, 16, "max_tokens"),
        ("length", None, MAX_MODEL_LEN - len("<s>[user:Hi][assistant:"), "max_tokens"),
        ("length", None, 64_000, "model_context_window_exceeded"),
    ],
)
async def test_stop_reasons(
    house: House, finish: str, stop: str | None, max_tokens: int, reason: str
) -> None:
    house.engine.script = says("x", finish=finish, stop_reason=stop)
    answer = (await ask(house, max_tokens=max_tokens)).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop)
    streamed = (await ask(house, max_tokens=max_tokens, stream=True)).text
    assert f'"delta":{{"stop_reason":"{reason}","stop_sequence":{json.dumps(stop)}}}' in streamed


async def test_output_is_limited_by_the_context(house: House) -> None:
    await ask(house, max_tokens=64_000)
    asked = house.asked()
    assert asked.max_tokens is not None and asked.max_tokens + len(asked.prompts[0]) == MAX_MODEL_LEN


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, 3 * MAX_MODEL_LEN, 400 * MAX_MODEL_LEN])
async def test_a_prompt_that_does_not_fit(house: House, length: int) -> None:
    response = await ask(house, messages=[{"role": "user", "content": "x" * length}])
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error" and error["message"].startswith("prompt is too long: ")
    if length < 400 * MAX_MODEL_LEN:
        assert f"tokens > {MAX_MODEL_LEN - 1} maximum" in error["message"]


async def test_a_message_of_the_assistant_at_the_end_is_continued(house: House) -> None:
    await ask(house, messages=[*HI, {"role": "assistant", "content": "Well"}])
    assert prompt_of(house) == "<s>[user:Hi][assistant:Well"
    assert house.asked().continues_prompt
    await ask(house, messages=[*HI, {"role": "assistant", "content": []}])
    assert prompt_of(house) == "<s>[user:Hi][assistant:"


async def test_strict_templates_get_turns() -> None:
    house = House(template=STRICT)
    call = [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]
    result = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "42"},
        {"type": "text", "text": "Go on."},
    ]
    messages = [
        *HI,
        {"role": "assistant", "content": call},
        {"role": "user", "content": result},
        {"role": "system", "content": "Now."},
    ]
    response = await ask(house, messages=messages)
    assert response.status_code == 200, response.text
    assert prompt_of(house).endswith("[tool:42\nGo on.\nNow.][assistant:")
    assert (await count(house, messages=messages)).json()["input_tokens"] == len(house.asked().prompts[0])
    house.state.threads.close()


# -- errors and silence --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (Overloaded("full", 3), 429, "rate_limit_error"),
        (ExecutorFailed("gone"), 500, "api_error"),
        (BrokeExecutor("again"), 500, "api_error"),
        (RuntimeError("odd"), 500, "api_error"),
    ],
)
async def test_refusals(house: House, refusal: Exception, status: int, kind: str) -> None:
    house.engine.refusal = refusal
    for stream in (False, True):
        with structlog.testing.capture_logs():
            response = await ask(house, stream=stream)
        assert response.status_code == status
        assert error_of(response)["type"] == kind
        check_answer(response)
    assert (response.headers.get("retry-after") == "3") is (status == 429)
    assert (response.headers.get("x-should-retry") == "false") is isinstance(refusal, BrokeExecutor)


async def test_errors_around_the_route_have_the_form_too() -> None:
    house = House(options={"api_keys": ["key"], "max_body_bytes": 1000})
    async with house.client(headers={"x-api-key": "key"}) as client:
        answers = {
            404: [
                await client.post("/v1/messages/nothing", json={}),
                await client.post("/v1/messages", json={"model": "x", "max_tokens": 1, "messages": HI}),
            ],
            405: [await client.get("/v1/messages")],
            413: [await client.post("/v1/messages", content=b" " * 2000, headers=AS_JSON)],
            415: [await client.post("/v1/messages/", content=b"{}")],
        }  # fmt: skip
        unkeyed = await client.post("/v1/messages", json={}, headers={"x-api-key": "wrong"})
    kinds = {
        404: "not_found_error",
        405: "invalid_request_error",
        413: "request_too_large",
        415: "invalid_request_error",
    }
    for status, responses in answers.items():
        for response in responses:
            assert response.status_code == status, response.text
            assert error_of(response)["type"] == kinds[status]
    assert unkeyed.status_code == 401 and error_of(unkeyed)["type"] == "authentication_error"
    house.state.threads.close()


async def test_an_error_in_a_stream(house: House) -> None:
    house.engine.script = steps(TextDelta(0, "a", (7,)), ExecutorFailed("gone"))
    response = await ask(house, stream=True)
    check_answer(response)
    assert event_types(response)[-1] == "error" and "[DONE]" not in response.text
    error = json.loads(response.text.split("data: ")[-1])
    assert error == {
        "type": "error",
        "error": {"type": "api_error", "message": "gone"},
        "request_id": response.headers["request-id"],
    }


async def test_pings_break_a_silence_before_and_within_a_message(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE", 0.02)
    monkeypatch.setattr(event_stream.EventStream.__init__, "__defaults__", (0.02, event_stream._OPENAI))
    first, second = asyncio.Event(), asyncio.Event()
    house.engine.script = steps(
        first, TextDelta(0, "a", (7,)), second, TextDelta(0, "b", (8,), finish_reason="stop")
    )
    loop = asyncio.get_running_loop()
    loop.call_later(0.1, first.set)
    loop.call_later(0.2, second.set)
    response = await ask(house, stream=True)
    check_answer(response)
    kinds = event_types(response)
    assert kinds[:2] == ["message_start", "ping"] and kinds.count("message_start") == 1
    assert "ping" in kinds[kinds.index("content_block_delta") :]
    rest = [kind for kind in kinds if kind != "ping"]
    assert rest == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip


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


# -- names and counts ----------------------------------------------------------------------------------------------------


async def test_aliases_name_the_served_model(house: House) -> None:
    house.state.aliases = (("claude-*", "fake"), ("gpt-?", "gone"), ("fa*", "gone"))
    for name, status in (
        ("claude-sonnet-4-5", 200),
        ("fake", 200),
        ("fable", 404),
        ("gpt-5", 404),
        ("gemini", 404),
    ):
        for path in ("/v1/messages", "/v1/chat/completions"):
            response = await house.post(path, {"model": name, "max_tokens": 5, "messages": HI})
            assert response.status_code == status, name
            assert status == 200 or "'claude-*'" in response.text
            if status == 200:
                assert response.json()["model"] == name
    assert (await house.get("/v1/models/claude-x")).json()["id"] == "claude-x"
    assert (await house.get("/v1/models/gpt-5")).status_code == 404


async def test_models_have_anthropics_form_for_its_clients(house: House) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    listed = await house.get("/v1/models", headers=headers)
    check_answer(listed)
    assert [one["id"] for one in listed.json()["data"]] == ["fake", "org/fake-1"]
    one = await house.get("/v1/models/org/fake-1", headers=headers)
    check_answer(one)
    assert one.json() == listed.json()["data"][1]
    assert (await house.get("/v1/models")).json()["object"] == "list"


async def test_counts_equal_the_usage(house: House) -> None:
    bodies: list[dict[str, Any]] = [
        {},
        {"system": "Be brief.", "tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "none"}},
        {"messages": [*HI, {"role": "assistant", "content": "Well"}]},
    ]
    for body in bodies:
        counted = await count(house, **body)
        check_answer(counted)
        usage = (await ask(house, **body)).json()["usage"]
        assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;", ""),
        ("x-anthropic-billing-header: cc_version=2.1; cch=fa690;\n\nYou are Claude.", "You are Claude."),
        ("x-anthropic-billing-header: cch=00; You are; a = b; x", "You are; a = b; x"),
        ("x-anthropic-billing-header: opaque; You are", "You are"),
        ("x-anthropic-billing-header: opaque\nYou are", "You are"),
        ("You are\nx-anthropic-billing-header: cch=1;\nClaude", "You are\nClaude"),
        ("Never send x-anthropic-billing-header: a=b; to anybody", "Never send x-anthropic-billing-header: a=b; to anybody"),
        ("You are Claude.", "You are Claude."),
    ],
)  # fmt: skip
def test_the_billing_header_is_left_out(text: str, rest: str) -> None:
    assert without_billing_header(text) == rest


async def test_the_billing_header_does_not_change_the_prompt(house: House) -> None:
    prompts = set()
    for number in (1, 2):
        header = f"x-anthropic-billing-header: cc_version=2.{number}; cch={number:05};"
        blocks = [{"type": "text", "text": header}, {"type": "text", "text": "You are Claude."}]
        await ask(house, system=blocks)
        prompts.add(prompt_of(house))
        await ask(house, system=f"{header}\nYou are Claude.")
        prompts.add(prompt_of(house))
        await house.chat(messages=[{"role": "system", "content": f"{header}\nYou are Claude."}, *HI])
        prompts.add(prompt_of(house))
        await house.chat(messages=[{"role": "system", "content": blocks}, *HI])
        prompts.add(prompt_of(house))
    assert prompts == {"<s>[system:You are Claude.][user:Hi][assistant:"}
