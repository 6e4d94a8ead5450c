"""`cache_control`: the engine is told where a marked block ends in the prompt, and `usage` tells what is kept there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from server.answer.notation import ModelNotation, model_notation
from server.prepare.cache_points import common, num_tokens
from server.state.prefix_keeping import PrefixKeeping
from server.templates.template import ChatTemplate
from tests.server.answer.tools.test_hybrid_formats import LFM_TOKENS
from tests.server.answer.tools.test_notation import Tokens
from tests.server.fakes import House, error_of, says
from tests.server.templates.hybrid_shapes import HYBRIDS
from tests.server.templates.template_shapes import SHAPES
from tests.tiers import sweep

EPHEMERAL = {"type": "ephemeral"}
TOOLS: list[dict[str, Any]] = [
    {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    {"name": "go", "description": "Goes.", "input_schema": {"type": "object"}},
]  # fmt: skip
SYSTEM = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be polite."}]
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 5}},
    ]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
            {"type": "text", "text": "Seen"}, {"type": "text", "text": "all."},
        ]},
        {"type": "text", "text": "And now?"},
    ]},
]  # fmt: skip
Place = tuple[str | int, ...]
PLACES: dict[Place, str] = {
    ("system", 0): "Be brief.",
    ("system", 1): "Be brief.\n\nBe polite.",
    ("messages", 0, "content", 0): "First.",
    ("messages", 0, "content", 1): "Second.",
    ("messages", 1, "content", 1): "I look.",
    ("messages", 2, "content", 0, "content", 0): "Seen",
    ("messages", 2, "content", 0, "content", 1): "Seen\nall.",
    ("messages", 2, "content", 0): "Seen\nall.",
    ("messages", 2, "content", 1): "And now?",
}
"""Marked blocks, and the text that a prompt has up to the mark."""


def house_of(template: str, *, at_points: bool = True, interval: int = 4) -> House:
    compiled = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"})
    tokens = Tokens(LFM_TOKENS if "List of tools" in template else {})
    notation: ModelNotation = model_notation(tokens, compiled, None, None, generic_tools=True)
    house = House(template=template, notation=notation)
    assert house.state.model is not None and house.state.model.template is not None
    house.state.model.template.generic_tools = compiled.generic_tools
    house.state.model.template.writes_calls = compiled.writes_calls
    house.state.model = replace(
        house.state.model, prefixes=PrefixKeeping(interval, at_points), max_model_len=4096
    )
    return house


def body_with(*places: Place, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(
        json.dumps({"model": "fake", "max_tokens": 8, "system": SYSTEM, "tools": TOOLS, "messages": MESSAGES})
    )
    for place in places:
        block: Any = body
        for step in place:
            block = block[step]
        block["cache_control"] = EPHEMERAL
    return {**body, **more}


async def ask(house: House, body: dict[str, Any]) -> httpx.Response:
    response = await house.post("/v1/messages", body)
    assert response.status_code == 200, response.text
    return response


def beginnings(house: House) -> list[str]:
    """The prompt up to each place that the engine was told."""
    request = house.engine.requests[-1]
    return [bytes(request.prompts[0][:point]).decode() for point in request.cache_points]


SEVERAL = {name: SHAPES[name] for name in ("tools_in_xml_and_thinking", "generation_blocks", *HYBRIDS)}


@sweep(every=3)
@pytest.mark.parametrize("shape", SEVERAL)
async def test_a_mark_is_where_its_block_ends(shape: str) -> None:
    """A template may trim, escape or move a text, and join it with others."""
    house = house_of(SEVERAL[shape], at_points=False)
    for place, text in PLACES.items():
        await ask(house, body_with(place))
        [found] = beginnings(house)
        assert found.endswith(text), (place, found[-60:])


@pytest.mark.parametrize("shape", SEVERAL)
async def test_marks_of_tools_and_calls(shape: str) -> None:
    house = house_of(SEVERAL[shape])
    await ask(house, body_with(("tools", 0)))
    first = beginnings(house)[0]
    assert "Looks." in first and "Goes." not in first
    await ask(house, body_with(("tools", 1)))
    both = beginnings(house)[0]
    assert "Goes." in both and "First." not in both and len(both) > len(first)
    await ask(house, body_with(("messages", 1, "content", 2)))
    called = beginnings(house)[-1]
    assert "look" in called[called.index("I look.") + 7 :] and "Seen" not in called


@sweep(every=3)
@pytest.mark.parametrize("shape", SEVERAL)
async def test_a_new_conversation_with_the_same_tools_begins_there(shape: str) -> None:
    """Without a mark, too, and in every API: the beginning that a conversation has in common with another one."""
    house = house_of(SEVERAL[shape])
    await ask(house, body_with())
    [opening] = beginnings(house)
    await ask(house, body_with(messages=[{"role": "user", "content": "Something else."}]))
    [other] = beginnings(house)
    assert opening == other and "Be polite." in opening and "Goes." in opening
    whole = bytes(house.engine.requests[0].prompts[0]).decode()
    assert whole[len(opening) :].startswith("First.")
    chat = [{"role": "system", "content": "Be brief.\n\nBe polite."}, {"role": "user", "content": "First."}]
    functions = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}
        for name, text, schema in (one.values() for one in TOOLS)
    ]
    assert (await house.chat(messages=chat, tools=functions)).status_code == 200
    assert beginnings(house) == [opening]
    items = {
        "model": "fake",
        "input": chat,
        "tools": [{"type": "function", **one["function"]} for one in functions],
    }
    assert (await house.post("/v1/responses", items)).status_code == 200
    assert "Goes." in beginnings(house)[0] and len(beginnings(house)) == 1
    await house.chat()
    assert house.engine.requests[-1].cache_points == (), "it has nothing in common with another one"


async def test_a_mark_of_the_whole_conversation() -> None:
    """Later turns go on behind the last block."""
    house = house_of(SHAPES["qwen_3_5"])
    await ask(house, body_with(cache_control=EPHEMERAL))
    assert beginnings(house)[-1].endswith("And now?")
    await ask(house, body_with(cache_control=EPHEMERAL, messages=MESSAGES[:1]))
    assert beginnings(house)[-1].endswith("Second.")


async def test_what_is_kept_everywhere_is_not_looked_for_without_a_mark() -> None:
    """A model all of whose layers see everything keeps all blocks: only marks are looked for, for `usage`."""
    house = house_of(SHAPES["qwen_3_5"], at_points=False)
    await ask(house, body_with())
    assert house.engine.requests[-1].cache_points == ()
    await ask(house, body_with(("system", 1)))
    assert [one[-10:] for one in beginnings(house)] == ["Be polite."]


async def test_four_marks_at_most() -> None:
    house = house_of(SHAPES["qwen_3_5"])
    places = list(PLACES)[:4]
    await ask(house, body_with(*places))
    points = house.engine.requests[-1].cache_points
    assert len(points) == 5 and list(points) == sorted(points)
    for body in (body_with(*list(PLACES)[:5]), body_with(*places, cache_control=EPHEMERAL)):
        response = await house.post("/v1/messages", body)
        assert response.status_code == 400 and "A maximum of 4 blocks" in error_of(response)["message"]


@pytest.mark.parametrize("control", [{"type": "permanent"}, {"type": "ephemeral", "ttl": "1y"}, "ephemeral"])
async def test_another_mark_is_refused(control: Any) -> None:
    body = body_with()
    body["system"][0]["cache_control"] = control
    response = await house_of(SHAPES["qwen_3_5"]).post("/v1/messages", body)
    assert response.status_code == 400 and "cache_control" in error_of(response)["message"]


async def test_reasoning_cannot_be_marked() -> None:
    house = house_of(SHAPES["qwen_3_5"])
    response = await ask(house, body_with(("messages", 1, "content", 0)))
    assert response.headers["x-cohort-ignored"] == "messages[].content[].cache_control"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("cached", "created"), [(0, 64), (48, 16), (64, 0), (80, 0)])
async def test_usage_tells_what_is_read_and_what_is_kept(cached: int, created: int, stream: bool) -> None:
    """What is kept ends at a multiple of the interval."""
    house = house_of(SHAPES["qwen_3_5"], interval=16)
    house.engine.script = says("Yes.")
    house.engine.cached_tokens = cached
    text = "x" * 50
    block = {"type": "text", "text": text, "cache_control": EPHEMERAL}
    body = {"model": "fake", "max_tokens": 8, "messages": [{"role": "user", "content": [block]}]}
    response = await ask(house, {**body, "stream": stream})
    lines = [line.partition("data: ")[2] for line in response.text.splitlines() if '"usage"' in line]
    usages = [json.loads(line) for line in (lines if stream else [response.text])]
    for one in usages:
        usage = one.get("usage") or one["message"]["usage"]
        prompt = len(house.engine.requests[-1].prompts[0])
        assert usage["cache_read_input_tokens"] == cached
        assert usage["cache_creation_input_tokens"] == created
        assert usage["input_tokens"] == prompt - cached - created
    assert len(usages) == 1 + stream
    [point] = house.engine.requests[-1].cache_points
    assert point == len("<|im_start|>user\n" + text) == 67


async def test_nothing_is_kept_without_a_prefix_cache() -> None:
    house = house_of(SHAPES["qwen_3_5"], interval=0, at_points=False)
    response = await ask(house, body_with(("system", 1), ("tools", 0)))
    assert house.engine.requests[-1].cache_points == ()
    assert response.json()["usage"]["cache_creation_input_tokens"] == 0
    assert response.headers["x-cohort-ignored"] == "tools[].cache_control, system[].cache_control"


async def test_a_mark_that_the_template_does_not_show_is_none() -> None:
    house = house_of("{% for m in messages %}{{ m.role }};{% endfor %}", at_points=False)
    await ask(house, body_with(("system", 0)))
    assert house.engine.requests[-1].cache_points == ()


async def test_counting_tokens_takes_marks() -> None:
    house = house_of(SHAPES["qwen_3_5"])
    body = body_with(("system", 1), ("messages", 0, "content", 1))
    del body["max_tokens"]
    counted = (await house.post("/v1/messages/count_tokens", body)).json()["input_tokens"]
    plain = body_with()
    del plain["max_tokens"]
    assert counted == (await house.post("/v1/messages/count_tokens", plain)).json()["input_tokens"]


def test_where_two_texts_part() -> None:
    for one, other, count in (
        ("", "a", 0),
        ("abc", "abd", 2),
        ("abc", "abc", 3),
        ("abc", "abcd", 3),
        ("é☃", "éx", 1),
    ):
        assert common(one, other) == common(other, one) == count
    for added in ([], [0], [0, 0]):
        assert [num_tokens([0, 2, 2, 5, *added], end) for end in range(6)] == [1, 1, 3, 3, 3, 4]
    assert num_tokens([], 3) == num_tokens([0], 3) == 0
