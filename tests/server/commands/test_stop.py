"""`cohort stop`: which server is meant, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from server.commands.running import stop as verb
from server.commands.running.ps import duration
from server.running import registry
from server.running.registry import RunningServer

ONE = RunningServer(101, "http://127.0.0.1:8000", ("small", "small-alias"), 30.0)
TWO = RunningServer(202, "https://[::1]:8001", ("acme/large",), 30.0)
THREE = RunningServer(303)


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("101", ONE), ("small", ONE), ("small:latest", ONE), ("8000", ONE), ("127.0.0.1:8000", ONE),
        ("http://127.0.0.1:8000/v1", ONE),
        ("localhost:8000", ONE), ("http://localhost:8000", ONE), ("acme/large", TWO), ("202", TWO), ("https://[::1]:8001", TWO),
        ("localhost:8001", TWO), ("303", THREE),
    ],
)  # fmt: skip
def test_the_server_that_is_meant(target: str, meant: RunningServer) -> None:
    assert verb.chosen([ONE, TWO, THREE], target) == meant


@pytest.mark.parametrize(
    ("servers", "target", "code", "line"),
    [
        ([], None, 1, "no server runs on this machine"),
        ([ONE, TWO], None, 2, "2 servers run: name one by its process id: the server 101 at http://127.0.0.1:8000 "
         "(small, small-alias); the server 202 at https://[::1]:8001 (acme/large)"),
        ([ONE, RunningServer(102, "http://127.0.0.1:9", ("small",))], "small", 2, "2 servers fit small: name one"),
        ([ONE, THREE], "other", 1, "other: no running server has this model, process id or address; running: the server 101 at"),
        ([ONE], "10", 1, "10: no running server"),
        ([ONE], "127.0.0.1:notaport", 1, "no running server"),
        ([ONE], "10.0.0.1:8000", 1, "no running server"),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_refused(
    servers: list[RunningServer], target: str | None, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        verb.chosen(servers, target)
    assert end.value.code == code
    assert line in capsys.readouterr().err


def stopped(process: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, drain: float = 30.0) -> None:
    found = [RunningServer(process.pid, "http://127.0.0.1:1", ("small",), drain)]
    monkeypatch.setattr(registry, "running", lambda environ: found)
    monkeypatch.setattr(verb, "take_interrupts", lambda: None)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    verb.stop("small")


def child(handler: str) -> subprocess.Popen[str]:
    code = (
        f"import signal, sys, time\nsignal.signal(15, {handler})\nprint('here', flush=True)\ntime.sleep(50)"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_it_gets_a_sigterm_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with child("lambda *_: (time.sleep(0.3), sys.exit(7))") as process:
        stopped(process, monkeypatch)
        assert process.wait(10) == 7
    assert capsys.readouterr().out == f"Stopped the server {process.pid} at http://127.0.0.1:1 (small).\n"


def test_one_that_does_not_end_is_left_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "_BEYOND_DRAIN", 0.3)
    monkeypatch.setattr(verb, "_SILENT", 0.1)
    with child("signal.SIG_IGN") as process:
        with pytest.raises(SystemExit) as end:
            stopped(process, monkeypatch, drain=0.2)
        process.kill()
    assert process.returncode == -signal.SIGKILL and end.value.code == 1
    out, err = capsys.readouterr()
    assert out.startswith("Stopping the server") and f"kill -9 {process.pid} ends it at once" in err


def test_one_that_has_just_ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "running", lambda environ: [RunningServer(2**22 + 5)])
    monkeypatch.setattr(verb, "take_interrupts", lambda: None)
    verb.stop()
    assert capsys.readouterr().out == f"the server {2**22 + 5} has ended.\n"


def test_no_other_signal_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(registry, "running", lambda environ: [ONE])
    monkeypatch.setattr(verb, "take_interrupts", lambda: None)
    verb.stop("8000")
    assert sent == [(101, signal.SIGTERM)]


def test_durations() -> None:
    assert [duration(seconds) for seconds in (12.4, 61, 7200, 700000)] == [
        "12 s",
        "1 min",
        "2.0 h",
        "8.1 days",
    ]
