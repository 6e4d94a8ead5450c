"""Tools as the model reads them: name, description, and a call to be filled in, whatever the definition looks like."""

from typing import Any

import pytest

from executors.tiny.data.sample import Sample
from executors.tiny.tokenizer import render


def _offered(**function: Any) -> list[str]:
    """Return the lines of the prompt between the markers of the tools."""
    tool = {"type": "function", "function": function}
    sample = Sample("tools", ({"role": "user", "content": "x"},), (tool,), "", {})
    return render(sample, with_answer=False).split("<tools>\n")[1].split("\n</tools>")[0].split("\n")


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
