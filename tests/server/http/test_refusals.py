"""Every refusal has a code and names the client's own field, in the answer and in the log, and is counted."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.errors import (
    FIELD,
    ContextLengthExceeded,
    DeadlinePassed,
    ExecutorFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from engine.text.generation import TextDelta
from server.http import middleware, protocol
from server.http.hosts import Hosts
from tests.server.fakes import AS_JSON, House, error_of, steps
from tests.server.http.raw_http import CHUNKED, talk
from tests.server.http.test_error_codes import KINDS, in_page
from tests.server.startup.test_lifecycle import Running

ROOT = Path(__file__).resolve().parents[3]
USER = {"role": "user", "content": "Hi"}
CHAT, TEXT, VECTORS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
LONG = "x" * 100_000

# -- code and param ----------------------------------------------------------------------------------------------------

WITHOUT_FIELD = {
    ("server/http/large_body.py", "run_off_loop_if_large"),
    ("server/schemas/extras.py", "judge"),
    ("server/schemas/base.py", "_explain"),
    ("engine/core/engine.py", "prepare_grammar"),
    ("server/grammar/validator.py", "check"),
    ("server/console/routes.py", "kill_executor"),
    ("server/remote/workers/remote_core.py", "unsendable"),
}
"""Where a 400 is raised that is about the call as a whole, or whose field the caller fills in."""


def refusals(source: Path) -> Iterator[tuple[str, ast.Call]]:
    """Calls that make a 400, each with the function it stands in."""
    invalid = {name for name, kind in KINDS.items() if issubclass(kind, InvalidRequest)}
    for function in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in invalid:
                    yield function.name, node


def test_every_place_that_refuses_names_a_field_and_has_a_code() -> None:
    assert all(kind.code for kind in KINDS.values())
    seen = 0
    for folder in ("server", "engine"):
        for source in (ROOT / folder).rglob("*.py"):
            for function, call in refusals(source):
                seen += 1
                given = {one.arg: one.value for one in call.keywords}
                param = given.get("param", (call.args + [None] * 2)[1])  # type: ignore[arg-type]
                nothing = param is None or (isinstance(param, ast.Constant) and not param.value)
                where = (str(source.relative_to(ROOT)), function)
                assert not nothing or where in WITHOUT_FIELD, (where, call.lineno)
                code = given.get("code")
                assert not (isinstance(code, ast.Constant) and not code.value), (where, call.lineno)
    assert seen > 60


CASES: list[tuple[str, dict[str, Any] | list[Any], str, str | None]] = [
    (CHAT, {}, "missing_required_parameter", "messages"),
    (CHAT, [], "invalid_type", None),
    (CHAT, {"messages": "Hi"}, "invalid_type", "messages"),
    (CHAT, {"messages": []}, "invalid_value", "messages"),
    (CHAT, {"messages": [{}]}, "missing_required_parameter", "messages.0.role"),
    (CHAT, {"messages": [USER, {"role": "user"}]}, "missing_required_parameter", "messages.1.content"),
    (CHAT, {"messages": [USER, {"role": "x", "content": ""}]}, "invalid_value", "messages.1.role"),
    (CHAT, {"messages": [USER, {"role": "user", "content": 5}]}, "invalid_type", "messages.1.content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "missing_required_parameter",
     "messages.0.content.0.text"),
    (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "context_length_exceeded", "messages"),
    (CHAT, {"messages": [USER], "n": "1"}, "invalid_type", "n"),
    (CHAT, {"messages": [USER], "n": 1.5}, "invalid_type", "n"),
    (CHAT, {"messages": [USER], "n": 0}, "invalid_value", "n"),
    (CHAT, {"messages": [USER], "tools": [{"type": "function"}]}, "missing_required_parameter", "tools.0.function"),
    (CHAT, {"messages": [USER], "response_format": {"type": "json_schema"}}, "missing_required_parameter",
     "response_format.json_schema"),
    (CHAT, {"messages": [USER], "stream_options": {"include_usage": 1}, "stream": True}, "invalid_type",
     "stream_options.include_usage"),
    (CHAT, {"messages": [USER], "functions": [{}]}, "unsupported_parameter", "functions"),
    (CHAT, {"messages": [USER], "max_tokns": 1}, "unknown_parameter", "max_tokns"),
    (CHAT, {"messages": [USER], "max_tokens": 9, "min_tokens": 10}, "invalid_value", "min_tokens"),
    (TEXT, {}, "missing_required_parameter", "prompt"),
    (TEXT, {"prompt": LONG}, "context_length_exceeded", "prompt"),
    (TEXT, {"prompt": ["a", 5]}, "invalid_type", "prompt.1"),
    (TEXT, {"prompt": "", "add_special_tokens": False}, "invalid_value", "prompt"),
    (TEXT, {"prompt": [[1], [400]]}, "invalid_value", "prompt.1"),
    (TEXT, {"prompt": "Hi", "max_tokens": 0}, "invalid_value", "max_tokens"),
    (VECTORS, {}, "missing_required_parameter", "input"),
    (VECTORS, {"input": LONG}, "context_length_exceeded", "input"),
    (VECTORS, {"input": ["a", ""], "add_special_tokens": False}, "invalid_value", "input.1"),
    (VECTORS, {"input": [1, 400]}, "invalid_value", "input"),
    (VECTORS, {"input": "a", "encoding_format": "hex"}, "invalid_value", "encoding_format"),
    ("/tokenize", {}, "missing_required_parameter", "prompt"),
    ("/tokenize", {"prompt": "a", "messages": [USER]}, "invalid_value", "prompt"),
    ("/tokenize", {"messages": [{"role": "user"}]}, "missing_required_parameter", "messages.0.content"),
    ("/detokenize", {}, "missing_required_parameter", "tokens"),
    ("/detokenize", {"tokens": [1, "2"]}, "invalid_type", "tokens.1"),
    ("/detokenize", {"tokens": [400]}, "invalid_value", "tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "code", "param"), CASES, ids=lambda one: str(one)[:60])
async def test_codes_and_fields(house: House, path: str, body: Any, code: str, param: str | None) -> None:
    response = await house.post(path, body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert (error["code"], error["param"]) == (code, param), error
    assert (400, "invalid_request_error", code) in in_page()


async def test_what_the_engine_refuses_is_told_in_the_clients_words(house: House) -> None:
    """Its own words are `prompt` and `max_tokens`."""
    for field, path, body, theirs in (
        ("prompt", CHAT, {"messages": [USER]}, "messages"),
        ("prompt", TEXT, {"prompt": "Hi"}, "prompt"),
        ("prompt", VECTORS, {"input": "Hi"}, "input"),
        ("max_tokens", CHAT, {"messages": [USER], "max_tokens": 9}, "max_tokens"),
        ("max_tokens", CHAT, {"messages": [USER], "max_completion_tokens": 9}, "max_completion_tokens"),
        ("max_tokens", TEXT, {"prompt": "Hi", "max_completion_tokens": 9}, "max_completion_tokens"),
    ):
        house.engine.refusal = ContextLengthExceeded(
            f"the prompt is long and {FIELD if field == 'max_tokens' else 'max_tokens'} is 9", field
        )
        error = error_of(await house.post(path, body))
        assert (error["param"], error["code"]) == (theirs, "context_length_exceeded"), (path, body)
        assert "the prompt is long" in error["message"]
        if field == "max_tokens":
            assert f"{theirs} is 9" in error["message"]
    house.engine.refusal = InvalidRequest("the prompt is empty", "prompt")
    error = error_of(await house.post(VECTORS, {"input": "Hi"}))
    assert (error["param"], error["code"]) == ("input", "invalid_value"), "no refusal is without a code"


async def test_too_many_prompts_are_not_blamed_on_n(house: House) -> None:
    many = ["a"] * 1000
    for more, param in (({"n": 2}, "n"), ({"best_of": 2}, "best_of")):
        error = error_of(await house.post(TEXT, {"prompt": many, **more}))
        assert error["param"] == param
    assert error_of(await house.post(TEXT, {"prompt": ["a"] * 2000}))["param"] == "prompt"


# -- the log -----------------------------------------------------------------------------------------------------------


async def test_the_line_of_a_refusal_says_code_and_param(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    await house.post(VECTORS, {"input": LONG})
    await house.post(CHAT, {"messages": [USER, {"role": "user", "content": 5}]})
    await house.get("/nope")
    await house.complete()
    first, second, third, good = capsys.readouterr().out.splitlines()
    assert "code=context_length_exceeded" in first and "param=input" in first and "status=400" in first
    assert "code=invalid_type" in second and "param=messages.1.content" in second
    assert "code=not_found" in third and "param=" not in third and "status=404" in third
    assert "code=" not in good and "param=" not in good


async def test_a_field_that_a_client_made_up_stays_on_its_line(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    """It resembles a field, so it is told back."""
    name = "max_tokens\n\x1b\x9b"
    response = await house.chat(**{name: 1})
    assert response.status_code == 400 and error_of(response)["param"] == name
    [line] = capsys.readouterr().out.splitlines()
    assert "param=" in line and line.isprintable()


async def test_a_stream_that_fails_says_why(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    house.engine.script = steps(TextDelta(0, "a", (7,)), ExecutorFailed("gone"))
    await house.complete(stream=True)
    line = capsys.readouterr().out.splitlines()[-1]
    assert "status=200" in line and "code=executor_died" in line
    assert counted(house)[TEXT, "500"] == 1 and not counted(house)[TEXT, "200"]


# -- counters ----------------------------------------------------------------------------------------------------------


def counted(house: House) -> Counter[tuple[str, str]]:
    """`cohort_http_requests_total` by route and status."""
    text = house.state.metrics.render().decode()
    found = re.findall(
        r'^cohort_http_requests_total\{route="([^"]*)",status="(\d+)"\} (\S+)$', text, re.MULTILINE
    )
    return Counter({(route, status): int(float(value)) for route, status, value in found})


async def test_answers_of_all_kinds_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware.log, "exception", lambda *args, **more: None)
    house = House(options={"api_keys": ["key"], "hosts": Hosts([]), "max_body_bytes": 1000})
    key = {"Authorization": "Bearer key", "Host": "localhost"}

    async def ask(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> int:
        return (await client.request(method, path, **more)).status_code

    engine = house.engine
    async with house.client(headers=key) as client:
        wanted: list[tuple[str, str, int]] = []
        for method, path, route, status, more in (
            ("POST", TEXT, TEXT, 200, {"json": {"prompt": "Hi"}}),
            ("POST", TEXT, TEXT, 400, {"json": {}}),
            ("POST", TEXT + "/", TEXT, 400, {"json": {}}),
            ("GET", "/v1/models", "/v1/models", 401, {"headers": {"Authorization": "Bearer x"}}),
            ("GET", "/nope", "other", 401, {"headers": {"Authorization": "Bearer x"}}),
            ("GET", "/v1/models", "/v1/models", 403, {"headers": {"Host": "evil.example"}}),
            ("GET", "/v1/models/x/y", "/v1/models/{name}", 404, {}),
            ("GET", "/nope", "other", 404, {}),
            ("GET", "/classify", "other", 404, {}),
            ("GET", CHAT, CHAT, 405, {}),
            ("POST", VECTORS, VECTORS, 413, {"json": {"input": "x" * 2000}}),
            ("POST", VECTORS, VECTORS, 415, {"content": b"{}"}),
            ("GET", "/v1/models", "/v1/models", 431, {"headers": {"x-big": "x" * 70_000}}),
            ("HEAD", "/live", "/live", 200, {}),
        ):
            assert await ask(client, method, path, **more) == status, (method, path)
            wanted.append((route, path, status))
        for refusal, status in (
            (Overloaded("full"), 429),
            (DeadlinePassed("late"), 429),
            (ExecutorFailed("gone"), 500),
            (Unavailable("draining"), 503),
            (RuntimeError("bug"), 500),
        ):
            engine.refusal = refusal
            assert await ask(client, "POST", CHAT, json={"messages": [USER]}) == status
            wanted.append((CHAT, CHAT, status))
    expected = Counter((route, str(status)) for route, _, status in wanted)
    assert {kind: count for kind, count in counted(house).items() if count} == dict(expected)


async def test_labels_are_bounded_whatever_is_asked(house: House) -> None:
    before = len(counted(house))
    async with house.client() as client:
        for number in range(50):
            await client.get(f"/nope/{number}")
            await client.get(f"/v1/models/{number}")
            await client.post(f"/v1/{number}", content=b"", headers=AS_JSON)
    assert len(counted(house)) <= before + 2


def test_series_that_alerts_watch_exist_from_the_start(house: House) -> None:
    found = counted(house)
    assert all((CHAT, status) in found for status in ("200", "400", "429", "500", "503"))


async def test_what_is_refused_below_the_application_is_counted(
    running: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its line in the log has the code."""
    get = b"GET /v1/models HTTP/1.1\r\n"
    for request_bytes in (
        get + b"\r\n",
        b"HELLO\r\n\r\n",
        b"GET /live HTTP/2.0\r\nHost: x\r\n\r\n",
        get + b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    ):
        await talk(running, request_bytes)
    monkeypatch.setattr(protocol, "BODY_WINDOW", 0.1)
    await talk(running, CHUNKED + b"20\r\n")
    found = counted(running.house)
    assert found["/v1/models", "400"] == 1 and found["other", "400"] == 1
    assert found["/live", "505"] == 1 and found["/v1/models", "501"] == 1
    assert found[TEXT, "408"] == 1 and not found[TEXT, "499"], "each request once"
    lines = [line for line in capsys.readouterr().out.splitlines() if "before it was complete" in line]
    assert [re.search(r"code=(\S+)", line)[1] for line in lines] == [  # type: ignore[index]
        "invalid_http",
        "invalid_http",
        "unsupported_http_version",
        "unsupported_transfer_encoding",
        "request_timeout",
    ]
