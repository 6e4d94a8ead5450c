"""Tools for templates that show none: the generic prompt, and calls and results as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.answer.notation import ModelNotation, model_notation
from server.templates.template import ChatTemplate
from tests.server.answer.tools.test_notation import Tokens
from tests.server.fakes import House, error_of, spells
from tests.server.templates import template_shapes

LOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}
USER = {"role": "user", "content": "Hi"}
CALLED: list[dict[str, Any]] = [
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}},
            {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"n": 2}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "one"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "two"}]},
    {"role": "user", "content": "And?"},
]
CALL = '<tool_call>\n{"name": "look", "arguments": {"n": %d}}\n</tool_call>'
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}:{{ m.content }}]{% endfor %}"
)
WRITES_CALLS = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>{% endfor %}]{% endfor %}"
)


def generic(source: str, tool_parser: str | None = None) -> tuple[ChatTemplate, ModelNotation]:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template, model_notation(Tokens(), template, tool_parser, None, generic_tools=True)


def test_tools_are_in_the_system_message() -> None:
    template, notation = generic(template_shapes.CHATML)
    assert notation.tools is not None and notation.tools.name == "hermes"
    assert template.reads_tools and not template.shows_tools and not notation.unknown
    text = template.prompt([{"role": "system", "content": "Be brief."}, USER], [LOOK])
    assert json.dumps(LOOK["function"]) in text
    assert (
        '<tool_call>\n{"name": "function_name", "arguments": {"argument_name": "value"}}\n</tool_call>'
        in text
    )
    _, system = text.split("Be brief.\n\n# Tools")
    assert system.index("</tool_call>") < system.index("Hi")
    alone = template.prompt([USER], [LOOK])
    assert alone.index("# Tools") < alone.index("Hi")
    assert template.prompt([USER]) == ChatTemplate(template_shapes.CHATML, {}).prompt([USER]), (
        "no tools, no prompt"
    )


@pytest.mark.parametrize("tools", [[LOOK], None])
def test_calls_and_results_are_text(tools: list[dict[str, Any]] | None) -> None:
    template, _ = generic(template_shapes.CHATML)
    text = template.prompt(CALLED, tools)
    assert CALL % 1 + "\n" + CALL % 2 in text
    results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\nAnd?"
    assert results in text
    assert "[{" not in text.split("# Tools")[-1], "no list of parts is printed"


def test_a_template_without_system_messages_whose_roles_alternate() -> None:
    template, _ = generic(WITHOUT_SYSTEM)
    text = template.prompt([*CALLED, {"role": "assistant", "content": "Done."}], [LOOK])
    assert text.startswith("[user:# Tools") and "without a call.\n\nHi]" in text
    assert text.endswith("And?][assistant:Done.]")


def test_neighbouring_questions_stay_apart() -> None:
    """Only results are joined with what follows them."""
    template, _ = generic(template_shapes.CHATML)
    bare = ChatTemplate(template_shapes.CHATML, {})
    conversation = [USER, {"role": "user", "content": "Again"}, {"role": "assistant", "content": "A"}, USER]
    assert template.prompt(conversation) == bare.prompt(conversation)


def test_a_template_that_writes_calls_but_shows_no_tools() -> None:
    """DeepSeek V3's: the prompt describes the format that the template writes, and history is the template's."""
    template, notation = generic(WRITES_CALLS)
    assert notation.tools is not None and notation.tools.name == "deepseek_v31"
    text = template.prompt(CALLED, [LOOK])
    assert "<｜tool▁call▁begin｜>function_name<｜tool▁sep｜>" in text
    assert '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"n": 1}' in text
    assert "tool_response" not in text


def test_the_operators_format_is_described() -> None:
    template, notation = generic(template_shapes.CHATML, "qwen3_coder")
    assert notation.tools is not None and notation.tools.name == "qwen3_coder"
    text = template.prompt(CALLED, [LOOK])
    assert "<function=function_name>\n<parameter=argument_name>\nvalue\n</parameter>" in text
    assert "<function=look>\n<parameter=n>\n1\n</parameter>" in text


def test_arguments_that_are_no_object() -> None:
    """A call that was cut off earlier does not end the conversation."""
    template, _ = generic(template_shapes.CHATML)
    call = {"function": {"name": "look", "arguments": '{"n": '}, "type": "function"}
    text = template.prompt(
        [USER, {"role": "assistant", "content": "Well.", "tool_calls": [call]}, USER], [LOOK]
    )
    assert 'Well.\n<tool_call>\n{"name": "look", "arguments": {"arguments": "{\\"n\\": "}}' in text


@pytest.mark.parametrize("source", [template_shapes.HEADERS, template_shapes.TOOLS_IN_XML_AND_THINKING])
def test_templates_that_show_tools_have_no_generic_prompt(source: str) -> None:
    template, _ = generic(source)
    assert template.generic_tools is None
    assert "# Tools\n\nYou may call functions. Each line" not in template.prompt([USER], [LOOK])


def test_a_template_that_shows_tools_and_no_calls() -> None:
    """Granite 3's: calls of earlier messages are text in the format that the prompt describes."""
    source = (
        "{% if tools %}[{{ tools | tojson }} respond only with <|tool_call|> followed by a JSON list of tools used]{% endif %}"
        "{% for m in messages %}[{{ m.role }}:{{ m.content or '' }}]{% endfor %}"
    )
    template, notation = generic(source)
    assert notation.tools is not None and notation.tools.name == "granite"
    text = template.prompt(CALLED, [LOOK])
    call = '{"name": "look", "arguments": {"n": %d}}'
    assert f"[assistant:<|tool_call|>[{call % 1}, {call % 2}]][tool:one][tool:two][user:And?]" in text
    shows, _ = generic(template_shapes.TOOLS_IN_XML_AND_THINKING)
    assert shows.writes_calls is None


def test_no_parser_no_prompt() -> None:
    template, notation = generic(template_shapes.CHATML, "none")
    assert (template.generic_tools, notation.tools, template.reads_tools) == (None, None, False)


async def test_a_round_trip_over_http() -> None:
    template, notation = generic(template_shapes.CHATML)
    house = House(template=template_shapes.CHATML, notation=notation)
    assert house.state.model is not None
    house.state.model.template.generic_tools = template.generic_tools  # type: ignore[union-attr]
    house.engine.script = spells(CALL % 1)
    [choice] = (await house.chat(tools=[LOOK])).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "look", "arguments": '{"n": 1}'}
    messages = [USER, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}]
    house.engine.script = spells("It is sunny.")
    answer = await house.chat(tools=[LOOK], messages=messages)
    assert answer.json()["choices"][0]["message"]["content"] == "It is sunny."
    prompt = bytes(house.engine.requests[-1].prompts[0]).decode()
    assert CALL % 1 in prompt and "<tool_response>\nsunny\n</tool_response>" in prompt


async def test_without_it_tools_are_refused_as_before() -> None:
    template = ChatTemplate(template_shapes.CHATML, {})
    notation = model_notation(Tokens(), template, None, None)
    assert template.generic_tools is None
    error = error_of(await House(template=template_shapes.CHATML, notation=notation).chat(tools=[LOOK]))
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
