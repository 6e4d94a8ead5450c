"""Sentences of errors are not rewritten: code that several dialects share names the field at fault by `FIELD`, and any other
field whose name differs between dialects by `field(role)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.apis.anthropic import convert as messages
from server.apis.ollama import convert as ollama
from server.apis.responses import convert as responses
from server.prepare import chat
from tests.server.http.test_refusals import refusals

ROOT = Path(__file__).resolve().parents[2]
SHARED = (
    "engine", "server/grammar", "server/templates", "server/http/buffered.py", "server/prepare/chat.py",
    "server/prepare/chat_grammar.py", "server/prepare/chat_prompt.py", "server/prepare/completions.py",
    "server/prepare/engine_request.py", "server/prepare/fill_in_middle.py", "server/prepare/prompts.py",
    "server/prepare/structured_output.py", "server/prepare/token_settings.py", "server/schemas/chat.py",
    "server/schemas/completions.py", "server/schemas/sampling.py", "server/schemas/tool_choice.py",
)  # fmt: skip
RENAMED = {
    role
    for names in (chat.FIELD_NAMES, messages.FIELD_NAMES, responses.FIELD_NAMES, ollama.PROMPT_NAMES)
    for role in (pattern.removesuffix(".*") for pattern in names.rows)
}
"""Roles with another name in some dialect."""


def files(*places: str) -> Iterator[Path]:
    for place in places:
        yield from sorted((ROOT / place).rglob("*.py")) if (ROOT / place).is_dir() else [ROOT / place]


def rewrites(source: str) -> list[int]:
    """Lines that replace a part of an error's sentence."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("replace", "sub")
        and any(
            isinstance(one, ast.Attribute) and one.attr == "message" for one in [node.func.value, *node.args]
        )
    ]


def text_of(message: ast.expr) -> str:
    """The sentence with its expressions in braces."""
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.JoinedStr):
        return "".join(
            str(one.value) if isinstance(one, ast.Constant) else f"{{{ast.unparse(one.value)}}}"  # type: ignore[attr-defined]
            for one in message.values
        )
    return ""


def literal_names(source: str) -> Iterator[str]:
    """Names of fields in sentences of errors that no dialect could replace."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in refusal_calls(function):
            arguments = {one.arg: one.value for one in call.keywords}
            param = arguments.get("param", call.args[1] if len(call.args) > 1 else None)
            for sentence in sentences(function, call):
                own = "" if param is None else text_of(param) or f"{{{ast.unparse(param)}}}"
                for name in re.findall(r"'([^' ]+)'", sentence):
                    if name == own or name in RENAMED:
                        yield f"line {call.lineno}: '{name}'"


def refusal_calls(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "InvalidRequest",
            "ContextLengthExceeded",
        ):
            yield node


def sentences(function: ast.AST, call: ast.Call) -> Iterator[str]:
    """The sentence of an error, or those that its variable may hold."""
    message = call.args[0] if call.args else None
    if isinstance(message, ast.Name):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == message.id:
                yield text_of(node.value)
    elif message is not None:
        yield text_of(message)


def test_no_sentence_of_an_error_is_rewritten() -> None:
    found = {
        file.relative_to(ROOT).as_posix(): lines
        for file in files("server", "engine")
        if (lines := rewrites(file.read_text("utf-8")))
    }
    assert not found


def test_shared_code_names_fields_by_their_roles() -> None:
    found = {
        file.relative_to(ROOT).as_posix(): lines
        for file in files(*SHARED)
        if (lines := list(literal_names(file.read_text("utf-8"))))
    }
    assert not found
    assert sum(1 for file in files(*SHARED) for _ in refusals(file)) > 40


@pytest.mark.parametrize(
    "source",
    [
        "message = error.message.replace(theirs, ours)",
        "error.message.replace(theirs, ours)",
        "re.sub(theirs, ours, error.message)",
    ],
)
def test_each_way_to_rewrite_is_seen(source: str) -> None:
    assert rewrites(source)


@pytest.mark.parametrize(
    "body",
    [
        "raise InvalidRequest(f\"'{param}' is empty\", param)",
        "raise InvalidRequest(\"'priority' has no effect\", param='priority')",
        "message = \"'n' goes with 'max_tokens'\"; raise InvalidRequest(message, 'n')",
    ],
)
def test_each_literal_name_is_seen(body: str) -> None:
    assert len(list(literal_names(f"def check(param):\n    {body}"))) == 1 + body.count("'n' goes")
