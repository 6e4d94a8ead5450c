"""Of the fixed list, what is sent to the Responses API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.hostile.case import Hostile, raw
from tests.hostile.fields import RESPONSES, RESPONSES_TOOL, USER, bad

_CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
_RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}


def responses(context: int) -> Iterator[Hostile]:
    """For a model with so many tokens of context."""
    yield from _items()
    yield from _tools()
    for text in ("NaN", "Infinity", "1e400", "9" * 400):
        for name in ("max_output_tokens", "temperature", "top_p", "top_k", "top_logprobs"):
            yield bad("numbers", RESPONSES, name, **{name: raw(text)})
    yield bad("prompts", RESPONSES, "input", input="word " * (20 * context))
    yield bad("prompts", RESPONSES, "input", input="word " * (20 * context), truncation="auto")
    yield bad("prompts", RESPONSES, "model", model="no-such-model")
    yield bad("prompts", RESPONSES, "chat_template", chat_template="{{ cycler.__init__ }}")
    yield bad("unbounded", RESPONSES, "input", input=[USER] * 10_000)
    yield bad("unbounded", RESPONSES, "include", include=["x"] * 10_000)
    yield bad("unbounded", RESPONSES, "metadata", metadata={f"key{i}": "" for i in range(5000)})
    yield bad("unbounded", RESPONSES, None, **{f"key{i}": i for i in range(5000)})
    yield bad("unbounded", RESPONSES, "previous_response_id", previous_response_id="resp_" * 100_000)
    yield bad("unbounded", RESPONSES, "user", user="x" * 10**6)
    for previous in ("resp_1", "../../etc/passwd", "", "\x00"):
        yield bad("references", RESPONSES, "previous_response_id", previous_response_id=previous)
    for name in (
        "n",
        "stop",
        "logit_bias",
        "max_tokens",
        "messages",
        "conversation",
        "prompt",
        "response_format",
    ):
        yield bad("unsupported", RESPONSES, name, **{name: "x"})
    yield bad("unsupported", RESPONSES, "background", background=True, store=False)
    for schema in (
        {"type": "string", "pattern": "("},
        {"$ref": "file:///etc/passwd"},
        {"enum": ["x" * 300_000]},
        5,
        None,
    ):
        format_ = {"type": "json_schema", "name": "x", "schema": schema}
        yield bad("constraints", RESPONSES, "text", text={"format": format_})


def _items() -> Iterator[Hostile]:
    contents: tuple[Any, ...] = (
        [{"type": "input_text"}], [{"type": "input_text", "text": 5}], [{}], [5], 5, {"type": "input_text"}, None,
        [{"type": "input_image", "image_url": "http://169.254.169.254/x"}], [{"type": "input_file", "file_id": "f"}],
        [{"type": "wizard"}], [{"type": "x" * 10_000}], [{"type": "input_text", "text": "x"}] * 50_000,
    )  # fmt: skip
    for content in contents:
        yield bad("messages", RESPONSES, "input", input=[{"role": "user", "content": content}])
    items: tuple[Any, ...] = (
        [], [5], [None], [{}], [{"type": "wizard"}], [{"role": "tool", "content": "x"}], [{"role": 5, "content": "x"}],
        [_CALL], [_RESULT], [_RESULT, _CALL], [_CALL, _CALL, _RESULT], [{**_CALL, "arguments": []}, _RESULT],
        [{**_CALL, "name": None}], [{**_CALL, "call_id": "x" * 5000}, _RESULT], [_CALL, {**_RESULT, "output": 5}],
        [{"type": "reasoning", "content": 5}], [{"type": "reasoning", "encrypted_content": 5}],
        [{"type": "item_reference"}], [{"type": "item_reference", "id": "msg_1"}], [{"type": "custom_tool_call", "name": "f"}],
    )  # fmt: skip
    for wrong in items:
        yield bad("messages", RESPONSES, "input", input=wrong)


def _tools() -> Iterator[Hostile]:
    for wrong in (
        [RESPONSES_TOOL] * 2, [RESPONSES_TOOL] * 5000, [{"name": "f"}], [{"type": "function"}], [{}], "x", [{"type": 5}],
        [{**RESPONSES_TOOL, "name": "a b"}], [{**RESPONSES_TOOL, "parameters": []}], [{"type": "namespace"}],
        [{"type": "namespace", "name": "n" * 120, "tools": [RESPONSES_TOOL]}],
        [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}],
        [{"type": "namespace", "name": f"n{i}", "tools": [RESPONSES_TOOL] * 1000} for i in range(3)],
    ):  # fmt: skip
        yield bad("tools", RESPONSES, "tools", tools=wrong)
    for choice in (
        "always", {}, 5, {"type": "wizard"}, {"type": "function"}, {"type": "function", "name": "other"}, {"type": "web_search"},
        {"type": "allowed_tools", "mode": "required", "tools": []}, {"type": "allowed_tools", "mode": "x", "tools": [5]},
    ):  # fmt: skip
        yield bad("tools", RESPONSES, "tool_choice", tools=[RESPONSES_TOOL], tool_choice=choice)
    yield bad("tools", RESPONSES, "tool_choice", tools=[{"type": "web_search"}], tool_choice="required")
    for reasoning in ("high", {"effort": "huge"}, {"effort": 5}, {"summary": "x"}):
        yield bad("tools", RESPONSES, "reasoning", reasoning=reasoning)
