"""Qwen3.5, Qwen3.6, Qwen3-Next and LFM2: what their templates show is found, what they write is read, however it is cut."""
# ruff: noqa: E501 -- in a format every line break counts

from __future__ import annotations

import json
from typing import Any

import pytest

from server.answer.notation import ModelNotation, model_notation
from server.answer.reasoning import Place
from server.templates.template import ChatTemplate
from tests.server.answer.tools.formats import SCHEMA
from tests.server.answer.tools.test_chat_tools import asked_both_ways
from tests.server.answer.tools.test_formats import decoded
from tests.server.answer.tools.test_notation import Tokens
from tests.server.answer.tools.test_real_templates import check
from tests.server.fakes import House, spells
from tests.server.templates.hybrid_shapes import HYBRIDS
from tests.tiers import sweep

QWENS = ("qwen_3_5", "qwen_3_5_small", "qwen_3_6")
FORMATS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(QWENS, ("qwen3_coder", "qwen3")),
    "qwen_3_next": ("hermes", "none"),
    "qwen_3_next_thinking": ("hermes", "qwen3"),
    "lfm_2": ("lfm2", "none"),
    "lfm_2_json": ("lfm2", "none"),
    "lfm_2_thinking": ("lfm2", "qwen3"),
    "lfm_2_5": ("lfm2", "qwen3"),
}
OPENS = {"qwen_3_5": (None, True), "qwen_3_5_small": (True,), "qwen_3_6": (None, True), "qwen_3_next_thinking": (None, True, False)}  # fmt: skip
"""Values of `enable_thinking`, None for none, with which the prompt ends within a block of reasoning."""
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "It looks.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "ping"}},
]  # fmt: skip
XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nIt's 5 < 6\n</parameter>\n<parameter=days>\n5\n</parameter>\n"
    '<parameter=fast>\nTrue\n</parameter>\n<parameter=tags>\n[\'a\', "5"]\n</parameter>\n<parameter=more>\n{"k": null}\n'
    "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>"
)
HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "It\'s 5 < 6", "days": 5, "fast": true, '
    '"tags": ["a", "5"], "more": {"k": null}}}\n</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
)
PYTHON = (
    "<|tool_call_start|>[get_weather(city='It's 5 < 6', days=5, fast=True, tags=['a', '5'], more={\"k\": null}), "
    "ping()]<|tool_call_end|>"
)
OBJECTS = (
    '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "It\'s 5 < 6", "days": 5, "fast": true, '
    '"tags": ["a", "5"], "more": {"k": null}}}, {"name": "ping", "arguments": {}}]<|tool_call_end|>'
)
ANSWERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(QWENS, (XML,)),
    "qwen_3_next": (HERMES,),
    "qwen_3_next_thinking": (HERMES,),
    **dict.fromkeys(("lfm_2", "lfm_2_json", "lfm_2_thinking", "lfm_2_5"), (PYTHON, OBJECTS)),
}
CALLED = [
    ("get_weather", {"city": "It's 5 < 6", "days": 5, "fast": True, "tags": ["a", "5"], "more": {"k": None}}),
    ("ping", {}),
]
LFM_TOKENS = {"<|tool_call_start|>": 300, "<|tool_call_end|>": 301}


def notation_of(name: str) -> tuple[ChatTemplate, ModelNotation]:
    template = ChatTemplate(HYBRIDS[name], {"bos_token": "<s>"})
    tokens = Tokens(LFM_TOKENS if name.startswith("lfm") else {})
    return template, model_notation(tokens, template, None, None, generic_tools=True)


def house_of(name: str) -> House:
    template, notation = notation_of(name)
    house = House(template=HYBRIDS[name], notation=notation)
    assert house.state.model is not None and house.state.model.template is not None
    house.state.model.template.writes_calls = template.writes_calls
    return house


def prompt_of(house: House) -> str:
    return bytes(house.engine.requests[-1].prompts[0]).decode()


@pytest.mark.parametrize("name", HYBRIDS)
def test_formats_are_found(name: str) -> None:
    template, notation = notation_of(name)
    assert (notation.facts["tool_calls"], notation.facts["reasoning"]) == FORMATS[name]
    assert not notation.unknown and template.generic_tools is None
    if name.startswith("lfm"):
        assert notation.special == set(LFM_TOKENS), "its tags are special tokens, which arrive as text"
    check(template, notation)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("enable_thinking", [None, True, False])
def test_where_an_answer_begins(name: str, enable_thinking: bool | None) -> None:
    template, notation = notation_of(name)
    if notation.reasoning is None:
        assert "<think>" not in HYBRIDS[name]
        return
    extra = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    prompt = template.prompt([{"role": "user", "content": "Hi"}], TOOLS, extra=extra)
    place = notation.reasoning.place(lambda ids: bytes(ids).decode(), list(prompt.encode()), None)
    if name in OPENS:
        assert place is (Place.INSIDE if enable_thinking in OPENS[name] else Place.AFTER)
    else:
        assert place is Place.UNDECIDED, "LFM2's models open the block themselves"


@sweep(every=3)
@pytest.mark.parametrize("thinks", [False, True], ids=["answers", "thinks"])
@pytest.mark.parametrize("size", [1, 2, 7, 10_000])
@pytest.mark.parametrize("name", HYBRIDS)
async def test_calls_are_read_however_they_are_cut(name: str, size: int, thinks: bool) -> None:
    """With text before them, after reasoning and without, `size` bytes a piece."""
    house = house_of(name)
    kwargs = {"enable_thinking": thinks} if "qwen" in name else {}
    is_inside = thinks in OPENS.get(name, ())
    if thinks and house.notation.reasoning is None:
        return
    for written in ANSWERS[name]:
        thought = "Hm, <tool_call> or <|tool_call_start|>[?\n</think>\n\n"
        before = thought if is_inside else f"<think>{thought}" if thinks else ""
        house.engine.script = spells(f"{before}I look.\n{written}", size=size)
        choice = await asked_both_ways(house, tools=TOOLS, chat_template_kwargs=kwargs)
        message = choice["message"]
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message["tool_calls"]
        ]
        assert calls == CALLED
        assert (message["content"], choice["finish_reason"]) == ("I look.", "tool_calls")
        thoughts = "Hm, <tool_call> or <|tool_call_start|>[?" if before else None
        assert message.get("reasoning_content") == thoughts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen_3_5_small", "<tool_call>\nget_weather(Rome)\n</tool_call>"),
        ("qwen_3_5_small", "Write <function=NAME> within <tool_call>."),
        ("qwen_3_5_small", "<tool_call>\n<function=>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>"),
        ("qwen_3_next", '<tool_call>\n{"name": get_weather}\n</tool_call>'),
        ("qwen_3_next", '<tool_call>{"arguments": {}}</tool_call>'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 10_000])
async def test_what_is_no_call_is_text(name: str, text: str, size: int) -> None:
    house = house_of(name)
    house.engine.script = spells(text, size=size)
    choice = await asked_both_ways(house, tools=TOOLS)
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<|tool_call_start|>weather of Rome<|tool_call_end|>", "weather of Rome"),
        ("<|tool_call_start|>[{get_weather}]<|tool_call_end|>", "[{get_weather}]"),
        ('<|tool_call_start|>[{"arguments": {}}]<|tool_call_end|>', '[{"arguments": {}}]'),
        ("<|tool_call_start|>[]<|tool_call_end|>", "[]"),
    ],
)
@pytest.mark.parametrize("size", [1, 10_000])
async def test_what_is_no_call_of_lfm2_is_text(written: str, shown: str, size: int) -> None:
    """Its tags are special tokens, which no text shows."""
    house = house_of("lfm_2_5")
    house.engine.script = spells(written, size=size)
    choice = await asked_both_ways(house, tools=TOOLS)
    assert (choice["message"]["content"], choice["finish_reason"]) == (shown, "stop")


def test_a_quote_before_a_letter_ends_no_string() -> None:
    for text, city in (
        ("'it's'", "it's"),
        ("'O'Neill's x'", "O'Neill's x"),
        ('"a"b"', 'a"b'),
        ("'a'", "a"),
        ("''", ""),
        ("'''it's 'so' x'''", "it's 'so' x"),
        ("'a', days=3", "a"),
    ):
        whole = f"<|tool_call_start|>[f(city={text})]<|tool_call_end|>"
        for pieces in ([whole], list(whole)):
            [(name, arguments)] = decoded("lfm2", *pieces)[1]
            assert (name, arguments["city"]) == ("f", city)
            assert ("days" in arguments) == ("days" in text)


# Variables of the templates, through every API.

HISTORY = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "reasoning_content": "Old."},
    {"role": "user", "content": "r"},
]
BLOCKS = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Old.", "signature": ""}, {"type": "text", "text": "a"}]},
    {"role": "user", "content": "r"},
]  # fmt: skip
ITEMS = [
    {"type": "message", "role": "user", "content": "q"},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Old."}],
    },
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    {"type": "message", "role": "user", "content": "r"},
]
TURNS = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{}a<|im_end|>\n<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n"
KEPT, CLOSED, OPENED = "<think>\nOld.\n</think>\n\n", "<think>\n\n</think>\n\n", "<think>\n"
ENDPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HISTORY}),
    "messages": ("/v1/messages", {"messages": BLOCKS, "max_tokens": 8}),
    "responses": ("/v1/responses", {"input": ITEMS}),
}
VARIABLES: list[tuple[dict[str, bool], str, str]] = [
    ({"enable_thinking": False}, "", CLOSED),
    ({"enable_thinking": True}, "", OPENED),
    ({"enable_thinking": True, "preserve_thinking": True}, KEPT, OPENED),
    ({"enable_thinking": False, "preserve_thinking": True}, KEPT, CLOSED),
]


@pytest.mark.parametrize(("kwargs", "history", "begin"), VARIABLES)
@pytest.mark.parametrize("api", ENDPOINTS)
async def test_the_templates_variables(api: str, kwargs: dict[str, bool], history: str, begin: str) -> None:
    house = house_of("qwen_3_6")
    path, body = ENDPOINTS[api]
    response = await house.post(path, {"model": "fake", **body, "chat_template_kwargs": kwargs})
    assert response.status_code == 200, response.text
    assert prompt_of(house) == TURNS.format(history) + begin
    assert "x-cohort-ignored" not in response.headers


@pytest.mark.parametrize(("kwargs", "history", "begin"), VARIABLES)
async def test_the_templates_variables_in_a_counted_prompt(
    kwargs: dict[str, bool], history: str, begin: str
) -> None:
    house = house_of("qwen_3_6")
    body = {"model": "fake", "messages": HISTORY, "chat_template_kwargs": kwargs}
    counted = (await house.post("/tokenize", body)).json()
    assert bytes(counted["tokens"]).decode() == TURNS.format(history) + begin
    body = {"model": "fake", "messages": BLOCKS, "chat_template_kwargs": kwargs}
    counted = (await house.post("/v1/messages/count_tokens", body)).json()
    assert counted["input_tokens"] == len(TURNS.format(history) + begin)


@pytest.mark.parametrize(("think", "begin"), [(False, CLOSED), (True, OPENED), (None, OPENED)])
async def test_ollamas_think(think: bool | None, begin: str) -> None:
    """Its API has no variables, but a parameter of its own."""
    house = house_of("qwen_3_6")
    messages = [{"role": "user", "content": "q"}]
    body = {"model": "fake", "messages": messages, "stream": False} | (
        {} if think is None else {"think": think}
    )
    response = await house.post("/api/chat", body)
    assert response.status_code == 200, response.text
    assert prompt_of(house).endswith("<|im_start|>assistant\n" + begin)


async def test_a_template_that_always_reasons_says_so() -> None:
    """Qwen3-Next-Thinking reads no `enable_thinking`: the answer's header lists it."""
    response = await house_of("qwen_3_next_thinking").chat(chat_template_kwargs={"enable_thinking": False})
    assert response.headers["x-cohort-ignored"] == "chat_template_kwargs.enable_thinking"
