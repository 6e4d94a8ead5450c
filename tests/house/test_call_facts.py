"""Facts of a request travel in its `Call`: no context variable, and no key of ours in a scope but that of the `Call`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_ASGI = {
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "headers", "client",
    "server", "state", "extensions", "app", "path_params", "route", "endpoint", "router",
}  # fmt: skip
"""Keys of a scope that ASGI and Starlette define."""
READERS = {"get", "pop", "setdefault"}
HOME = ROOT / "server/http/call.py"


def findings(source: str) -> Iterator[str]:
    """Context variables, and keys of a scope that are not ASGI's, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            if "contextvars" in modules:
                yield f"line {node.lineno}: contextvars"
        for key in keys(node):
            if not (isinstance(key, ast.Constant) and key.value in OF_ASGI):
                yield f"line {key.lineno}: {ast.unparse(key)}"


def keys(node: ast.AST) -> Iterator[ast.expr]:
    """Keys by which this node reads or writes a scope."""
    if isinstance(node, ast.Subscript) and is_scope(node.value):
        yield node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in READERS and is_scope(node.func.value):
            yield node.args[0]
    elif isinstance(node, ast.Compare) and any(map(is_scope, node.comparators)):
        yield node.left


def is_scope(node: ast.expr) -> bool:
    """Whether the expression is a request's scope, by its name."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.strip("_") == "scope"


def test_no_module_of_the_server_has_another_way_for_facts_of_a_request() -> None:
    found, files = {}, 0
    for file in sorted((ROOT / "server").rglob("*.py")):
        files += 1
        if file != HOME and (lines := list(findings(file.read_text("utf-8")))):
            found[file.relative_to(ROOT).as_posix()] = lines
    assert not found and files > 200


def test_the_call_has_one_key() -> None:
    assert {line.split(": ")[1] for line in findings(HOME.read_text("utf-8"))} == {"CALL"}


@pytest.mark.parametrize(
    "source",
    [
        "from contextvars import ContextVar",
        "import contextvars",
        "scope['cohort.key'] = key",
        "request.scope[NAME] = 1",
        "self._scope.get(NAME)",
        "request.scope.pop('cohort.story', None)",
        "known = COUNTED not in scope",
    ],
)
def test_each_other_way_is_seen(source: str) -> None:
    assert len(list(findings(source))) == 1


@pytest.mark.parametrize(
    "source", ["scope['path'] = path", "scope.get('raw_path')", "request.scope['headers']", "call_of(scope)"]
)
def test_what_asgi_defines_is_not_ours(source: str) -> None:
    assert not list(findings(source))
