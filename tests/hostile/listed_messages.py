"""Of the fixed list, what is sent to Anthropic's paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.hostile.case import Hostile, raw
from tests.hostile.fields import ANTHROPIC_TOOL, COUNT_TOKENS, MESSAGES, USER, bad

_CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}


def messages(context: int) -> Iterator[Hostile]:
    """For a model with so many tokens of context."""
    for path in (MESSAGES, COUNT_TOKENS):
        yield from _conversations(path)
        yield from _tools(path)
        yield bad("unbounded", path, "messages", messages=[USER] * 10_000)
        yield bad("unbounded", path, "system", system=[{"type": "text", "text": "x"}] * 5000)
        yield bad("unbounded", path, None, **{f"key{i}": i for i in range(5000)})
        yield bad("prompts", path, None, messages=[{"role": "user", "content": "word " * (20 * context)}])
        yield bad("prompts", path, "model", model="no-such-model")
        yield bad("prompts", path, "model", model=None)
        yield bad("prompts", path, "chat_template", chat_template="{{ cycler.__init__ }}")
    kind = "numbers"
    for text in ("NaN", "Infinity", "1e400", "9" * 400):
        for name in ("max_tokens", "temperature", "top_p", "top_k"):
            yield bad(kind, MESSAGES, name, **{name: raw(text)})
    yield bad("unbounded", MESSAGES, "stop_sequences", stop_sequences=["x"] * 10_000)
    yield bad("unbounded", MESSAGES, "stop_sequences", stop_sequences=["x" * 10**6])
    for name in (
        "n",
        "stop",
        "logit_bias",
        "min_tokens",
        "prompt",
        "mcp_servers",
        "container",
        "response_format",
        "input",
    ):
        yield bad("unsupported", MESSAGES, name, **{name: "x"})
    yield bad("unsupported", MESSAGES, None, max_token=5)
    for schema in (
        {"type": "string", "pattern": "("},
        {"$ref": "file:///etc/passwd"},
        {"enum": ["x" * 300_000]},
        5,
    ):
        format_ = {"type": "json_schema", "schema": schema}
        yield bad("constraints", MESSAGES, "output_config", output_config={"format": format_})


def _conversations(path: str) -> Iterator[Hostile]:
    kind = "messages"
    deep: Any = "x"
    for _ in range(50):
        deep = [{"type": "tool_result", "tool_use_id": "a", "content": deep}]
    contents: tuple[Any, ...] = (
        deep, [{"type": "tool_result"}], [{"type": "text"}], [{"type": "text", "text": 5}], [{}], [5], 5, {"type": "text"},
        [{"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/x"}}],
        [{"type": "document", "source": {"type": "url", "url": "file:///etc/passwd"}}],
        [{"type": "document", "source": {"type": "text"}}], [{"type": "search_result", "content": [{"type": "image"}]}],
        [{"type": "tool_use", "id": "a", "name": "f", "input": {}}], [{"type": "thinking", "thinking": "x"}],
        [{"type": "wizard"}], [{"type": "x" * 10_000}], [{"type": "text", "text": "x"}] * 50_000,
    )  # fmt: skip
    for content in contents:
        yield bad(kind, path, "messages", messages=[{"role": "user", "content": content}])
    for calls in (
        [_CALL],
        [{**_CALL, "input": []}],
        [{**_CALL, "name": 5}],
        [{**_CALL, "id": "x" * 5000}],
        [{"type": "tool_use"}],
    ):
        yield bad(kind, path, "messages", messages=[USER, {"role": "assistant", "content": calls}])
    for message in (
        {"role": "tool", "content": "x"},
        {"role": "user"},
        {"content": "x"},
        {"role": "user", "content": None},
        5,
    ):
        yield bad(kind, path, "messages", messages=[message])
    for system in (5, {"type": "text"}, [{"type": "image"}], [{"type": "text"}], ["x"]):
        yield bad(kind, path, "system", system=system)


def _tools(path: str) -> Iterator[Hostile]:
    kind = "tools"
    for wrong in (
        [ANTHROPIC_TOOL] * 2, [ANTHROPIC_TOOL] * 5000, [{"name": "f"}], [{"input_schema": {}}],
        [{"name": "a b", "input_schema": {}}],
        [{"name": "f", "input_schema": []}], [{}], "x", [{"type": "custom"}], [{"type": 5, "name": "f"}],
    ):  # fmt: skip
        yield bad(kind, path, "tools", tools=wrong)
    for choice in (
        "auto", {}, {"type": "wizard"}, {"type": "tool"}, {"type": "tool", "name": "other"},
        {"type": "any", "disable_parallel_tool_use": 5},
    ):  # fmt: skip
        yield bad(kind, path, "tool_choice", tools=[ANTHROPIC_TOOL], tool_choice=choice)
    yield bad(kind, path, "tool_choice", tool_choice={"type": "any"})
    yield bad(
        kind,
        path,
        "tool_choice",
        tools=[{"type": "bash_20250124", "name": "bash"}],
        tool_choice={"type": "any"},
    )
    for thinking in (
        "enabled",
        {},
        {"type": "wizard"},
        {"type": "enabled", "budget_tokens": -1},
        {"type": "adaptive", "display": 5},
    ):
        yield bad(kind, path, "thinking", thinking=thinking)
