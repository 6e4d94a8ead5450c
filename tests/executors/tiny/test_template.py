"""The template of cohort-tiny renders any OpenAI conversation, and any tool definition as a call to be filled in."""

from typing import Any

import pytest

from executors.tiny import weights_dir
from server.templates.template import ChatTemplate

_TEMPLATE = ChatTemplate((weights_dir() / "chat_template.jinja").read_text("utf-8"), {})


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """Return the prompt up to where the assistant answers."""
    return _TEMPLATE.prompt(messages, tools)


def _offered(**function: Any) -> list[str]:
    """Return the lines of the prompt between the markers of the tools."""
    tool = {"type": "function", "function": function}
    return (
        render([{"role": "user", "content": "x"}], [tool])
        .split("<tools>\n")[1]
        .split("\n</tools>")[0]
        .split("\n")
    )


def _parameters(properties: Any, **schema: Any) -> str:
    """Return what stands for the arguments of a tool `f` with `properties`."""
    line = _offered(name="f", parameters={"type": "object", "properties": properties, **schema})[-1]
    return line.removeprefix('{"name": "f", "arguments": ').removesuffix("}")


def test_a_tool_is_shown_as_a_call_of_it() -> None:
    properties = {"city": {"type": "string"}, "days": {"type": "integer"}}
    lines = _offered(
        name="get_weather",
        description="The weather.",
        parameters={"properties": properties, "required": ["city", "days"]},
    )
    assert lines == [
        "get_weather: The weather.",
        '{"name": "get_weather", "arguments": {"city": "string", "days": 0}}',
    ]


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, '"string"'),
        ({"type": "string", "description": "The x"}, '"string (The x)"'),
        ({"type": "string", "enum": ["a", "b"]}, '"a|b"'),
        ({"type": "string", "enum": ["a"], "description": "d"}, '"a (d)"'),
        ({"type": "string", "enum": ["a", 1, None]}, '"a|1|None"'),
        ({"type": "string", "enum": 5}, '"string"'),
        ({"type": "string", "enum": "abc"}, '"string"'),
        ({"type": "string", "enum": {}}, '"string"'),
        ({"type": "string", "description": 7}, '"string"'),
        ({"type": 3}, '{"type": 3}'),
        ([1], "[1]"),
        ({"type": "integer", "description": "How many"}, "0 (How many)"),
        ({"type": "number"}, "0.0"),
        ({"type": "boolean"}, "true"),
        ({"type": "array", "items": {"type": "string"}}, '{"type": "array", "items": {"type": "string"}}'),
        ({"type": ["string", "null"]}, '{"type": ["string", "null"]}'),
        ({"enum": [1, 2]}, '{"enum": [1, 2]}'),
        ({}, "{}"),
        (True, "true"),
        (None, "null"),
    ],
)
def test_parameters_have_the_shape_of_their_values(schema: Any, shown: str) -> None:
    assert _parameters({"x": schema}) == f'{{"x": {shown}}}'
    assert _parameters({"x": schema}, required=["x"]) == f'{{"x": {shown}}}'


def test_what_may_be_left_out_has_a_question_mark() -> None:
    properties = {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "array"}}
    assert _parameters(properties, required=["a"]) == '{"a": "string", "b": 0?, "c": {"type": "array"}?}'
    assert _parameters({"a": {"type": "string", "description": "d"}}, required=[]) == '{"a": "string? (d)"}'


@pytest.mark.parametrize("required", [None, 3, "ab", {}])
def test_odd_lists_of_required_parameters_are_no_error(required: Any) -> None:
    assert _parameters({"a": {"type": "string"}}, required=required).startswith('{"a": "string')


@pytest.mark.parametrize(
    "function", [{}, {"parameters": None}, {"parameters": {}}, {"parameters": {"properties": None}}]
)
def test_tools_without_parameters_have_no_arguments(function: dict[str, Any]) -> None:
    assert _offered(name="f", **function) == ["f", '{"name": "f", "arguments": {}}']


def test_names_that_mappings_have_too_are_only_names() -> None:
    properties = {name: {"type": "string"} for name in ("items", "keys", "values", "get", "type")}
    assert _parameters(properties) == "{" + ", ".join(f'"{name}": "string"' for name in properties) + "}"


_TOOL = {
    "type": "function",
    "function": {"name": "timer", "parameters": {"type": "object", "properties": {}}},
}


def test_template_without_tools() -> None:
    prompt = render([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_with_tools() -> None:
    shown = 'timer\n{"name": "timer", "arguments": {}}'
    user = {"role": "user", "content": "Go"}
    assert render([user], [_TOOL, _TOOL]) == (
        f"<|im_start|>system\n# Tools\n<tools>\n{shown}\n{shown}\n</tools><|im_end|>\n"
        "<|im_start|>user\nGo<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "system\nBe kind.\n\n# Tools\n<tools>" in render(
        [{"role": "system", "content": "Be kind."}, user], [_TOOL]
    )


@pytest.mark.parametrize("arguments", ['{"minutes": 5}', {"minutes": 5}])
@pytest.mark.parametrize("content", ["", None])
def test_template_with_a_call_and_two_results(arguments: object, content: str | None) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "timer", "arguments": arguments}}
    prompt = render(
        [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "ok"},
            {"role": "tool", "tool_call_id": "1", "content": "done"},
        ]
    )
    assert prompt == (
        "<|im_start|>user\nGo<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "timer", "arguments": {"minutes": 5}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nok\n</tool_response>\n<tool_response>\ndone\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
