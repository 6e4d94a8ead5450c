"""`cohort launch` with clients on PATH that record how they were started. A real server is in tests/e2e/test_launch.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clients.launch.clients import CLIENTS, Target, output_limit
from clients.launch.command import launch
from clients.launch.room import with_limits
from clients.launch.sample import SAMPLE, SAMPLE_TOKENS
from executors.contract import ModelExecutor
from executors.process import connect
from server.answer.notation import ModelNotation
from tests.agents.clients import AGENTS
from tests.server.apis.operation.test_executors import PAGED, register
from tests.server.fakes import House
from tests.server.http.raw_http import serving
from tests.server.startup.test_lifecycle import Running

LONG = 200_000
"""Tokens of context that hold every client's first prompt. Those of the fake model are bytes."""
RECORD = Path(__file__).parents[1] / "agents/recorded/first_prompts.json"
FAKE = '#!/bin/sh\nenv -0 > "$RECORD.env"\nfor word in "$0" "$@"; do printf "%s\\0" "$word"; done > "$RECORD.args"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All clients on PATH; what they record is beside them. The process that becomes the client is a child here."""
    for name in CLIENTS:
        (tmp_path / name).write_text(FAKE)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.delenv("COHORT_API_KEY", raising=False)

    def become(path: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
        subprocess.run([path, *arguments[1:]], env=environment, check=True)

    monkeypatch.setattr(os, "execve", become)
    return tmp_path


@pytest.fixture
async def executor(house: House) -> AsyncIterator[ModelExecutor]:
    """One that the server of the test lists."""
    executor = connect(PAGED, "inline")
    await executor.warmup()
    register(house, fake=executor)
    yield executor
    await executor.shutdown()


def set_context(house: House, context: int) -> None:
    assert house.state.model is not None
    house.state.model = replace(house.state.model, max_model_len=context)


@pytest.fixture
async def running(house: House, executor: ModelExecutor) -> AsyncIterator[Running]:
    set_context(house, LONG)
    async with serving(house) as one:
        yield one


def recorded(folder: Path) -> tuple[dict[str, str], list[str]]:
    variables = (folder / "record.env").read_text().split("\0")[:-1]
    words = (folder / "record.args").read_text().split("\0")[:-1]
    return dict(one.split("=", 1) for one in variables), words[1:]


def files(folder: Path, pattern: str) -> list[Path]:
    return list(folder.glob(pattern))


async def launched(running: Running, folder: Path, client: str, *words: str, **flags: Any) -> Any:
    await asyncio.to_thread(launch, client, list(words), running.url, **flags)
    return recorded(folder)


async def failed(capsys: pytest.CaptureFixture[str], work: Callable[[], Any]) -> str:
    """What one line says."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as error:
        await asyncio.to_thread(work)
    assert error.value.code in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("cohort: error: ")


async def test_claude(running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK"):
        monkeypatch.setenv(name, "of another server")
    monkeypatch.setenv("EDITOR", "kept")
    variables, words = await launched(running, folder, "claude", "-p", "two words", "")
    assert words == ["-p", "two words", ""]
    assert variables["ANTHROPIC_BASE_URL"] == running.url and variables["ANTHROPIC_AUTH_TOKEN"] == "none"
    models = {
        value for name, value in variables.items() if name.startswith("ANTHROPIC") and name.endswith("MODEL")
    }
    assert models == {"fake"} and variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "fake"
    assert "of another server" not in variables.values() and variables["EDITOR"] == "kept"
    assert variables["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(LONG)
    assert variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "32000"


async def test_codex(running: Running, folder: Path) -> None:
    variables, words = await launched(
        running, folder, "codex", "exec", "hi", model="org/fake-1", api_key="a key"
    )
    assert words[-2:] == ["exec", "hi"] and words[:-2:2] == ["-c"] * (len(words) // 2 - 1)
    settings = tomllib.loads("\n".join(words[1:-2:2]))
    assert settings["model"] == "org/fake-1" and settings["model_context_window"] == LONG
    assert LONG - settings["model_auto_compact_token_limit"] == 32_000
    provider = settings["model_providers"][settings["model_provider"]]
    assert provider["base_url"] == f"{running.url}/v1" and provider["wire_api"] == "responses"
    assert variables[provider["env_key"]] == "a key"


async def test_opencode(running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_API_KEY", "first, second")
    variables, words = await launched(running, folder, "opencode", model="org/fake-1")
    assert words == []
    config = json.loads(variables["OPENCODE_CONFIG_CONTENT"])
    name, _, model = config["model"].partition("/")
    assert config["small_model"] == config["model"]
    assert config["provider"][name]["options"] == {"baseURL": f"{running.url}/v1", "apiKey": "first"}
    assert config["provider"][name]["models"][model]["limit"] == {"context": LONG, "output": 32_000}
    assert not files(folder, "*.json"), "no file is written"


async def test_agents_get_no_other_key(
    running: Running, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("API", "first, second"), ("ADMIN", "admin"), ("METRICS", "metrics")):
        monkeypatch.setenv(f"COHORT_{name}_KEY", f"key-{value}")
    for client in CLIENTS:
        variables, words = await launched(running, folder, client)
        told = " ".join((*variables.values(), *words))
        assert "key-first" in told and variables["COHORT_API_KEY"] == "key-first"
        assert not any(secret in told for secret in ("second", "key-admin", "key-metrics"))


async def test_qwen(running: Running, folder: Path) -> None:
    variables, words = await launched(running, folder, "qwen", "-p", "hi")
    assert words == ["--auth-type", "openai", "--model", "fake", "-p", "hi"]
    assert variables["QWEN_CODE_MAX_OUTPUT_TOKENS"] == "32000"
    _, words = await launched(running, folder, "qwen", "-m", "mine", "--auth-type=openai")
    assert words == ["-m", "mine", "--auth-type=openai"], "no option comes twice"
    told = {name: variables[name] for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")}
    assert told == {"OPENAI_BASE_URL": f"{running.url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "fake"}


async def test_an_alias_may_be_named(running: Running, house: House, folder: Path) -> None:
    house.state.aliases = (("gpt-*", "fake"),)
    variables, _ = await launched(running, folder, "qwen", model="gpt-5")
    assert variables["OPENAI_MODEL"] == "gpt-5"


async def test_what_is_wrong_is_one_line(
    running: Running, house: House, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = "http://127.0.0.1:9"
    assert await failed(capsys, lambda: launch("claude", url=nobody)) == (
        f"no server answers at {nobody}: start one with cohort serve MODEL, or give its address with --url"
    )
    assert "claude, codex, opencode and qwen" in await failed(
        capsys, lambda: launch("cursor", url=running.url)
    )
    assert "'nobody' does not exist" in await failed(
        capsys, lambda: launch("codex", url=running.url, model="nobody")
    )
    (folder / "qwen").unlink()
    assert await failed(capsys, lambda: launch("qwen", url=running.url)) == (
        "qwen is not installed: npm install -g @qwen-code/qwen-code"
    )
    assert "--url" in await failed(capsys, lambda: launch("codex", url="ftp://x"))
    assert not files(folder, "record.*"), "no client was started"


async def test_a_model_without_a_tool_format(
    folder: Path, executor: ModelExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(notation=ModelNotation(tools=None, unknown=True))
    set_context(house, LONG)
    register(house, fake=executor)
    async with serving(house) as running:
        line = await failed(capsys, lambda: launch("claude", url=running.url))
    assert line.startswith("fake has no tool format that the server knows") and "--tool-call-parser" in line
    assert not files(folder, "record.*")
    house.state.threads.close()


async def test_a_key_is_asked_for(
    folder: Path, executor: ModelExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(options={"api_keys": ["right"]})
    set_context(house, LONG)
    register(house, fake=executor)
    async with serving(house) as running:
        assert "--api-key" in await failed(capsys, lambda: launch("claude", url=running.url))
        variables, _ = await launched(running, folder, "claude", api_key="right")
    assert variables["ANTHROPIC_AUTH_TOKEN"] == "right"
    house.state.threads.close()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_context_that_can_never_hold_the_session_is_refused(
    running: Running, house: House, folder: Path, capsys: pytest.CaptureFixture[str], client: str
) -> None:
    set_context(house, 512)
    line = await failed(capsys, lambda: launch(client, url=running.url))
    assert re.fullmatch(
        rf"{client} begins with about [\d,]+ tokens, and fake has 512 tokens of context, too few for its prompt, files and "
        r"answers: start the server with --max-model-len \d+ or more, or serve another model; --force starts it anyway",
        line,
    )
    assert not files(folder, "record.*")
    set_context(house, int(line.partition("--max-model-len ")[2].split()[0]))
    await launched(running, folder, client)
    set_context(house, 512)
    capsys.readouterr()
    await launched(running, folder, client, force=True)
    assert "512 tokens of context, too few" in capsys.readouterr().err


@pytest.mark.parametrize("client", CLIENTS)
async def test_limits_leave_room_behind_the_first_prompt(
    running: Running, house: House, folder: Path, client: str
) -> None:
    """The least context that is accepted: a first prompt, its answer and two thousand tokens fit before history is shortened."""
    prompt = round(CLIENTS[client].prompt_tokens * len(SAMPLE) / SAMPLE_TOKENS)  # the fake's tokens are bytes
    for context in range(prompt, LONG, 128):
        set_context(house, context)
        with contextlib.suppress(SystemExit):
            variables, words = await launched(running, folder, client)
            break
    output = output_limit(context - prompt)
    assert prompt + output + 2_048 <= context < prompt + 10_000
    told = " ".join((*variables.values(), *words))
    assert str(context - output if client == "codex" else output) in told


async def test_a_short_session_is_told(
    running: Running, house: House, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_context(house, 42_000)
    await launched(running, folder, "codex")
    error = capsys.readouterr().err
    assert "cohort: warning: codex begins with about 32," in error and "so the session will be short" in error


async def test_a_model_whose_name_claude_knows_gets_a_longer_prompt(
    running: Running, house: House, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house.state.aliases = (("claude-*", "fake"),)
    set_context(house, 65_000)
    await launched(running, folder, "claude")
    line = await failed(capsys, lambda: launch("claude", url=running.url, model="claude-sonnet-4-5"))
    assert "claude begins with about 8" in line


def test_a_context_that_is_not_told_sets_no_limits() -> None:
    target = Target("http://h", None, "m", None)
    for client in CLIENTS.values():
        same, warning = with_limits(client, target, 9_000, force=False)
        assert same == target and "does not tell how long its context is" in warning
        launched = client.launch(same)
        told = " ".join((*launched.variables, *launched.variables.values(), *launched.arguments))
        assert "MAX_OUTPUT" not in told and "limit" not in told and "window" not in told


def test_the_sample_counts_as_the_prompts_do() -> None:
    """Of two models whose tokens differ: within three percent of what each client sends."""
    record = json.loads(RECORD.read_text("utf-8"))
    sample = record["sample"]
    assert (sample["characters"], sample["tokens"]["smollm2"]) == (len(SAMPLE), SAMPLE_TOKENS)
    for name, prompt in record["prompts"].items():
        assert prompt["version"] == AGENTS[name].version, (
            "python -m tests.agents.first_prompts measures them anew"
        )
        tokens = prompt["tokens"]
        estimate = tokens["smollm2"] * sample["tokens"]["gemma3"] / sample["tokens"]["smollm2"]
        assert estimate == pytest.approx(tokens["gemma3"], rel=0.03)
        # Claude Code's is that of an interactive session.
        assert tokens["smollm2"] <= CLIENTS[name].prompt_tokens * 1.01 <= tokens["smollm2"] * 1.2


def test_values_for_codex_are_toml() -> None:
    target = Target("http://h", None, 'odd "name" \\ é', None)
    words = CLIENTS["codex"].launch(target).arguments
    assert tomllib.loads("\n".join(words[1::2]))["model"] == target.model


class Foreign(BaseHTTPRequestHandler):
    """A server with OpenAI's API that has no other routes than those, as vLLM and llama.cpp answer."""

    def do_GET(self) -> None:
        cards = [{"id": "first", "owned_by": "vllm", "max_model_len": 40_000}, {"id": "org/second"}]
        self._send(200, {"data": cards}) if self.path == "/v1/models" else self._send(404, {"detail": "?"})

    def do_POST(self) -> None:
        self._send(404, {"detail": "Not Found"})

    def _send(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def foreign() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_of_another_kind(foreign: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launch("qwen", ["-p", "hi"], foreign)
    variables, words = recorded(folder)
    assert words[:4] == ["--auth-type", "openai", "--model", "first"]
    prompt = CLIENTS["qwen"].prompt_tokens
    assert variables["QWEN_CODE_MAX_OUTPUT_TOKENS"] == str(output_limit(40_000 - prompt))
    launch("qwen", [], foreign, "org/second")
    variables, words = recorded(folder)
    assert words[2:] == ["--model", "org/second"] and "QWEN_CODE_MAX_OUTPUT_TOKENS" not in variables
    assert "does not tell how long its context is" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        launch("qwen", [], foreign, "third")
    assert "the server says 404" in capsys.readouterr().err
