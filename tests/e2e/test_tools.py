"""Tool calls of the embedded model, by the official SDK: the right function, the right arguments, streamed or not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletion

from executors import tiny
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

MODEL = "cohort-tiny"


def function(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


WEATHER = function("get_weather", "Get the weather of a city", city={"type": "string"})
TIMER = function("set_timer", "Set a timer", minutes={"type": "integer", "minimum": 1, "maximum": 90})
LIGHT = function("set_light", "Set a light", color={"enum": ["red", "green"]}, on={"type": "boolean"})
TOOLS = [WEATHER, TIMER, LIGHT]


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, text: str, **fields: Any) -> Any:
    """The whole answer's choice, after a look at whether the stream puts together the same."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "tools": TOOLS,
        "max_tokens": 200,
        **fields,
    }
    whole: ChatCompletion = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    choice, got = whole.choices[0], final.choices[0]
    assert (got.message.content or "") == (choice.message.content or "")
    assert got.finish_reason == choice.finish_reason
    assert [call.function.name for call in got.message.tool_calls or []] == [
        name for name, _ in calls(choice)
    ]
    assert [json.loads(call.function.arguments) for call in got.message.tool_calls or []] == [
        arguments for _, arguments in calls(choice)
    ]
    assert final.usage is not None
    assert whole.usage is not None
    assert final.usage.completion_tokens == whole.usage.completion_tokens
    return choice


def calls(choice: Any) -> list[tuple[str, Any]]:
    made = choice.message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in made]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("fields", [{}, {"parallel_tool_calls": False}, {"tools": [WEATHER, TIMER]}])
def test_auto(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    choice = ask(client, "What is the weather in Paris?", **fields)
    assert calls(choice) == [("get_weather", {"city": "Paris"})]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None


def test_auto_without_a_call(client: openai.OpenAI) -> None:
    choice = ask(client, "Count from 3 to 6.")
    assert choice.message.content == "3, 4, 5, 6"
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_none(client: openai.OpenAI) -> None:
    choice = ask(client, "What is the weather in Paris?", tool_choice="none")
    assert choice.message.tool_calls is None
    assert choice.message.content


def test_required(client: openai.OpenAI) -> None:
    """What fits is called as without being forced; what fits nothing is a valid call all the same."""
    fitting = ask(client, "What is the weather in Rome?", tool_choice="required")
    assert calls(fitting) == [("get_weather", {"city": "Rome"})]
    assert fitting.finish_reason == "tool_calls"
    for text in ("Hello!", "Count from 3 to 6.", "Tell me a story."):
        choice = ask(client, text, tool_choice="required")
        assert choice.finish_reason in ("tool_calls", "length")
        assert choice.message.content is None
        if choice.finish_reason == "tool_calls":
            assert all(name in ("get_weather", "set_timer", "set_light") for name, _ in calls(choice))


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_named(client: openai.OpenAI, temperature: float) -> None:
    for seed in range(4):
        asked = {"tool_choice": named("set_light"), "temperature": temperature, "seed": seed}
        choice = ask(client, "What is the weather in Paris?", **asked)
        [(name, arguments)] = calls(choice)
        assert name == "set_light"
        assert arguments["color"] in ("red", "green")
        assert isinstance(arguments["on"], bool)
        assert choice.finish_reason == "stop", "as OpenAI: the client knew that a call would come"


def test_named_for_what_was_asked(client: openai.OpenAI) -> None:
    choice = ask(client, "What is the weather in Paris?", tool_choice=named("get_weather"))
    assert calls(choice) == [("get_weather", {"city": "Paris"})]


def test_a_call_that_is_cut_off(client: openai.OpenAI) -> None:
    """By a limit at every token and by stop strings inside of the notation: no text, and the arguments so far."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "temperature": 0,
        "tools": TOOLS,
    }
    whole = client.chat.completions.create(**asked)
    [complete] = whole.choices[0].message.tool_calls or []
    assert whole.usage is not None
    limits = [{"max_tokens": limit} for limit in range(1, whole.usage.completion_tokens)]
    stops = [{"stop": stop} for stop in ("call", "\n", "name", "get_", "arg", "Par")]
    for fields in [*limits, *stops]:
        [choice] = client.chat.completions.create(**asked, **fields).choices
        content, arguments, reason = "", "", None
        for chunk in client.chat.completions.create(**asked, **fields, stream=True):
            delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason
            content += delta.content or ""
            for call in delta.tool_calls or []:
                arguments += (call.function and call.function.arguments) or ""
        made = [call.function.arguments for call in choice.message.tool_calls or []]
        assert (content, choice.message.content or "") == ("", ""), fields
        assert made in ([], [arguments]) and complete.function.arguments.startswith(arguments), fields
        assert choice.finish_reason == reason == ("stop" if "stop" in fields else "length"), fields


def test_a_forced_call_beside_a_format(client: openai.OpenAI) -> None:
    properties = {"ok": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    for choice in ("required", named("get_weather")):
        answer = ask(client, "What is the weather in Paris?", tool_choice=choice, response_format=form)
        assert calls(answer) == [("get_weather", {"city": "Paris"})]
        assert answer.message.content is None
    text = ask(client, "Count from 3 to 6.", tool_choice="none", response_format=form)
    assert set(json.loads(text.message.content)) == {"ok"}


class GetWeather(pydantic.BaseModel):
    """Get the weather of a city"""

    city: str


def test_the_sdks_own_tools_are_parsed(client: openai.OpenAI) -> None:
    """They are strict: arguments are held to the schema while text stays free."""
    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    assert tool["function"]["strict"] is True
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[tool],
        temperature=0,
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Paris")
    choice = ask(client, "Count from 3 to 6.", tools=[tool])
    assert choice.message.content == "3, 4, 5, 6"


def test_a_whole_turn(client: openai.OpenAI) -> None:
    """The answer goes back as the SDK has it, with the tool's result."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)  # type: ignore[arg-type]
    message = first.choices[0].message
    [call] = message.tool_calls or []
    messages += [
        message,
        {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "sunny, 21 degrees"}]},
    ]
    second = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0)  # type: ignore[arg-type]
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content


def test_arguments_flow(tiny_server: ServerProcess) -> None:
    """A fragment a token or so, not one lump; every chunk as the SDK wants it."""
    body = {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": TOOLS, "temperature": 0, "stream": True, "logprobs": True, "top_logprobs": 1,
    }  # fmt: skip
    fragments, content, tokens, names = [], "", 0, []
    with httpx.stream("POST", f"{tiny_server.url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            [choice] = json.loads(line.removeprefix("data: "))["choices"]
            delta = choice["delta"]
            content += delta.get("content") or ""
            tokens += len((choice["logprobs"] or {"content": ()})["content"])
            for call in delta.get("tool_calls", ()):
                assert call["index"] == 0
                names += [call["function"]["name"]] if "id" in call else []
                fragments += [call["function"]["arguments"]] if "id" not in call else []
    assert names == ["get_weather"]
    assert json.loads("".join(fragments)) == {"city": "Paris"}
    assert len(fragments) > 3
    assert content == ""
    assert tokens > len(fragments), "notation is tokens too"


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """The same model where tags are special tokens, and a template that opens or closes reasoning on demand."""
    folder = tmp_path_factory.mktemp("special") / "model"
    shutil.copytree(tiny.weights_dir(), folder)
    _rewrite(folder / "tokenizer.json", '"special": false', '"special": true')
    opens = (
        "{% if think is defined %}{{ '<think>\\n' if think else '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    )
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    config["chat_template"] += opens
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(config["chat_template"])
    args = [str(folder), "--served-model-name", MODEL]
    with (
        ServerProcess(args, tmp_path_factory.mktemp("special-server")) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def _rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": "required"},
        {"tool_choice": named("get_weather")},
        {"parallel_tool_calls": False},
        {"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]},
    ],
)
def test_notation_of_special_tokens(special: openai.OpenAI, fields: dict[str, Any]) -> None:
    choice = ask(special, "What is the weather in Paris?", **fields)
    assert calls(choice) == [("get_weather", {"city": "Paris"})]
    assert choice.message.content is None


def test_where_reasoning_begins(special: openai.OpenAI) -> None:
    """The model knows nothing of it and answers at once: what counts is where the prompt left off."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count from 3 to 6."}],
        "temperature": 0,
    }
    free = special.chat.completions.create(**asked)
    assert free.choices[0].message.content == "3, 4, 5, 6"
    assert not hasattr(free.choices[0].message, "reasoning")
    closed = special.chat.completions.create(
        **asked, extra_body={"chat_template_kwargs": {"think": False}, "min_tokens": 4}
    )
    assert closed.choices[0].message.content
    # A turn that begins in another way than it was taught it may take for ended: some text is asked for.
    opened = special.chat.completions.create(
        **asked, extra_body={"chat_template_kwargs": {"think": True}, "min_tokens": 4}
    )
    message = opened.choices[0].message
    assert message.content is None
    assert message.reasoning == message.reasoning_content != ""  # type: ignore[attr-defined]
    for answer, all_reasoning in ((free, False), (closed, False), (opened, True)):
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        assert details is not None
        assert details.reasoning_tokens == (answer.usage.completion_tokens if all_reasoning else 0)
