"""Formats of tool calls in a real server: forced calls as the executor's grammar writes them, and templates without tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.server_process import ServerProcess
from tests.e2e.test_tools import LIGHT, MODEL, TIMER, named

pytestmark = pytest.mark.long

PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat template that shows no tools."""
QUESTION = {"role": "user", "content": "Set a timer to 5 minutes."}


@contextmanager
def served(folder: Path, *flags: str) -> Iterator[tuple[ServerProcess, openai.OpenAI]]:
    """The embedded model with this template."""
    (folder / "plain.jinja").write_text(PLAIN)
    args = [MODEL, "--chat-template", str(folder / "plain.jinja"), *flags]
    with (
        ServerProcess(args, folder) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield server, client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    """The whole answer's choice, after a look at whether the stream puts together the same."""
    asked: dict[str, Any] = {
        "model": MODEL, "messages": [QUESTION], "temperature": 0, "tools": [TIMER, LIGHT], "max_tokens": 200, **fields,
    }  # fmt: skip
    choice = client.chat.completions.create(**asked).choices[0]
    with client.chat.completions.stream(**asked) as stream:
        stream.until_done()
        got = stream.get_final_completion().choices[0]
    assert (got.message.content or "") == (choice.message.content or "")
    assert [(one.function.name, one.function.arguments) for one in got.message.tool_calls or []] == [
        (one.function.name, one.function.arguments) for one in choice.message.tool_calls or []
    ]
    return choice


@pytest.mark.long(extended=True)
@pytest.mark.parametrize("parser", ["qwen3_coder", "minimax_m2", "openai", "pythonic", "gemma4"])
def test_forced_calls_in_the_format(parser: str, tmp_path: Path) -> None:
    with served(tmp_path, "--tool-call-parser", parser) as (server, client):
        assert f"tool format {parser}, by the generic tool prompt" in server.log()
        choice = ask(client, tool_choice=named("set_timer"))
        [call] = choice.message.tool_calls
        assert call.function.name == "set_timer"
        assert list(json.loads(call.function.arguments)) == ["minutes"]
        assert 1 <= json.loads(call.function.arguments)["minutes"] <= 90
        choice = ask(client, tool_choice=named("set_light"), temperature=1, seed=3)
        [call] = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert arguments["color"] in ("red", "green") and isinstance(arguments["on"], bool)


def test_a_round_trip_without_a_template_for_it(tmp_path: Path) -> None:
    with served(tmp_path) as (_, client):
        choice = ask(client, tool_choice="required", parallel_tool_calls=False)
        [call] = choice.message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "done"}
        choice = ask(client, messages=[QUESTION, choice.message.model_dump(exclude_none=True), result])
        assert choice.finish_reason in ("stop", "length", "tool_calls")


def test_no_generic_tools(tmp_path: Path) -> None:
    with served(tmp_path, "--no-generic-tools") as (_, client):
        with pytest.raises(openai.BadRequestError, match="its chat template does not show them"):
            ask(client)
