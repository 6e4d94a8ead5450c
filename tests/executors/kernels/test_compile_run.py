"""Compilers side by side: as many as are allowed, within one time, and none that goes on once one has failed."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path

import pytest

from executors.kernels.compile_run import Command, RunFailed, RunTimedOut, TimeLimit, run

MEET = """
import pathlib, sys, time
here, other = map(pathlib.Path, sys.argv[1:])
here.touch()
end = time.monotonic() + 20
while not other.exists():
    if time.monotonic() > end:
        sys.exit("error: alone")
    time.sleep(0.01)
print("met", here.name)
"""
ALONE = """
import os, sys, time
os.mkdir(sys.argv[1])
time.sleep(0.1)
os.rmdir(sys.argv[1])
"""
LAST = """
import os, sys, time
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(60)
"""


def _python(code: str, *arguments: object, name: str = "") -> Command:
    return Command([sys.executable, "-S", "-c", code, *map(str, arguments)], name)


def _limit(seconds: float = 50) -> TimeLimit:
    return TimeLimit.of(seconds, "the trial")


def _ended(pid: str) -> None:
    """It was killed, which takes a busy machine a while."""
    deadline = time.monotonic() + 20
    with contextlib.suppress(OSError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
            assert time.monotonic() < deadline, "a compiler goes on"
            time.sleep(0.01)


def test_two_run_side_by_side_and_outputs_keep_their_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    commands = [_python("print('first')"), _python(MEET, one, two), _python(MEET, two, one)]
    assert run(commands, _limit(), at_once=2) == ["first\n", "met one\n", "met two\n"]


def test_no_more_run_than_are_allowed(tmp_path: Path) -> None:
    """Each fails where another one has made its folder."""
    run([_python(ALONE, tmp_path / "room") for _ in range(4)], _limit(), at_once=1)


def test_the_first_failure_is_named_and_ends_the_others(tmp_path: Path) -> None:
    sign = tmp_path / "pid"
    wait = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\n"
    commands = [
        _python(LAST, sign, name="long.cpp"),
        _python(wait + "sys.exit('note\\nerror: no such thing')", sign, name="broken.cpp"),
        _python("open(sys.argv[1], 'w')", tmp_path / "never", name="behind.cpp"),
    ]
    expected = re.escape(f"{sys.executable} failed: broken.cpp: error: no such thing")
    with pytest.raises(RunFailed, match=f"^{expected}$"):
        run(commands, _limit(), at_once=2)
    _ended(sign.read_text())
    assert not (tmp_path / "never").exists(), "one was started after the failure"


def test_what_was_killed_is_told_with_its_part() -> None:
    kill = "import os\nos.kill(os.getpid(), 9)"
    with pytest.raises(RunFailed, match=r"failed: big.cpp: it was killed, most likely for want of memory"):
        run([_python(kill, name="big.cpp")], _limit())


def test_all_commands_share_one_time_limit(tmp_path: Path) -> None:
    """Each alone would be within it."""
    nap = "import time\ntime.sleep(0.6)"
    sign = tmp_path / "pid"
    began = time.monotonic()
    with pytest.raises(RunTimedOut, match="timed out: the trial took more than 1 s"):
        run([_python(nap), _python(LAST, sign)], _limit(1))
    if sign.exists():
        _ended(sign.read_text())
    assert time.monotonic() - began < 50, "the second had a time of its own"


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(RunFailed, match="no-such-compiler failed: error: it could not be started"):
        run([Command(["no-such-compiler"])], _limit())
