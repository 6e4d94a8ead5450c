"""Ollama's API: what reaches the template and the engine, and what the client gets."""

from __future__ import annotations

import asyncio
import json
from operator import attrgetter
from typing import Any

import pytest
import structlog

from engine.errors import BrokeExecutor, ContextLengthExceeded, ExecutorFailed, Overloaded
from engine.text.generation import TextDelta
from server.answer.notation import ModelNotation
from server.answer.reasoning import REASONING
from server.http import event_stream
from tests.server.api_schema import check_answer
from tests.server.fakes import (
    AS_JSON,
    BOS,
    MAX_MODEL_LEN,
    TEMPLATE,
    ByteTokenizer,
    House,
    spells,
    steps,
)

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
SWITCHED = "{% if enable_thinking %}[on]{% endif %}{{ reasoning_effort or '' }}" + TEMPLATE


async def chat(house: House, **body: Any) -> Any:
    return await house.post("/api/chat", {"model": "fake", "messages": HI, **body})


async def generate(house: House, **body: Any) -> Any:
    return await house.post("/api/generate", {"model": "fake", "prompt": "Hi", **body})


def prompt_of(house: House) -> str:
    return "".join(chr(one) if one < BOS else "<s>" for one in house.engine.requests[-1].prompts[0])


def ignored(response: Any) -> list[str]:
    return [name for name in response.headers.get("x-cohort-ignored", "").split(", ") if name]


def error_of(response: Any) -> str:
    check_answer(response)
    body = response.json()
    assert set(body) == {"error"}, body
    return str(body["error"])


def lines(response: Any) -> list[dict[str, Any]]:
    assert response.headers["content-type"] == "application/x-ndjson"
    check_answer(response)
    return [json.loads(line) for line in response.text.splitlines()]


# -- chat ----------------------------------------------------------------------------------------------------------------


async def test_a_chat_is_a_stream_unless_told_otherwise(house: House) -> None:
    told = lines(await chat(house))
    assert [line["message"]["content"] for line in told] == ["Hel", "lo", "!", ""]
    assert told[-1]["done_reason"] == "stop" and told[-1]["eval_count"] == 4
    response = await chat(house, stream=False)
    check_answer(response)
    answer = response.json()
    assert answer["message"] == {"role": "assistant", "content": "Hello!"}
    assert answer["prompt_eval_count"] == len("<s>[user:Hi][assistant:")
    parts = ("load_duration", "prompt_eval_duration", "eval_duration")
    assert answer["total_duration"] == pytest.approx(sum(answer[name] for name in parts), abs=10)
    assert "x-cohort-ignored" not in response.headers


async def test_messages_reach_the_template(house: House) -> None:
    calls = [
        {"function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "mine", "function": {"name": "g", "arguments": {}}},
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "42", "tool_name": "g"},
        {"role": "tool", "content": "43"},
    ]
    template = TEMPLATE.replace("[{{ m.role }}", "[{{ m.role }}{{ m.tool_call_id or '' }}{{ m.name or '' }}")
    shown = House(template=template)
    response = await chat(shown, messages=messages, tools=[TOOL])
    assert response.status_code == 200, response.text
    assert prompt_of(shown).startswith('<s>[tools:[{"type": "function", "function": {"name": "f"')
    assert prompt_of(shown).endswith(
        '[system:Be brief.][user:Hi][assistant:(f={"x": 1})(g={})][toolmineg:42][toolcall_00000001f:43][assistant:'
    )
    shown.state.threads.close()


async def test_a_last_message_of_the_assistant_is_continued(house: House) -> None:
    assert (await chat(house, messages=[*HI, {"role": "assistant", "content": "He"}])).status_code == 200
    assert prompt_of(house) == "<s>[user:Hi][assistant:He"
    called = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    assert "must follow" in error_of(await chat(house, messages=[*HI, called]))


async def test_options_reach_the_engine(house: House) -> None:
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "typical_p": 0.8, "seed": 5, "num_predict": 9,
        "stop": ["x"], "repeat_penalty": 1.5, "repeat_last_n": -1, "presence_penalty": 0.25, "frequency_penalty": -1,
        "num_ctx": 4096, "num_gpu": 1, "num_thread": 4, "mirostat": 0, "mirostat_tau": 5, "tfs_z": 1,
    }  # fmt: skip
    response = await chat(house, options=options, keep_alive="5m")
    asked = house.asked()
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.1)
    assert (sampling.typical_p, sampling.repetition_penalty) == (0.8, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -1)
    assert (asked.seed, asked.max_tokens, asked.stop) == (5, 9, ("x",))
    assert ignored(response) == [
        "options.num_gpu", "options.num_thread", "options.mirostat", "options.mirostat_tau", "options.tfs_z", "keep_alive",
        "options.num_ctx",
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "limit"), [(-1, None), (-2, None), (0, None), (10**6, MAX_MODEL_LEN - 23)])
async def test_limits_of_the_output(house: House, given: int, limit: int | None) -> None:
    """A limit beyond the context is lowered, as with Ollama."""
    assert (await chat(house, options={"num_predict": given})).status_code == 200
    asked = house.asked()
    assert asked.max_tokens == limit and len(asked.prompts[0]) == 23


async def test_penalties_count_all_tokens_or_none(house: House) -> None:
    off = {"repeat_penalty": 1.5, "presence_penalty": 1, "repeat_last_n": 0}
    assert (await chat(house, options=off)).status_code == 200
    sampling = house.asked().sampling
    assert (sampling.repetition_penalty, sampling.presence_penalty) == (1, 0)
    assert (await chat(house, options={"repeat_last_n": 64, "repeat_penalty": 1})).status_code == 200
    refused = await chat(house, options={"repeat_last_n": 64, "repeat_penalty": 1.1})
    assert refused.status_code == 400 and "'options.repeat_last_n'" in error_of(refused)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"options": {"temperature": -1}}, "'options.temperature'"),
    ({"options": {"max_tokens": "5"}}, "'options.max_tokens'"),
    ({"options": {"n_predict": 0.5}}, "'options.n_predict'"),
    ({"temperature": "0"}, "'temperature'"),
    ({"max_output_tokens": [5]}, "'max_output_tokens'"),
    ({"stop": 5}, "'stop'"),
    ({"format": "yaml"}, "'format'"),
    ({"_debug_render_only": True}, "'_debug_render_only'"),
    ({"think": "much"}, "'think'"),
    ({"top_logprobs": 99}, "'top_logprobs'"),
    ({"tools": [TOOL, TOOL]}, "'tools.1.function.name'"),
    ({"messages": [{"role": "user", "content": "Hi", "images": ["AAAA"]}]}, "'messages.0.images'"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "'messages.0.content'"),
]


@pytest.mark.parametrize(("body", "told"), REFUSED, ids=[json.dumps(body)[:60] for body, _ in REFUSED])
async def test_what_cannot_be_honoured_is_refused(house: House, body: dict[str, Any], told: str) -> None:
    response = await chat(house, **body)
    assert response.status_code == 400
    assert told in error_of(response)
    assert not house.engine.requests


async def test_images_may_be_replaced(house: House) -> None:
    house.state.unread_parts = "placeholder"
    response = await chat(house, messages=[{"role": "user", "content": "What?", "images": ["A", "B"]}])
    assert ignored(response) == ["messages[].images"]
    assert "[image not read]\n[image not read]\nWhat?" in prompt_of(house)


async def test_a_call_is_one_line(house: House) -> None:
    house.engine.script = spells(f"Let me see. {CALL}{CALL}", size=3)
    told = lines(await chat(house, tools=[TOOL]))
    calls = [call for line in told for call in line["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": number, "name": "f", "arguments": {"x": 1}} for number in range(2)
    ]
    assert told[-1]["done_reason"] == "stop"
    whole = (await chat(house, tools=[TOOL], stream=False)).json()["message"]
    assert whole["content"] == "".join(line["message"]["content"] for line in told) == "Let me see."
    assert [call["function"] for call in whole["tool_calls"]] == [call["function"] for call in calls]


async def test_thinking() -> None:
    for template, reasoning, think, head, unread in (
        (SWITCHED, "qwen3", True, "[on]", []),
        (SWITCHED, "qwen3", False, "", []),
        (SWITCHED, "qwen3", "high", "[on]high", []),
        (SWITCHED, "qwen3", None, "", []),
        (TEMPLATE, "qwen3", True, "", []),
        (TEMPLATE, "qwen3", "low", "", ["think"]),
        (TEMPLATE, "qwen3", False, "", ["think"]),
        (TEMPLATE, None, True, "", ["think"]),
    ):
        notation = ModelNotation(reasoning=REASONING[reasoning] if reasoning else None)
        house = House(template=template, notation=notation)
        house.engine.script = spells("<think>Hm.</think>Yes." if reasoning else "Yes.", size=4)
        response = await chat(house, stream=False, **({} if think is None else {"think": think}))
        check_answer(response)
        assert response.json()["message"]["content"] == "Yes."
        assert response.json()["message"].get("thinking") == ("Hm." if reasoning else None)
        assert prompt_of(house).startswith(f"{head}<s>"), (template, think)
        assert ignored(response) == unread, (template, think)
        told = lines(await chat(house))
        assert "".join(line["message"].get("thinking", "") for line in told) == ("Hm." if reasoning else "")
        house.state.threads.close()


async def test_formats_are_grammars(house: House) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert (await chat(house, format=schema)).status_code == 200
    assert '"required":["a"]' in house.engine.grammars[-1].replace(" ", "")
    assert (await generate(house, format="json")).status_code == 200
    assert (await generate(house, format="json", raw=True)).status_code == 200
    assert [request.grammar is not None for request in house.engine.requests] == [True] * 3
    assert (await chat(house, format="")).status_code == 200
    assert house.engine.requests[-1].grammar is None
    house.core.executor.grammars = False
    assert "'format'" in error_of(await chat(house, format="json"))
    bad = await chat(house, format={"type": "string", "pattern": "("})
    assert bad.status_code == 400 and "format" in error_of(bad)


async def test_logprobs(house: House) -> None:
    house.engine.script = spells("ab")
    body = (await chat(house, logprobs=True, top_logprobs=2, stream=False)).json()
    assert [(one["token"], one["bytes"]) for one in body["logprobs"]] == [("a", [97]), ("b", [98])]
    assert house.engine.requests[-1].sampling.logprobs == 2
    told = lines(await generate(house, logprobs=True))
    assert [one["token"] for line in told for one in line.get("logprobs", ())] == ["a", "b"]
    assert [line["response"] for line in told] == ["a", "b", ""]


async def test_without_messages_the_model_is_loaded(house: House) -> None:
    response = await chat(house, messages=[])
    check_answer(response)
    line = response.json()
    assert line["done"] and line["done_reason"] == "load" and line["message"]["content"] == ""
    response = await house.post("/api/generate", {"model": "fake", "stream": False, "keep_alive": 0})
    check_answer(response)
    assert response.json()["done_reason"] == "load" and ignored(response) == ["keep_alive"]
    assert not house.engine.requests


# -- beside options ------------------------------------------------------------------------------------------------------

SETTINGS: list[tuple[str, Any, str]] = [
    ("temperature", 0.5, "sampling.temperature"), ("top_p", 0.25, "sampling.top_p"), ("top_k", 7, "sampling.top_k"),
    ("min_p", 0.125, "sampling.min_p"), ("typical_p", 0.5, "sampling.typical_p"), ("seed", 5, "seed"),
    ("random_seed", 5, "seed"), ("num_predict", 9, "max_tokens"), ("max_tokens", 9, "max_tokens"),
    ("max_completion_tokens", 9, "max_tokens"), ("max_output_tokens", 9, "max_tokens"), ("n_predict", 9, "max_tokens"),
    ("max_new_tokens", 9, "max_tokens"), ("stop", ["x"], "stop"), ("stop_sequences", ["x"], "stop"),
    ("repeat_penalty", 1.5, "sampling.repetition_penalty"), ("repetition_penalty", 1.5, "sampling.repetition_penalty"),
    ("presence_penalty", 0.5, "sampling.presence_penalty"), ("frequency_penalty", 0.5, "sampling.frequency_penalty"),
]  # fmt: skip
"""Settings, a value, and where the engine finds it."""


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_settings_count_within_options_and_beside_it(house: House, path: str) -> None:
    for name, value, place in SETTINGS:
        for body in ({name: value}, {name: value, "options": {}}, {"options": {name: value}}):
            house.engine.requests.clear()
            given = (
                {"model": "fake", "messages": HI}
                if path == "/api/chat"
                else {"model": "fake", "prompt": "Hi"}
            )
            response = await house.post(path, {**given, **body})
            assert response.status_code == 200, response.text
            assert not ignored(response), (body, ignored(response))
            asked = attrgetter(place)(house.asked())
            assert asked == (tuple(value) if isinstance(value, list) else value), body


async def test_options_take_precedence(house: House) -> None:
    body = {
        "temperature": 0.5,
        "max_tokens": 3,
        "top_p": 0.5,
        "options": {"temperature": 0.25, "num_predict": 9},
    }
    response = await chat(house, **body)
    asked = house.asked()
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.max_tokens) == (0.25, 0.5, 9)
    assert ignored(response) == ["temperature", "num_predict"]
    response = await chat(house, options={"num_predict": 9, "max_tokens": 3}, num_ctx=8)
    assert house.engine.requests[-1].max_tokens == 9
    assert ignored(response) == ["options.max_tokens", "num_ctx"]


async def test_a_provider_of_the_ai_sdk(house: House) -> None:
    """Keys as `ollama-ai-provider-v2` sends them."""
    body = {
        "temperature": 0, "top_p": 0.5, "max_output_tokens": 12, "think": False, "user": "u", "tools": [TOOL],
        "tool_choice": "auto", "options": {"num_ctx": 4096, "mirostat": 2, "f16_kv": True, "low_vram": False},
    }  # fmt: skip
    response = await chat(house, **body)
    asked = house.asked()
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.max_tokens) == (0, 0.5, 12)
    assert set(ignored(response)) == {
        "user", "options.mirostat", "options.f16_kv", "options.low_vram", "options.num_ctx", "think",
    }  # fmt: skip


UNKNOWN: list[dict[str, Any]] = [
    {"logit_bias": {"5": 1}}, {"n": 2}, {"tempratur": 1}, {"messagse": []}, {"parallel_tool_calls": False}, {"guided_json": {}},
    {"structured_outputs": {"regex": "a"}}, {"stream_options": {"include_usage": True}}, {"grammar": "x"}, {"store": True},
    {"chat_template_kwargs": {"a": 1}}, {"vendor": {"a": [1]}}, {"extra_body": {"a": 1}}, {"functions": [1]},
]  # fmt: skip


@pytest.mark.parametrize("body", UNKNOWN, ids=lambda body: next(iter(body)))
async def test_what_ollama_ignores_is_listed(house: House, body: dict[str, Any]) -> None:
    [name] = body
    for path, more in (
        ("/api/chat", {"messages": HI}),
        ("/api/generate", {"prompt": "Hi"}),
        ("/api/embed", {"input": "Hi"}),
        ("/api/embeddings", {"prompt": "Hi"}),
        ("/api/show", {}),
    ):
        response = await house.post(path, {"model": "fake", **more, **body})
        assert (response.status_code, ignored(response)) == (200, [name]), (path, response.text)
        if path != "/api/show":
            response = await house.post(path, {"model": "fake", **more, "options": body})
            assert (response.status_code, ignored(response)) == (200, [f"options.{name}"]), path


async def test_keys_of_another_path_are_listed(house: House) -> None:
    given = {
        "prompt": "Hi",
        "system": "x",
        "suffix": "x",
        "raw": True,
        "images": ["a"],
        "template": "x",
        "context": [1],
    }
    response = await chat(house, **given)
    assert response.status_code == 200 and set(ignored(response)) == set(given)
    response = await generate(house, messages=HI, tools=[TOOL], tool_choice="required")
    assert response.status_code == 200 and ignored(response) == ["messages", "tools", "tool_choice"]
    odd = {"role": "user", "content": "Hi", "refusal": "x", "prefix": True, "audio": {}, "name": "n"}
    response = await chat(house, messages=[odd])
    assert set(ignored(response)) == {f"messages[].{name}" for name in ("refusal", "prefix", "audio", "name")}
    many = {f"key{number}": number for number in range(200)}
    response = await chat(house, **many, options=many)
    assert response.status_code == 200 and ignored(response)[-1] == "..."
    shown = await house.post(
        "/api/show", {"model": "fake", "system": "x", "template": "x", "options": {"a": 1}}
    )
    assert ignored(shown) == ["system", "template", "options"]


async def test_a_choice_of_tools(house: House) -> None:
    other = {"type": "function", "function": {"name": "g"}}
    for choice, grammar, shown in (
        ("required", True, ("f", "g")),
        ({"type": "function", "function": {"name": "f"}}, True, ("f", "g")),
        ({"type": "function", "name": "f"}, True, ("f", "g")),
        ("auto", False, ("f", "g")),
        ("none", False, ()),
    ):
        response = await chat(house, tools=[TOOL, other], tool_choice=choice)
        assert response.status_code == 200 and not ignored(response), response.text
        assert (house.engine.requests[-1].grammar is not None) == grammar, choice
        for name in ("f", "g"):
            assert (f'"name": "{name}"' in prompt_of(house)) == (name in shown), choice
    for tools, choice in (
        (None, "required"),
        ([], "auto"),
        ([TOOL], {"type": "function", "function": {"name": "nope"}}),
        ([TOOL], {"type": "tool", "toolName": "f"}),
        ([TOOL], ["required"]),
        ([TOOL], 5),
    ):
        response = await chat(house, tools=tools, tool_choice=choice)
        assert (response.status_code, ignored(response)) == (200, ["tool_choice"]), response.text
        assert house.engine.requests[-1].grammar is None
    unknown = House(notation=ModelNotation(tools=None))
    response = await chat(unknown, tools=[TOOL], tool_choice="required")
    assert (response.status_code, ignored(response)) == (200, ["tool_choice"])
    unknown.state.threads.close()


async def test_a_format_and_an_effort_in_openais_form(house: House) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for asked, grammar in (({"type": "json_object"}, True), (named, True), ({"type": "text"}, False)):
        response = await chat(house, response_format=asked)
        assert not ignored(response) and (house.engine.requests[-1].grammar is not None) == grammar
    assert ignored(await chat(house, response_format={"type": "json_object"}, format="json")) == [
        "response_format"
    ]
    for odd in ({"type": "yaml"}, "json", 5):
        response = await chat(house, response_format=odd)
        assert (response.status_code, ignored(response)) == (200, ["response_format"])
    reasons = House(template=SWITCHED, notation=ModelNotation(reasoning=REASONING["qwen3"]))
    for effort, head, unread in (
        ("high", "[on]high", []),
        ("none", "", []),
        ("minimal", "", ["reasoning_effort"]),
        (5, "", ["reasoning_effort"]),
    ):
        response = await chat(reasons, reasoning_effort=effort)
        assert response.status_code == 200 and ignored(response) == unread
        assert prompt_of(reasons).startswith(f"{head}<s>"), effort
    response = await chat(reasons, reasoning_effort="high", think=False)
    assert ignored(response) == ["reasoning_effort"] and prompt_of(reasons).startswith("<s>")
    reasons.state.threads.close()
    assert ignored(await chat(house, top_logprobs=2)) == ["top_logprobs"]


# -- generate ------------------------------------------------------------------------------------------------------------


async def test_a_prompt_is_a_message_of_the_user(house: House) -> None:
    told = lines(await generate(house, system="Be brief."))
    assert prompt_of(house) == "<s>[system:Be brief.][user:Hi][assistant:"
    assert "".join(line["response"] for line in told) == "Hello!"
    refused = await generate(house, template="{{ .Prompt }}")
    assert refused.status_code == 400 and "--chat-template" in error_of(refused)
    response = await generate(house, context=[1, 2])
    assert response.status_code == 400 and "/api/chat" in error_of(response)
    assert (await generate(house, context=[], suffix="", template="")).status_code == 200


async def test_raw_prompts_and_suffixes_are_continued(house: House) -> None:
    response = await generate(house, raw=True, options={"stop": "x"})
    assert prompt_of(house) == "<s>Hi"
    assert house.asked().max_tokens is None and house.asked().default_tokens is None
    assert "".join(line["response"] for line in lines(response)) == "Hello!"
    refused = await generate(house, raw=True, system="x")
    assert refused.status_code == 400 and "'system' and 'raw'" in error_of(refused)
    response = await generate(house, raw=True, think=True, suffix="x")
    assert ignored(response) == ["think", "suffix"] and prompt_of(house) == "<s>Hi"
    house.engine.requests.clear()
    assert "'suffix'" in error_of(await generate(house, suffix="x"))
    added = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    object.__setattr__(house.state.model, "tokenizer", ByteTokenizer(added))
    assert (await generate(house, suffix="yo")).status_code == 200
    marks = [257, *b"Hi", 258, *b"yo", 259]
    assert list(house.engine.requests[-1].prompts[0]) == [BOS, *marks]
    shown = await house.post("/api/show", {"model": "fake"})
    assert "insert" in shown.json()["capabilities"]


# -- embeddings and models -----------------------------------------------------------------------------------------------


async def test_vectors(house: House) -> None:
    response = await house.post("/api/embed", {"model": "fake", "input": ["ab", "c"], "dimensions": 2})
    check_answer(response)
    body = response.json()
    assert body["prompt_eval_count"] == 5 and len(body["embeddings"]) == 2
    for vector in body["embeddings"]:
        assert sum(one * one for one in vector) == pytest.approx(1) and len(vector) == 2
    older = await house.post("/api/embeddings", {"model": "fake", "prompt": "ab"})
    check_answer(older)
    assert older.json() == {"embedding": [3.0, float(BOS), float(ord("b")), 0.0]}


async def test_texts_that_do_not_fit_are_cut_off(house: House) -> None:
    text = "a" * MAX_MODEL_LEN + "b"
    for body in ({"input": text}, {"input": [text], "truncate": True}):
        assert (await house.post("/api/embed", {"model": "fake", **body})).status_code == 200
        [prompt] = house.engine.embedded[-1].prompts
        assert len(prompt) == MAX_MODEL_LEN and prompt[-1] == ord("a")
    for number in (0, -1, 99, None):
        wide = await house.post("/api/embed", {"model": "fake", "input": "a", "dimensions": number})
        assert len(wide.json()["embeddings"][0]) == 4, number


@pytest.mark.parametrize(
    "texts", [{"input": []}, {"input": ""}, {"input": None}, {}, {"prompt": "of another path"}]
)
async def test_nothing_to_embed_is_no_vector(house: House, texts: dict[str, Any]) -> None:
    response = await house.post("/api/embed", {"model": "fake", **texts})
    check_answer(response)
    assert (response.json()["embeddings"], response.json()["prompt_eval_count"]) == ([], 0)
    prompt = {"prompt": texts["input"]} if isinstance(texts.get("input", 0), str | None) else {}
    older = await house.post("/api/embeddings", {"model": "fake", **prompt})
    check_answer(older)
    assert older.json() == {"embedding": []}
    assert not house.engine.embedded
    assert (await house.post("/api/embed", {"model": "nobody", **texts})).status_code == 404


async def test_an_empty_text_among_others_has_its_vector(house: House) -> None:
    """Of its special tokens, as with Ollama."""
    response = await house.post("/api/embed", {"model": "fake", "input": ["", "a"]})
    assert response.status_code == 200 and len(response.json()["embeddings"]) == 2
    assert [len(prompt) for prompt in house.engine.embedded[-1].prompts] == [1, 2]
    for wrong in (5, [5], {"a": 1}, ["a", None], [["a"]]):
        refused = await house.post("/api/embed", {"model": "fake", "input": wrong})
        assert refused.status_code == 400 and "'input" in error_of(refused)


async def test_models_are_described(house: House) -> None:
    for path in ("/api/tags", "/api/ps"):
        response = await house.get(path)
        check_answer(response)
        models = response.json()["models"]
        assert [one["name"] for one in models] == ["fake", "org/fake-1"]
        assert len({one["digest"] for one in models}) == 2 and models[0]["size"] == 400
    assert models[0]["context_length"] == MAX_MODEL_LEN
    for body in ({"model": "fake"}, {"name": "org/fake-1:latest"}, {"model": "fake", "verbose": True}):
        response = await house.post("/api/show", body)
        check_answer(response)
        shown = response.json()
        assert shown["model_info"]["fake.context_length"] == MAX_MODEL_LEN
        assert shown["capabilities"] == ["completion", "tools"] and shown["template"] == TEMPLATE
        assert "temperature 1" in shown["parameters"].splitlines()
    assert "'model'" in error_of(await house.post("/api/show", {}))
    version = await house.get("/api/version")
    check_answer(version)
    assert tuple(map(int, version.json()["version"].split("."))) >= (0, 6, 4), (
        "clients want at least this one"
    )


async def test_models_while_they_load(house: House) -> None:
    house.state.model = None
    tags, ps = await house.get("/api/tags"), await house.get("/api/ps")
    check_answer(tags)
    assert [one["size"] for one in tags.json()["models"]] == [0, 0] and ps.json() == {"models": []}
    assert (await chat(house)).status_code == 503


async def test_names_may_have_ollamas_tag(house: House) -> None:
    house.state.aliases = (("llama*", "fake"),)
    for name, status in (
        ("fake:latest", 200),
        ("llama3.2:1b", 200),
        ("fake:7b", 404),
        ("nobody:latest", 404),
    ):
        response = await chat(house, model=name, stream=False)
        assert response.status_code == status, name
        check_answer(response)
        if status == 200:
            assert response.json()["model"] == name
        else:
            assert "does not exist" in error_of(response)


# -- errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(Overloaded("full", 3), 429), (ExecutorFailed("gone"), 500), (BrokeExecutor("again"), 500), (RuntimeError("odd"), 500)],
)  # fmt: skip
async def test_refusals(house: House, refusal: Exception, status: int) -> None:
    house.engine.refusal = refusal
    for stream in (False, True):
        with structlog.testing.capture_logs():
            response = await chat(house, stream=stream)
        assert response.status_code == status
        assert error_of(response)


async def test_errors_around_the_route_have_the_form_too() -> None:
    house = House(options={"api_keys": ["key"], "max_body_bytes": 1000})
    async with house.client(headers={"Authorization": "Bearer key"}) as client:
        for status, response in (
            (405, await client.get("/api/chat")),
            (413, await client.post("/api/chat", content=b" " * 2000, headers=AS_JSON)),
            (415, await client.post("/api/generate/", content=b"{}", headers={"Origin": "null"})),
            (400, await client.post("/api/embed", content=b"{", headers=AS_JSON)),
            (401, await client.post("/api/chat", json={}, headers={"Authorization": "Bearer wrong"})),
        ):
            assert response.status_code == status
            assert set(response.json()) == {"error"} and isinstance(response.json()["error"], str)
        other = await client.post("/api/chat/completions", json={})
        assert other.json()["error"]["code"] == "not_found", "another API's path"
    house.state.threads.close()


async def test_an_error_in_a_stream(house: House) -> None:
    house.engine.script = steps(TextDelta(0, "a", (7,)), ExecutorFailed("gone"))
    told = lines(await chat(house))
    assert told[0]["message"]["content"] == "a" and told[1] == {"error": "gone"}


async def test_lines_break_a_silence(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream.EventStream.__init__, "__defaults__", (0.02, event_stream._OPENAI))
    first = asyncio.Event()
    house.engine.script = steps(first, TextDelta(0, "a", (7,), finish_reason="stop"))
    asyncio.get_running_loop().call_later(0.5, first.set)
    told = lines(await chat(house))
    assert [line["message"]["content"] for line in told[:2]] == ["", ""] and len(told) >= 4
    assert [line["message"]["content"] for line in told[-2:]] == ["a", ""]


async def test_a_client_that_leaves_aborts(house: House) -> None:
    house.engine.script = steps(asyncio.Event())
    for stream in (False, True):
        house.engine.paused.clear()
        task = asyncio.create_task(chat(house, stream=stream))
        await house.engine.paused.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert len(house.engine.aborted) == 2


async def test_a_prompt_that_does_not_fit(house: House) -> None:
    response = await chat(house, messages=[{"role": "user", "content": "x" * 200_000}])
    assert response.status_code == 400 and "'messages' has" in error_of(response)
    assert "'prompt' has" in error_of(await generate(house, prompt="x" * 200_000))
    long = {"model": "fake", "input": "x" * 600, "truncate": False}
    for name, ask in (
        ("messages", chat(house)),
        ("prompt", generate(house)),
        ("input", house.post("/api/embed", long)),
    ):
        house.engine.refusal = ContextLengthExceeded("'{param}' is too long.", "prompt")
        refused = await ask
        assert refused.status_code == 400 and error_of(refused) == f"'{name}' is too long."
