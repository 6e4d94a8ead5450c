"""A terminal that closes: SIGHUP begins a drain, also where every process gets it, and twice; `nohup` outlives it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess
from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

SLOW = [*ECHO, "--executor-option", "step_delay_ms=20"]
TOKENS = 60
BODY: dict[str, Any] = {"prompt": "Hi", "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
WORKERS = [[], ["--api-server-count", "2"]]


@contextlib.contextmanager
def streaming(url: str, **more: Any) -> Iterator[Iterator[str]]:
    """The events of a stream that has begun."""
    with httpx.stream("POST", f"{url}/v1/completions", json=BODY | more, timeout=30) as response:
        lines = (line for line in response.iter_lines() if line)
        assert next(lines).startswith("data: ")
        yield lines


def signal_all(server: ServerProcess, number: signal.Signals) -> None:
    """As `systemctl kill` does, and the shell of a closed terminal to a job: every process, the server's last."""
    for pid in reversed(server.processes()):
        os.kill(pid, number)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.long(every=2)
@pytest.mark.parametrize("workers", WORKERS[::-1], ids=["api workers", "one process"])
def test_what_runs_is_finished(workers: list[str], tokenizer_dir: Path, tmp_path: Path) -> None:
    """The signal comes three times to every process: none of them ends early, and the drain is not cut short."""
    with ServerProcess([str(tokenizer_dir), *SLOW, *workers], tmp_path) as server:
        children = server.children()
        with streaming(server.url) as lines:
            for _ in range(3):
                signal_all(server, signal.SIGHUP)
            assert server.wait_until("/ready", 503).json()["status"] == "draining"
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert any('"finish_reason":"length"' in line for line in rest)
        assert server.process.wait(10) == 0, server.log()
        assert server.log().count("SIGHUP") == 1
        assert not any(map(alive, children))


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("second", "ends_now"),
    [(signal.SIGHUP, False), (signal.SIGTERM, True), (signal.SIGINT, True)],
    ids=lambda value: getattr(value, "name", value),
)
def test_only_a_request_to_stop_ends_the_drain(
    second: signal.Signals, ends_now: bool, tokenizer_dir: Path, tmp_path: Path
) -> None:
    with ServerProcess([str(tokenizer_dir), *SLOW], tmp_path) as server:
        with streaming(server.url) as lines:
            server.process.send_signal(signal.SIGHUP)
            server.wait_until("/ready", 503)
            server.process.send_signal(second)
            rest = list(lines)
        assert any('"error"' in line for line in rest) is ends_now
        assert server.process.wait(10) == 0
        assert ("second signal" in server.log()) is ends_now


@pytest.mark.long(extended=True)
def test_a_hang_up_after_sigterm_does_not_hurry(tokenizer_dir: Path, tmp_path: Path) -> None:
    """systemd's SendSIGHUP= sends one right after SIGTERM."""
    with ServerProcess([str(tokenizer_dir), *SLOW], tmp_path) as server:
        with streaming(server.url) as lines:
            server.process.send_signal(signal.SIGTERM)
            server.wait_until("/ready", 503)
            server.process.send_signal(signal.SIGHUP)
            assert not any('"error"' in line for line in lines)
        assert server.process.wait(10) == 0


def test_nohup_outlives_it(tokenizer_dir: Path, tmp_path: Path) -> None:
    """SIGHUP is ignored at the start, as by `nohup`: it stays so in every process, and SIGTERM still drains."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with ServerProcess([str(tokenizer_dir), *SLOW, *WORKERS[1]], tmp_path, enter=ignore) as server:
        with streaming(server.url) as lines:
            signal_all(server, signal.SIGHUP)
            assert not any('"error"' in line for line in lines)
        assert server.get("/ready").status_code == 200
        assert server.stop(10) == 0


def test_a_real_terminal_that_closes(tokenizer_dir: Path, tmp_path: Path) -> None:
    """The kernel sends the signal, and what the server writes from then on fails."""
    command = [
        str(Path(sys.executable).with_name("cohort")),
        "serve",
        str(tokenizer_dir),
        *SLOW,
        "--port",
        "0",
    ]
    with Terminal(command, tmp_path) as terminal:
        terminal.expect("curl http", within=30)
        url = re.search(r"listening on (http://[\d.:]+)", terminal.shown)
        assert url is not None
        with streaming(url[1]) as lines:
            terminal.close()
            rest = list(lines)
        assert rest[-1] == "data: [DONE]" and not any('"error"' in line for line in rest)
        assert terminal.process.wait(10) == 0


@pytest.mark.long(every=2)
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_mean_nothing_here_end_nothing(
    number: signal.Signals, tokenizer_dir: Path, tmp_path: Path
) -> None:
    """Other servers reopen their logs at these: what rotates logs may send them."""
    with ServerProcess([str(tokenizer_dir), *SLOW, *WORKERS[1]], tmp_path) as server:
        children = server.children()
        with streaming(server.url) as lines:
            signal_all(server, number)
            assert not any('"error"' in line for line in lines)
        assert server.children() == children
        assert f"{number.name} has no meaning" in server.log()


def test_sigquit_leaves_no_process_behind(tokenizer_dir: Path, tmp_path: Path) -> None:
    with ServerProcess([str(tokenizer_dir), *SLOW, *WORKERS[1]], tmp_path) as server:
        children = server.children()
        assert len(children) == 3
        server.process.send_signal(signal.SIGQUIT)
        assert server.process.wait(10) == -signal.SIGQUIT
        deadline = time.monotonic() + 10
        while any(map(alive, children)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.long(extended=True)
def test_a_hang_up_in_the_first_moments(tokenizer_dir: Path, tmp_path: Path) -> None:
    server = ServerProcess([str(tokenizer_dir), *SLOW], tmp_path)
    try:
        _ = server.url
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(10) == 0, server.log()
    finally:
        server.kill()
