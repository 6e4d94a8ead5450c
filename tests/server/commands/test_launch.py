"""`cohort launch` with clients on PATH that record how they were started. A real server is in tests/e2e/test_launch.py."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tomllib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from executors.contract import ModelExecutor
from executors.process import connect
from server.answer.notation import ModelNotation
from server.commands.launch.clients import CLIENTS, Target
from server.commands.launch.command import launch
from tests.server.fakes import House
from tests.server.http.raw_http import serving
from tests.server.routes.test_executors import PAGED, register
from tests.server.test_lifecycle import Running

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


@pytest.fixture
async def running(house: House, executor: ModelExecutor) -> AsyncIterator[Running]:
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


async def test_codex(running: Running, folder: Path) -> None:
    variables, words = await launched(
        running, folder, "codex", "exec", "hi", model="org/fake-1", api_key="a key"
    )
    assert words[-2:] == ["exec", "hi"] and words[:-2:2] == ["-c"] * (len(words) // 2 - 1)
    settings = tomllib.loads("\n".join(words[1:-2:2]))
    assert settings["model"] == "org/fake-1" and settings["model_context_window"] == 512
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
    assert config["provider"][name]["models"][model]["limit"]["context"] == 512
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
    register(house, fake=executor)
    async with serving(house) as running:
        assert "--api-key" in await failed(capsys, lambda: launch("claude", url=running.url))
        variables, _ = await launched(running, folder, "claude", api_key="right")
    assert variables["ANTHROPIC_AUTH_TOKEN"] == "right"
    house.state.threads.close()


async def test_a_short_context_is_told(
    running: Running, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await launched(running, folder, "claude")
    assert "fake has 512 tokens of context, and claude begins with about 27,000" in capsys.readouterr().err


def test_values_for_codex_are_toml() -> None:
    target = Target("http://h", None, 'odd "name" \\ é', None)
    words = CLIENTS["codex"].launch(target).arguments
    assert tomllib.loads("\n".join(words[1::2]))["model"] == target.model
