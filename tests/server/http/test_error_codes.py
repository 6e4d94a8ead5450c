"""docs/api.md knows every error that the code can answer with: its status, type and code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from engine import errors
from engine.errors import BrokeExecutor, EngineError
from executors.contract.errors import ConfigError, DeviceLost, ExecutorError, Skipped, Unavailable
from server.apis.description import ANSWERS
from server.http.cors import _EXPOSED
from server.http.errors import _HTTP_TYPES
from server.state.responses import errors as response_errors
from server.telemetry.stories import ring
from tools import api_docs

Error = tuple[int, str, str]
"""Status, type, code."""
ROOT = Path(__file__).resolve().parents[3]
NO_FAILED_STEPS = {ConfigError, Unavailable, Skipped, DeviceLost}
"""The first two end the start, the third only says that a step before it failed, the fourth ends the server; a request that
lost its device is answered with `executor_died`."""
KINDS = {
    name: one
    for module in (errors, response_errors, ring)
    for name, one in vars(module).items()
    if isinstance(one, type) and issubclass(one, EngineError) and one.__module__ == module.__name__
}


def every(kind: type[ExecutorError]) -> Iterator[type[ExecutorError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from every(one)


def raised(source: Path) -> Iterator[tuple[str, ast.expr]]:
    """Errors of the engine that a file makes with a code of their own."""
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            given = {one.arg: one.value for one in node.keywords}
            if (code := given.get("code", (node.args + [None] * 3)[2])) is not None:
                yield node.func.id, code


def in_code() -> tuple[set[Error], set[str]]:
    """All that stand in the code, and the names of those errors whose code is made up elsewhere."""
    found = {(one.status, one.type, one.code) for one in KINDS.values() if one.code is not None}
    found |= {(status, *of_http) for status, of_http in _HTTP_TYPES.items()}
    passed_on = set()
    for source in [*(ROOT / "server").rglob("*.py"), *(ROOT / "engine").rglob("*.py")]:
        for name, code in raised(source):
            kind = KINDS[name]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                found.add((kind.status, kind.type, code.value))
            elif not (isinstance(code, ast.Attribute) and code.attr == "code"):
                passed_on.add(name)
    for failure in set(every(ExecutorError)) - NO_FAILED_STEPS:
        if failure.__module__.startswith("executors."):
            found.add((BrokeExecutor.status, BrokeExecutor.type, failure.kind))
    return found, passed_on


def in_page() -> set[Error]:
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| ([^|]*) \|", api_docs.PAGE.read_text("utf-8"), re.MULTILINE)
    return {
        (int(status), type_, code) for status, type_, codes in rows for code in re.findall(r"`(\w+)`", codes)
    }


def test_the_page_has_every_error_and_no_other() -> None:
    found, passed_on = in_code()
    assert len(found) > 25
    assert passed_on == {"BrokeExecutor"}, "its codes are the kinds of failures"
    told = in_page()
    assert (found - told, told - found) == (set(), set())


def test_the_description_knows_every_type() -> None:
    types = ANSWERS["Error"]["properties"]["error"]["properties"]["type"]["enum"]
    assert {type_ for _, type_, _ in in_code()[0]} == set(types)


def test_the_page_has_every_header_that_scripts_of_web_pages_may_read() -> None:
    page = api_docs.PAGE.read_text("utf-8")
    for name in _EXPOSED.decode().split(", "):
        assert re.search(rf"^\| `{name}`", page, re.MULTILINE), name
