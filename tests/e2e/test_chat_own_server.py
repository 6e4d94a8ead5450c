"""`cohort chat MODEL`: a server of its own, which ends with the conversation, however that ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.terminal import Terminal

COHORT = str(Path(sys.executable).with_name("cohort"))

pytestmark = pytest.mark.long


def chat(
    folder: Path, *arguments: str, stdin: str = "Count from 3 to 9.\n"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COHORT, "chat", *arguments], cwd=folder, input=stdin, capture_output=True, text=True, timeout=50
    )


def _children(pid: int) -> list[str]:
    """Of every thread of a process: the server is the child of one that is not the first."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for task in tasks for child in task.read_text().split()]


def gone(pid: int, within: float = 10) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        stat = Path(f"/proc/{pid}/stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.05)
                continue
        return True
    return False


def test_a_pipe_gets_the_answer_alone(tmp_path: Path) -> None:
    done = chat(tmp_path, "cohort-tiny", "--temperature", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3, 4, 5, 6, 7, 8, 9\n", "")


@pytest.mark.long(extended=True)
def test_what_the_server_is_told_reaches_it(tmp_path: Path) -> None:
    done = chat(tmp_path, "cohort-tiny", "--max-model-len", "24", stdin="Tell me a story. " * 20)
    assert done.returncode == 1 and "24 tokens" in done.stderr, done.stderr


@pytest.mark.long(extended=True)
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["/nowhere"], 2, "/nowhere: no such directory"),
        (["cohort-tiny", "--dtype", "int3"], 2, "dtype"),
        (["http://127.0.0.1:1"], 1, "no server answers at http://127.0.0.1:1"),
        (["127.0.0.1:1"], 1, "no server answers at 127.0.0.1:1"),
        (["cohort-tiny", "--url", "http://127.0.0.1:1"], 2, "not both"),
        (["http://127.0.0.1:1", "--dtype", "float32"], 2, "--dtype is for a server that this command starts"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, arguments: list[str], code: int, words: str) -> None:
    done = chat(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(rf"cohort: error: [^\n]*{re.escape(words)}[^\n]*\n", done.stderr), done.stderr


def test_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", "cohort-tiny", "--temperature", "0"], tmp_path) as terminal:
        terminal.expect(">>> ")
        [pid] = _children(terminal.process.pid)
        terminal.type("Count from 3 to 9.\n")
        terminal.expect("3, 4, 5, 6, 7, 8, 9")
        terminal.expect(">>> ")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert gone(int(pid), 0.1)


@pytest.mark.long(extended=True)
def test_ctrl_c_while_it_starts(tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", "cohort-tiny"], tmp_path) as terminal:
        deadline = time.monotonic() + 20
        while not (children := _children(terminal.process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pressed = time.monotonic()
        terminal.type("\x03")
        assert terminal.wait() == 130
        assert time.monotonic() - pressed < 10
    assert gone(int(children[0]), 0.1)


def test_the_server_ends_with_a_conversation_that_is_killed(tmp_path: Path) -> None:
    with Terminal([COHORT, "chat", "cohort-tiny"], tmp_path) as terminal:
        terminal.expect(">>> ")
        [pid] = _children(terminal.process.pid)
        os.kill(terminal.process.pid, signal.SIGKILL)
        assert gone(int(pid))
