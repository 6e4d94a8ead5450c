"""Tools and reasoning over HTTP: what reaches the engine, and that a stream says the same as the whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from server.answer.tools.hermes import Hermes
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.mistral import Mistral
from tests.server.fakes import TEMPLATE, House, error_of, events, spells


def function(name: str, **rest: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters, **rest}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS = [function("f"), function("g")]
F, G = (f'<tool_call>\n{{"name": "{name}", "arguments": {{"x": 1}}}}\n</tool_call>' for name in "fg")
THINKING = "<think>\nHm, é.\n</think>\n\n"
QWEN3 = ModelNotation(
    Hermes("hermes"), REASONING["qwen3"], {"<tool_call>": 300, "<think>": 301, "</think>": 302}
)
LLAMA = ModelNotation(
    Llama3Json("llama3_json"), None, {"<|python_tag|>": 303}, frozenset({"<|python_tag|>"}), True
)
MISTRAL = ModelNotation(
    Mistral("mistral", has_marks=True),
    None,
    {"[TOOL_CALLS]": 304, "[ARGS]": 305},
    frozenset({"[TOOL_CALLS]", "[ARGS]"}),
)


async def streamed(house: House, **body: Any) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """A stream's choices put together as a client would, and its usage."""
    data = events(await house.chat(stream=True, stream_options={"include_usage": True}, **body))
    assert data[-1] == "[DONE]"
    *chunks, last = [json.loads(one) for one in data[:-1]]
    assert last["choices"] == []
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        [choice] = chunk["choices"]
        delta = choice["delta"]
        got = choices.setdefault(choice["index"], {"content": "", "calls": [], "tokens": [], "ids": []})
        got["content"] += delta.get("content") or ""
        for name in ("reasoning", "reasoning_content"):
            if name in delta:
                got[name] = got.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(got["calls"])
                assert call["type"] == "function"
                got["calls"].append({"name": call["function"]["name"], "arguments": ""})
            got["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        if choice["logprobs"]:
            got["tokens"] += choice["logprobs"]["content"]
        got["ids"] += choice.get("token_ids", ())
        if choice["finish_reason"]:
            got["finish_reason"] = choice["finish_reason"]
    return choices, last["usage"]


async def asked_both_ways(house: House, **body: Any) -> dict[str, Any]:
    """The first choice of the whole answer, after a look at whether the stream is the same."""
    whole = (await house.chat(**body)).json()
    choices, usage = await streamed(house, **body)
    assert usage == whole["usage"]
    assert len(choices) == len(whole["choices"])
    for choice in whole["choices"]:
        got, message = choices[choice["index"]], choice["message"]
        assert got["content"] == (message["content"] or "")
        assert got["calls"] == [call["function"] for call in message.get("tool_calls", ())]
        for name in ("reasoning", "reasoning_content"):
            assert got.get(name) == message.get(name)
        assert got["finish_reason"] == choice["finish_reason"]
        assert got["tokens"] == (choice["logprobs"] or {"content": []})["content"]
        assert got["ids"] == choice.get("token_ids", [])
    return {**whole["choices"][0], "usage": whole["usage"]}


TEXTS = [
    ("Hello", "Hello", [], "stop"),
    (F, None, ["f"], "tool_calls"),
    (f"Let me see.\n{F}\n{G}\n", "Let me see.", ["f", "g"], "tool_calls"),
    (F + "Both.", "Both.", ["f"], "tool_calls"),
    ("<tool_call>{}", "<tool_call>{}", [], "stop"),
]


@pytest.mark.parametrize(("text", "content", "calls", "reason"), TEXTS)
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "return_token_ids": True, "n": 2}])
async def test_a_stream_says_the_same(
    house: House,
    text: str,
    content: str | None,
    calls: list[str],
    reason: str,
    size: int,
    extra: dict[str, Any],
) -> None:
    house.engine.script = spells(text, size=size)
    choice = await asked_both_ways(house, tools=TOOLS, **extra)
    assert choice["message"]["content"] == content
    assert [call["function"]["name"] for call in choice["message"].get("tool_calls", ())] == calls
    assert choice["finish_reason"] == reason
    assert house.engine.requests[0].grammar is None
    if extra:
        assert bytes(choice["token_ids"]).decode() == text
        assert len(choice["logprobs"]["content"]) == len(text), "those of calls are among them"


@pytest.mark.parametrize("size", [1, 5, 1000])
async def test_reasoning(size: int) -> None:
    house = House(notation=QWEN3)
    house.engine.script = spells(f"{THINKING}Well.\n{F}", size=size)
    choice = await asked_both_ways(house, tools=TOOLS, n=2)
    message = choice["message"]
    assert message["reasoning"] == message["reasoning_content"] == "Hm, é."
    assert message["content"] == "Well."
    assert len(message["tool_calls"]) == 1
    thought = len("<think>\nHm, é.\n</think>".encode())
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2 * thought


async def test_reasoning_tokens_are_counted_in_every_chunk() -> None:
    house = House(notation=QWEN3)
    house.engine.script = spells("<think>a</think>bc")
    options = {"include_usage": True, "continuous_usage_stats": True}
    data = events(await house.chat(stream=True, stream_options=options))
    usages = [json.loads(one)["usage"] for one in data[:-1]]
    counts = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert counts[-1] == len("<think>a</think>")
    assert all(c <= usage["completion_tokens"] for c, usage in zip(counts, usages, strict=True))


async def test_reasoning_fields_and_leaving_it_out() -> None:
    house = House(notation=QWEN3)
    house.engine.script = spells(THINKING + "Yes.")
    house.state.reasoning_fields = ("reasoning",)
    message = (await asked_both_ways(house))["message"]
    assert message == {"role": "assistant", "content": "Yes.", "refusal": None, "reasoning": "Hm, é."}
    choice = await asked_both_ways(house, include_reasoning=False)
    assert choice["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0, (
        "it was generated all the same"
    )


async def test_unclosed_reasoning_is_all_reasoning() -> None:
    house = House(notation=QWEN3)
    house.engine.script = spells("<think>Hm. " + F, finish="length")
    choice = await asked_both_ways(house, tools=TOOLS)
    assert choice["message"]["content"] is None
    assert choice["message"]["reasoning"] == "Hm. " + F
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "length"
    assert (
        choice["usage"]["completion_tokens_details"]["reasoning_tokens"]
        == choice["usage"]["completion_tokens"]
    )


@pytest.mark.parametrize(
    ("opened", "reasoning", "content"),
    [
        ("<think>\n", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\n", None, "Hm.</think>Yes."),
        ("", None, "Hm.</think>Yes."),
    ],
)
async def test_where_the_prompt_left_off(opened: str, reasoning: str | None, content: str) -> None:
    template = TEMPLATE.replace("[assistant:{%", f"[assistant:{opened}{{%")
    assert template != TEMPLATE or not opened
    house = House(template=template, notation=QWEN3)
    house.engine.script = spells("Hm.</think>Yes.")
    message = (await asked_both_ways(house))["message"]
    assert message.get("reasoning") == reasoning
    assert message["content"] == content


@pytest.mark.parametrize(("text", "reasoning"), [("<think>Hm", " so.</think>Yes"), ("Well", None)])
async def test_a_message_that_goes_on(text: str, reasoning: str | None) -> None:
    house = House(notation=QWEN3)
    house.engine.script = spells(" so.</think>Yes")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]
    message = (await asked_both_ways(house, messages=messages, continue_final_message=True))["message"]
    assert message.get("reasoning") == ("so." if reasoning else None)
    assert message["content"] == ("Yes" if reasoning else " so.</think>Yes")


async def test_special_notation_is_shown_to_the_parser_alone() -> None:
    house = House(notation=MISTRAL)
    house.engine.script = spells('[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]')
    choice = await asked_both_ways(house, tools=TOOLS)
    assert choice["message"]["content"] is None
    assert [len(call["id"]) for call in choice["message"]["tool_calls"]] == [9]
    assert house.engine.requests[0].shown_special == {304, 305}
    await house.chat()
    assert house.engine.requests[-1].shown_special == frozenset(), "no tools, no calls"


@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_special_tags_of_reasoning_are_never_shown(tools: Any) -> None:
    tokens = {"[THINK]": 306, "[/THINK]": 307}
    house = House(notation=ModelNotation(Hermes("hermes"), REASONING["mistral"], tokens, frozenset(tokens)))
    house.engine.script = spells("[THINK]Hm.[/THINK]\nYes.[/THINK] [THI No. ")
    message = (await asked_both_ways(house, tools=tools))["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "Yes. [THI No. ")
    assert house.engine.requests[0].shown_special == {306, 307}


async def test_parsing_switched_off() -> None:
    house = House(notation=ModelNotation(tools=None))
    house.engine.script = spells(F)
    choice = await asked_both_ways(house, tools=TOOLS)
    assert (choice["message"]["content"], choice["finish_reason"]) == (F, "stop")
    cannot: list[tuple[str, dict[str, Any]]] = [
        ("tool_choice", {"tools": TOOLS, "tool_choice": "required"}),
        ("parallel_tool_calls", {"tools": TOOLS, "parallel_tool_calls": False}),
        ("tools.0.function.strict", {"tools": [function("f", strict=True)]}),
    ]
    for param, body in cannot:
        assert error_of(await house.chat(**body))["param"] == param


@pytest.mark.parametrize("single", ["parallel_tool_calls", "template"])
async def test_one_call_ends_the_answer(single: str) -> None:
    house = House(notation=LLAMA if single == "template" else ModelNotation())
    call = '{"name": "f", "parameters": {"x": 1}}' if single == "template" else F
    house.engine.script = spells(f"{call}; {call}")
    body = {} if single == "template" else {"parallel_tool_calls": False}
    choice = await asked_both_ways(house, tools=TOOLS, **body)
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    assert choice["usage"]["completion_tokens"] == call.rindex("}") + 1
    house.engine.script = spells(f"{call}; {call}", size=1000)
    assert len((await asked_both_ways(house, tools=TOOLS, **body))["message"]["tool_calls"]) == 1


def grammar_of(house: House) -> dict[str, Any]:
    """The grammars of the last request, by name."""
    text = house.engine.requests[-1].grammar
    assert text is not None
    assert house.judge.asked[-1] == text
    return {one.pop("name"): one for one in json.loads(text)["grammars"]}


@pytest.mark.parametrize(
    ("choice", "calls", "parts"),
    [
        ("required", [F, F + "\n" + G], {"f0", "f1"}),
        (named("g"), [G], {"f1"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("f")]}},
            [F],
            {"f0"},
        ),
    ],
)
async def test_forced_calls_have_a_grammar(
    house: House, choice: Any, calls: list[str], parts: set[str]
) -> None:
    for text in calls:
        house.engine.script = spells(text)
        answer = await asked_both_ways(house, tools=TOOLS, tool_choice=choice)
        assert len(answer["message"]["tool_calls"]) == text.count("<tool_call>")
        assert answer["finish_reason"] == ("stop" if choice == named("g") else "tool_calls")
    grammars = grammar_of(house)
    assert set(grammars) == {"start", *parts}
    assert grammars[min(parts)]["json_schema"]["required"] == ["x"]


async def test_tools_that_are_not_allowed_are_not_shown(house: House) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("g")]}}
    await house.chat(tools=TOOLS, tool_choice=allowed)
    prompt = bytes(house.asked().prompts[0]).decode()
    assert '"g"' in prompt
    assert '"f"' not in prompt
    await house.chat(tools=TOOLS, tool_choice=named("g"))
    assert '"f"' in bytes(house.engine.requests[-1].prompts[0]).decode()


async def test_strict_functions_and_answers_beside_calls(house: House) -> None:
    await house.chat(tools=[function("f", strict=True), function("g")])
    grammars = grammar_of(house)
    assert grammars["f0"]["json_schema"]["required"] == ["x"]
    assert "required" not in grammars["f1"]["json_schema"], "it is not strict"
    schema = {"name": "s", "schema": {"type": "object"}}
    form = {"type": "json_schema", "json_schema": schema}
    await house.chat(tools=TOOLS, response_format=form)
    assert set(grammar_of(house)) == {"start", "answer", "f0", "f1"}
    await house.chat(tools=TOOLS, tool_choice="required", response_format=form)
    assert set(grammar_of(house)) == {"start", "f0", "f1"}


async def test_a_grammar_begins_after_the_reasoning() -> None:
    house = House(notation=QWEN3)
    for body in ({"response_format": {"type": "json_object"}}, {"tools": TOOLS, "tool_choice": "required"}):
        await house.chat(**body)
        assert "<[301]>" in grammar_of(house)["start"]["lark_grammar"], "a block may come"
    closed = TEMPLATE.replace("[assistant:{%", "[assistant:<think></think>{%")
    house = House(notation=QWEN3, template=closed)
    await house.chat(response_format={"type": "json_object"})
    assert set(grammar_of(house)) == {"start"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": named("h")}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [1]}}},
            "tool_choice.allowed_tools.tools.0",
        ),
        ({"tools": [function("f", parameters={"type": "array"})], "tool_choice": "required"}, "tools.0.function.parameters"),
        ({"tools": [function("f"), function("f")]}, "tools.1.function.name"),
        ({"tools": [function("f g")]}, "tools.0.function.name"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"include_reasoning": "no"}, "include_reasoning"),
        ({"separate_reasoning": False}, "separate_reasoning"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_by_name(house: House, body: dict[str, Any], param: str) -> None:
    response = await house.chat(**body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_a_template_without_tools_says_so() -> None:
    house = House(template="{% for m in messages %}{{ m.content }}{% endfor %}")
    assert error_of(await house.chat(tools=TOOLS))["param"] == "tools"
    assert (await house.chat(tools=TOOLS, tool_choice="none")).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"tools": [function("f"), function("g", strict=True)]}, "tools.1.function.strict"),
    ],
)
async def test_an_executor_without_grammars_says_so(house: House, body: dict[str, Any], param: str) -> None:
    house.core.executor.grammars = False
    response = await house.chat(**body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_a_call_that_a_stop_string_cut_is_none_to_carry_out(house: House) -> None:
    house.engine.script = spells(F + '<tool_call>\n{"name": "g", "arguments": {"x": ')
    answer = (await house.chat(tools=TOOLS, stop=["Rome"])).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["f", "g"]
    choices, _ = await streamed(house, tools=TOOLS, stop=["Rome"])
    assert choices[0]["finish_reason"] == "stop"


async def test_text_behind_a_grammar_is_refused(house: House) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
    response = await house.chat(response_format=schema, include_stop_str_in_output=True)
    assert response.status_code == 400
    assert error_of(response)["param"] == "include_stop_str_in_output"
    assert (await house.chat(include_stop_str_in_output=True)).status_code == 200


@pytest.mark.parametrize("strict", [False, True], ids=["forced", "strict"])
async def test_annotations_in_a_function_s_schema(strict: bool) -> None:
    """Formats that no standard knows, and whatever else says nothing of values."""
    number = {
        "type": "string",
        "format": "phone",
        "$comment": "c",
        "deprecated": True,
        "x-unit": "n",
        "nullable": True,
    }
    schema = {"type": "object", "properties": {"number": number}, "required": ["number"], "$schema": "mine"}
    asked = function("f", strict=strict)
    asked["function"]["parameters"] = schema
    house = House()
    house.engine.script = spells('<tool_call>\n{"name": "f", "arguments": {"number": "1"}}\n</tool_call>')
    response = await house.chat(tools=[asked], **({} if strict else {"tool_choice": "required"}))
    assert response.status_code == 200, response.text
    grammar = house.asked().grammar
    assert grammar is not None and "number" in grammar and "phone" not in grammar
    assert '"format": "phone"' in bytes(house.asked().prompts[0]).decode()
