"""Nothing is silent for more than two seconds: a start, whatever it waits for, a recovery, and the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from executors import tiny
from tests.e2e.quiet import PROMISED, READY, TimedServer
from tests.e2e.terminal import Terminal
from tests.server.hub.fake_hub import FakeHub

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

LATE = ["cohort-tiny", "--executor", "tests.e2e.late_executor:LateFactory"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor's process imports its factory from this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def slow_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment without compiled kernels, and a compiler that takes five seconds to fail."""
    compiler = tmp_path / "slow-cxx"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && echo slow 1.0 && exit 0\nsleep 5\nexit 1\n')
    compiler.chmod(0o755)
    return {"CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_an_executor_that_says_nothing_behind_api_workers(tmp_path: Path) -> None:
    with TimedServer([*LATE, "--api-server-count", "1", "--log-format", "json"], tmp_path) as server:
        ready = server.wait_for(READY)
        server.assert_never_silent(0, ready.at)
        events = [json.loads(line.text) for line in server.lines]
        assert any(one["event"].startswith("loading the executor, ") for one in events), events


def test_kernels_are_compiled_before_the_first_start(slow_compiler: dict[str, str], tmp_path: Path) -> None:
    with TimedServer(["cohort-tiny"], tmp_path, slow_compiler) as server:
        said = server.wait_for("compiling the CPU kernels for ")
        assert "(once; 10 to 60 s)" in said.text
        answer = httpx.get(f"{server.url}/ready").json()
        assert (answer["status"], answer["phase"]) == ("loading", "compiling")
        assert answer["detail"].startswith("compiling the CPU kernels for ")
        failed = server.wait_for("linear layers: torch, which is slower")
        assert failed.at - said.at > 4.5, "it is said before"
        ready = server.wait_for(READY)
        server.assert_never_silent(0, ready.at)


def test_a_signal_while_kernels_are_compiled_is_told_last(
    slow_compiler: dict[str, str], tmp_path: Path
) -> None:
    with TimedServer(["cohort-tiny"], tmp_path, slow_compiler) as server:
        server.wait_for("listening on")
        server.wait_for("compiling the CPU kernels for ")
        server.wait_for(
            "slow-cxx"
        )  # The executor's process names its compiler: the last it has to say for a while.
        server.process.terminate()
        begun = server.wait_for("draining: no new requests")
        assert server.wait() == 0
        assert not any("compiling" in line.text for line in server.lines if line.at > begun.at), server.log()


@pytest.mark.long(extended=True)
def test_ranks_that_wait_for_the_compiler_of_another(slow_compiler: dict[str, str], tmp_path: Path) -> None:
    with TimedServer(["cohort-tiny", "-tp", "2"], tmp_path, slow_compiler) as server:
        ready = server.wait_for(READY)
        server.assert_never_silent(0, ready.at)


def test_a_slow_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    hub = FakeHub(tiny.weights_dir())
    hub.pauses = [3.0]
    hub.hold_after = 1000
    with hub.serving() as url:
        env = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home")}
        with TimedServer([hub.name], tmp_path, env) as server:
            server.wait_for(f"downloading {hub.name}, 2 s so far")
            held = server.wait_for(f"downloading {hub.name} ")
            time.sleep(3)
            hub.go_on.set()
            ready = server.wait_for(READY)
            assert ready.at - held.at > 3
            server.assert_never_silent(0, ready.at)


@pytest.mark.long(extended=True)
def test_a_recovery_and_a_drain(tmp_path: Path) -> None:
    options = ["--executor-option", "step_delay_ms=100", "--drain-timeout", "20"]
    with TimedServer([*LATE, *options], tmp_path) as server:
        url = server.url
        ready = server.wait_for(READY)
        reading = threading.Thread(target=stream, args=(url, 130), daemon=True)
        reading.start()
        server.wait_for("stage: ready")
        os.kill(child_of(server.process.pid), signal.SIGKILL)
        lost = server.wait_for("stage: recovering")
        back = server.wait_for("stage: ready", after=lost.at)
        assert back.at - lost.at > 3
        server.assert_never_silent(lost.at, back.at)
        assert server.wait_for("recovering: loading the executor").at < back.at
        server.process.send_signal(signal.SIGTERM)
        begun = server.wait_for("draining: no new requests")
        assert server.wait() == 0
        stopped = server.wait_for("stage: stopped")
        assert stopped.at - begun.at > 3, server.log()
        server.assert_never_silent(begun.at, stopped.at)
        assert "draining: 1 running; those left are ended after 20 s" in server.log()
        assert ready.at < lost.at


def child_of(parent: int) -> int:
    """Process id of its only child, the executor."""
    [child] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(child)


def stream(url: str, tokens: int) -> None:
    body = {"prompt": "Hi", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        for _ in answer.iter_bytes():
            pass


@pytest.fixture(params=["xterm", "dumb"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield str(request.param)


@pytest.mark.long(extended=True)
def test_a_terminal(kind: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("cohort")), "serve", *LATE, "--port", "0"]
    with Terminal(command, tmp_path, term=kind) as terminal:
        deadline = time.monotonic() + 60
        while READY not in terminal.shown:
            assert terminal.read(PROMISED), f"silent after:\n{terminal.shown}"
            assert time.monotonic() < deadline, terminal.shown
