"""A command that takes long is seen to go on, on a terminal and in a log."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import heartbeat

SILENT = "import time; time.sleep(0.5)"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_S", 0.1)
    monkeypatch.setattr(heartbeat, "_REDRAW_S", 0.05)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_no_gap_is_longer_than_two_seconds() -> None:
    """The figures that a user gets, before the fixture makes them shorter: a beat is looked for every redraw."""
    text = Path(heartbeat.__file__).read_text("utf-8")
    beat, redraw = (
        float(re.search(rf"^{name} = ([\d.]+)$", text, re.M)[1]) for name in ("_BEAT_S", "_REDRAW_S")
    )  # type: ignore[index]
    assert beat + redraw <= 1.5


def test_a_log_gets_the_lines_and_beats_between_them() -> None:
    log = io.StringIO()
    outcome = heartbeat.run(
        "working", python("print('one', flush=True);" + SILENT + ";print('two')"), output=log
    )
    assert (outcome.code, outcome.lines) == (0, ["one", "two"])
    lines = log.getvalue().splitlines()
    beats = lines[lines.index("  one") + 1 : lines.index("  two")]
    assert len(beats) >= 2 and all(re.fullmatch(r"  working: \d+ s", beat) for beat in beats)


def test_a_terminal_gets_one_line_with_what_is_done_and_how_far() -> None:
    terminal = Terminal()
    code = (
        "print('Downloading /a/b/torch-2.13.0-cp311-cp311-linux_x86_64.whl (9 MB)\\nProgress 25 of 100', flush=True);"
        + SILENT
    )
    heartbeat.run("installing", python(code), output=terminal)
    text = terminal.getvalue()
    assert "\n" not in text and text.endswith("\r\x1b[K")
    assert "installing: Downloading torch-2.13.0 (9 MB) · 25%" in text and "/a/b" not in text


def test_what_watches_ends_the_command_and_what_it_started() -> None:
    code = (
        "import subprocess, time; subprocess.Popen(['sleep', '60']); print('bad', flush=True); time.sleep(60)"
    )
    began = time.monotonic()
    outcome = heartbeat.run(
        "looking", python(code), watch=lambda line: line == "bad", relays=False, output=io.StringIO()
    )
    assert outcome.stopped and outcome.code == 124 and time.monotonic() - began < 10


def test_a_command_has_its_time() -> None:
    outcome = heartbeat.run("asking", ["sleep", "60"], limit_s=0.2, output=io.StringIO())
    assert outcome.code == 124 and not outcome.stopped and outcome.seconds < 10


def test_a_failure_is_an_exit_code_and_an_interrupt_ends_the_child() -> None:
    assert heartbeat.run("failing", python("raise SystemExit(3)"), output=io.StringIO()).code == 3
    pids: list[int] = []

    def interrupted(line: str) -> bool:
        pids.append(int(line))
        raise KeyboardInterrupt

    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        heartbeat.run("working", python(code), watch=interrupted, output=io.StringIO())
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_what_runs_beside_others_is_waited_for(tmp_path: Path) -> None:
    log, beats = tmp_path / "log", io.StringIO()
    process = heartbeat.spawn(python(SILENT + ";print('made'); raise SystemExit(2)"), log)
    assert heartbeat.wait("compiling", process, time.monotonic(), beats) == 2
    assert log.read_text() == "made\n" and "compiling: " in beats.getvalue()
    heartbeat.end(process)
    running = subprocess.Popen(["sleep", "60"], process_group=0)
    heartbeat.end(running)
    assert running.returncode == -9
