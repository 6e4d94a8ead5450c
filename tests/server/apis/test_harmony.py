"""gpt-oss in the four APIs: token ids of Harmony go in, reasoning, text and calls come out, and history goes back in its form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.text.tokenizer import Tokenizer
from server.answer.harmony.marks import LITERAL_OF, LITERALS
from tests.server.answer.tools.test_chat_tools import asked_both_ways
from tests.server.fakes import House, events
from tests.server.replay import ReplayCore, byte_tokenizer, replaying
from tests.server.templates.harmony_shape import HARMONY

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
HI = [{"role": "user", "content": "Hi"}]
NEXT = "<|start|>assistant"
THOUGHT = f"<|channel|>analysis<|message|>Hm.<|end|>{NEXT}"
CALL = '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"city": "Rom é"}<|call|>'
CALLED = f"{THOUGHT}<|channel|>commentary<|message|>I look.<|end|>{NEXT}{CALL}"
FINAL = f"{THOUGHT}<|channel|>final<|message|>Yes, <|end of it|> analysis.<|return|>"
SAID = "Yes, <|end of it|> analysis."
ARGUMENTS = {"city": "Rom é"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """`<|call|>` ends no sequence by itself, as in files without a generation_config.json."""
    return byte_tokenizer(tmp_path_factory.mktemp("tokens"), [*LITERALS, "<|endoftext|>"], "<|return|>")


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[tuple[House, ReplayCore]]:
    with replaying(tokenizer, HARMONY) as server:
        yield server


def play(served: tuple[House, ReplayCore], *answers: str, size: int = 1) -> House:
    """Have the model write these answers, in turn."""
    house, core = served
    assert house.state.model is not None
    core.play([house.state.model.tokenizer.encode(one, False) for one in answers], size)
    return house


def prompt(served: tuple[House, ReplayCore]) -> str:
    """The last prompt."""
    house, core = served
    assert house.state.model is not None
    return house.state.model.tokenizer.decode(core.requests[-1].prompt_token_ids.tolist(), False)


def history(served: tuple[House, ReplayCore]) -> str:
    """The last prompt from the user's first message on."""
    text = prompt(served)
    return text[text.index("<|start|>user") :]


def check_clean(response: httpx.Response) -> None:
    assert response.status_code == 200, response.text
    text = response.text.encode().decode("unicode_escape", "replace") + response.text
    for one in (*LITERALS, *LITERAL_OF, "commentary", "functions.", "json<"):
        assert one not in text, one


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_chat_completions(served: tuple[House, ReplayCore], size: int) -> None:
    house = play(served, CALLED, size=size)
    choice = await asked_both_ways(house, tools=[TOOL])
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "I look.")
    [call] = message["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", ARGUMENTS)
    assert choice["finish_reason"] == "tool_calls"
    reasoning = len("<|channel|>") - 10 + len("analysis") + 1 + len("Hm.") + 1
    assert choice["usage"]["completion_tokens_details"]["reasoning_tokens"] == reasoning
    house = play(served, FINAL, size=size)
    choice = await asked_both_ways(house, tools=[TOOL])
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", SAID)
    assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]
    hidden = await asked_both_ways(house, include_reasoning=False)
    assert "reasoning_content" not in hidden["message"] and hidden["message"]["content"] == SAID


async def test_the_end_of_a_call_ends_the_answer(served: tuple[House, ReplayCore]) -> None:
    """Whatever the model would go on with."""
    house, core = served
    for end in (
        f"{NEXT}<|channel|>final<|message|>42.",
        "<|start|>functions.look to=assistant<|message|>42",
        "",
    ):
        play(served, CALLED + end)
        choice = await asked_both_ways(house, tools=[TOOL])
        assert (choice["message"]["content"], choice["finish_reason"]) == ("I look.", "tool_calls")
        assert core.finished[len(core.requests) - 1] == len(core.answers[0]) - len(
            house.state.model.tokenizer.encode(end, False) if house.state.model else ()
        )
    play(served, "<|channel|>final<|message|>Yes.<|end|><|start|>user<|message|>And?<|end|>")
    choice = await asked_both_ways(house)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes.", "stop")


async def test_ends_can_be_ignored(served: tuple[House, ReplayCore]) -> None:
    """For measurements: then an answer has the number of tokens that a client asks for."""
    house, core = served
    play(served, FINAL + CALLED)
    choice = await asked_both_ways(house, tools=[TOOL], ignore_eos=True, max_tokens=len(core.answers[0]))
    assert choice["usage"]["completion_tokens"] == len(core.answers[0])
    assert choice["finish_reason"] == "length" and choice["message"]["content"].startswith(SAID)


async def test_messages(served: tuple[House, ReplayCore]) -> None:
    house = play(served, CALLED, CALLED, FINAL)
    body: dict[str, Any] = {
        "model": "fake", "max_tokens": 500, "messages": HI, "thinking": {"type": "adaptive"}, "output_config": {"effort": "low"},
        "tools": [{"name": "look", "input_schema": SCHEMA}], "system": [{"type": "text", "text": "Be brief."}],
    }  # fmt: skip
    response = await house.post("/v1/messages", body)
    check_clean(response)
    answer = response.json()
    blocks = [
        (one["type"], one.get("thinking") or one.get("text") or one.get("input")) for one in answer["content"]
    ]
    assert blocks == [("thinking", "Hm."), ("text", "I look."), ("tool_use", ARGUMENTS)]
    assert answer["stop_reason"] == "tool_use"
    assert "Reasoning: low" in prompt(served) and "# Instructions\n\nBe brief.\n\n# Tools" in prompt(served)
    check_clean(await house.post("/v1/messages", {**body, "stream": True}))
    result = {"type": "tool_result", "tool_use_id": answer["content"][2]["id"], "content": "Sunny."}
    messages = [
        *HI,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]
    response = await house.post("/v1/messages", {**body, "messages": messages})
    check_clean(response)
    assert [one["type"] for one in response.json()["content"]] == ["thinking", "text"]
    assert response.json()["content"][1]["text"] == SAID and response.json()["stop_reason"] == "end_turn"
    assert history(served) == (
        f"<|start|>user<|message|>Hi<|end|>{NEXT}<|channel|>analysis<|message|>Hm.\nI look.<|end|>"
        f'{NEXT} to=functions.look<|channel|>commentary json<|message|>{{"city": "Rom é"}}<|call|>'
        f'<|start|>functions.look to=assistant<|channel|>commentary<|message|>"Sunny."<|end|>{NEXT}'
    )


async def test_responses(served: tuple[House, ReplayCore]) -> None:
    house = play(served, CALLED, CALLED, FINAL)
    body: dict[str, Any] = {
        "model": "fake", "input": "Hi", "instructions": "Be brief.", "reasoning": {"effort": "high"},
        "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}],
    }  # fmt: skip
    response = await house.post("/v1/responses", body)
    check_clean(response)
    items = response.json()["output"]
    assert [one["type"] for one in items] == ["reasoning", "message", "function_call"]
    assert items[0]["content"][0]["text"] == "Hm." and items[1]["content"][0]["text"] == "I look."
    assert (items[2]["name"], json.loads(items[2]["arguments"])) == ("look", ARGUMENTS)
    assert "Reasoning: high" in prompt(served)
    check_clean(await house.post("/v1/responses", {**body, "stream": True}))
    output = {"type": "function_call_output", "call_id": items[2]["call_id"], "output": "Sunny."}
    again = [{"role": "user", "content": "Hi"}, *items, output]
    response = await house.post("/v1/responses", {**body, "input": again})
    check_clean(response)
    assert [one["type"] for one in response.json()["output"]] == ["reasoning", "message"]
    assert response.json()["output"][1]["content"][0]["text"] == SAID
    assert "<|channel|>analysis<|message|>Hm.\nI look.<|end|>" in history(served)
    assert history(served).endswith(f'<|channel|>commentary<|message|>"Sunny."<|end|>{NEXT}')


async def test_ollama(served: tuple[House, ReplayCore]) -> None:
    house = play(served, CALLED, CALLED, FINAL)
    body: dict[str, Any] = {
        "model": "fake",
        "messages": HI,
        "tools": [TOOL],
        "think": "high",
        "stream": False,
    }
    response = await house.post("/api/chat", body)
    check_clean(response)
    message = response.json()["message"]
    assert (message["thinking"], message["content"]) == ("Hm.", "I look.")
    assert message["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    assert "Reasoning: high" in prompt(served)
    check_clean(await house.post("/api/chat", {**body, "stream": True}))
    messages = [*HI, message, {"role": "tool", "tool_name": "look", "content": "Sunny."}]
    response = await house.post("/api/chat", {**body, "messages": messages, "think": True})
    check_clean(response)
    assert (response.json()["message"]["thinking"], response.json()["message"]["content"]) == ("Hm.", SAID)
    assert "<|channel|>analysis<|message|>Hm.\nI look.<|end|>" in history(served)


async def test_reasoning_of_earlier_turns_is_left_out(served: tuple[House, ReplayCore]) -> None:
    """As the template says: kept between calls of a turn, and dropped once the turn has its answer."""
    house = play(served, FINAL)
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"city": "Rome"}'}}
    other = {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
    turn = [
        {"role": "assistant", "content": None, "reasoning_content": "Think.", "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "b", "content": "Rain."},
        {"role": "tool", "tool_call_id": "a", "content": "Sun."},
    ]
    await house.chat(messages=[*HI, *turn], tools=[TOOL])
    calls = [
        f'{NEXT} to=functions.look<|channel|>commentary json<|message|>{{"city": "{city}"}}<|call|>'
        f'<|start|>functions.look to=assistant<|channel|>commentary<|message|>"{weather}"<|end|>'
        for city, weather in (("Rome", "Sun."), ("Oslo", "Rain."))
    ]
    user = "<|start|>user<|message|>Hi<|end|>"
    assert history(served) == f"{user}{NEXT}<|channel|>analysis<|message|>Think.<|end|>{''.join(calls)}{NEXT}"
    answer = {"role": "assistant", "content": "Well.", "reasoning_content": "So."}
    await house.chat(messages=[*HI, *turn, answer, *HI], tools=[TOOL])
    assert (
        history(served) == f"{user}{''.join(calls)}{NEXT}<|channel|>final<|message|>Well.<|end|>{user}{NEXT}"
    )


async def test_an_answer_can_be_sent_back(served: tuple[House, ReplayCore]) -> None:
    """Also with notation that the model has spelled, and what a template like this one refuses or leaves out."""
    house = play(served, FINAL)
    spelled = "It writes <|channel|>analysis<|message|> and <|end|>."
    tools = [TOOL, {"type": "function", "function": {"name": "g", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2], "default": 1}}}}}]  # fmt: skip
    messages = [
        {"role": "system", "content": "One."}, {"role": "developer", "content": "Two."}, *HI,
        {"role": "assistant", "content": spelled}, {"role": "system", "content": "Three."},
    ]  # fmt: skip
    response = await house.chat(messages=messages, tools=tools)
    assert response.status_code == 200, response.text
    assert "# Instructions\n\nOne.\n\nTwo.\n\n# Tools" in prompt(served) and "default: 1," in prompt(served)
    apart = spelled.replace("|>", " |>")
    assert history(served).endswith(
        f"{NEXT}<|channel|>final<|message|>{apart}<|end|><|start|>user<|message|>Three.<|end|>{NEXT}"
    )


@pytest.mark.parametrize(
    ("effort", "level"),
    [
        (None, "medium"),
        ("low", "low"),
        ("high", "high"),
        ("none", "low"),
        ("minimal", "low"),
        ("max", "high"),
    ],
)
async def test_levels_of_reasoning(served: tuple[House, ReplayCore], effort: str | None, level: str) -> None:
    house = play(served, FINAL)
    response = await house.chat(reasoning_effort=effort)
    assert f"Reasoning: {level}\n" in prompt(served)
    assert "x-cohort-ignored" not in response.headers


@pytest.mark.parametrize(
    ("stop", "thoughts", "content", "calls", "reason"),
    [
        ("analysis", "Hm.", "I look.", 1, "tool_calls"),
        ("commentary", "Hm.", "I look.", 1, "tool_calls"),
        ("assistant", "Hm.", "I look.", 1, "tool_calls"),
        (".I", "Hm.", "I look.", 1, "tool_calls"),
        ("look", "Hm.", "I ", 0, "stop"),
        ("m.", "H", "", 0, "stop"),
        ("Rom", "Hm.", "I look.", 1, "stop"),
    ],
)
async def test_stop_strings_count_in_what_a_client_sees(
    served: tuple[House, ReplayCore], stop: str, thoughts: str, content: str, calls: int, reason: str
) -> None:
    house = play(served, CALLED)
    choice = await asked_both_ways(house, tools=[TOOL], stop=[stop])
    message = choice["message"]
    assert (message.get("reasoning_content", ""), message["content"] or "") == (thoughts, content)
    assert len(message.get("tool_calls", ())) == calls
    assert choice["finish_reason"] == reason and choice["stop_reason"] == (stop if reason == "stop" else None)
    hidden = await asked_both_ways(house, tools=[TOOL], stop=["m."], include_reasoning=False)
    assert hidden["finish_reason"] == "tool_calls", "the client does not see the reasoning"


async def test_every_length_shows_a_beginning(served: tuple[House, ReplayCore]) -> None:
    house, core = served
    play(served, CALLED)
    for limit in range(1, len(core.answers[0]), 3):
        response = await house.chat(tools=[TOOL], max_tokens=limit)
        check_clean(response)
        [choice] = response.json()["choices"]
        message = choice["message"]
        assert choice["finish_reason"] == "length"
        assert "Hm.".startswith(message.get("reasoning_content", ""))
        assert "I look.".startswith(message["content"] or "")
        for call in message.get("tool_calls", ()):
            assert call["function"]["name"] == "look"
            assert json.dumps(ARGUMENTS, ensure_ascii=False).startswith(
                call["function"]["arguments"].rstrip("\ufffd")
            )


async def test_a_stop_token_of_the_client_ends_a_call(served: tuple[House, ReplayCore]) -> None:
    house = play(served, CALLED)
    assert house.state.model is not None
    token = house.state.model.tokenizer.added_tokens["<|call|>"]
    choice = await asked_both_ways(house, tools=[TOOL], stop_token_ids=[token])
    assert (choice["finish_reason"], choice["stop_reason"]) == ("tool_calls", token)


async def test_forced_calls_and_formats_are_messages(served: tuple[House, ReplayCore]) -> None:
    """The grammar has the header, and reasoning before it, as token ids."""
    house, core = served
    assert house.state.model is not None
    ids = house.state.model.tokenizer.added_tokens
    play(served, CALLED)
    choice = await asked_both_ways(house, tools=[TOOL], tool_choice="required")
    assert choice["finish_reason"] == "tool_calls"
    for literal in ("<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>"):
        assert f"<[{ids[literal]}]>" in core.grammars[-1]
    assert "commentary to=functions.look" in core.grammars[-1]
    play(served, f'{THOUGHT}<|channel|>final<|message|>{{"city": "Rome"}}<|return|>')
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    choice = await asked_both_ways(house, response_format=schema)
    assert json.loads(choice["message"]["content"]) == {"city": "Rome"}
    assert '"final' in core.grammars[-1].replace("\\", "") and "analysis" in core.grammars[-1]


async def test_no_tools_are_wanted(served: tuple[House, ReplayCore]) -> None:
    house = play(served, CALLED)
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        choice = await asked_both_ways(house, **body)
        assert choice["message"]["content"] == "I look." and "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"


async def test_streams_have_each_piece_once(served: tuple[House, ReplayCore]) -> None:
    house = play(served, CALLED)
    response = await house.chat(tools=[TOOL], stream=True, n=2)
    check_clean(response)
    names = [
        call["function"]["name"]
        for data in events(response)[:-1]
        for choice in json.loads(data)["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if "name" in call["function"]
    ]
    assert names == ["look", "look"]
