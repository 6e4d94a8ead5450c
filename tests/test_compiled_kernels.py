"""Kernels are compiled before the first test of a whole run, and no compiler outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from executors.kernels.compiler import usable_isas
from tests import compiled_kernels
from tests.compiled_kernels import begin_to_compile, end, of_a_run


@pytest.mark.parametrize(
    "arguments, jobs, is_worker, expected",
    [
        (["tests"], 2, False, True),
        (["/somewhere/tests"], 2, False, True),
        (["tests"], 2, True, False),
        (["tests"], None, False, False),
        (["tests"], 0, False, False),
        (["tests/server/test_server.py", "tests/engine"], 2, False, False),
    ],
)
def test_which_runs_compile(arguments: list[str], jobs: int | None, is_worker: bool, expected: bool) -> None:
    assert of_a_run(arguments, jobs, is_worker) is expected


def test_every_instruction_set_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(compiled_kernels, "compiled", lambda source, isa, limit_s: made.append(isa.name))
    compiled_kernels.compile_all()
    assert made == [isa.name for isa in usable_isas()]


def test_what_was_begun_ends_with_all_that_it_started(tmp_path: Path) -> None:
    sign = tmp_path / "pid"
    child = f"import os, time; open({str(sign)!r}, 'w').write(str(os.getpid()) + ';'); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = begin_to_compile(sys.executable, "-c", parent)
    deadline = time.monotonic() + 30
    while not (sign.exists() and sign.read_text().endswith(";")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    stat = Path("/proc", sign.read_text().rstrip(";"), "stat")
    end(process)
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it goes on"
        time.sleep(0.01)


@pytest.mark.long
def test_the_program_compiles_into_the_cache(tmp_path: Path) -> None:
    """With a compiler that writes what it was asked for: a set, a library."""
    fake = tmp_path / "fake-cxx"
    fake.write_text("""#!/bin/sh
[ "$1" = --version ] && echo fake && exit
while [ "$1" != -o ]; do shift; done
echo made > "$2"
""")
    fake.chmod(0o755)
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(fake)}
    subprocess.run([sys.executable, "-m", "tests.compiled_kernels"], env=env, check=True, timeout=50)
    made = {path.name.split("-")[1] for path in (tmp_path / "cache" / "cohort" / "kernels").glob("*.so")}
    assert made == {isa.name for isa in usable_isas()}
