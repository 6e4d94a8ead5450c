"""One compilation at a time, whatever becomes of the process that it is for; and none that outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executors.kernels import compile_lock
from executors.kernels.compile_lock import private_folder, sweep, workspace

WANTS = """
import logging, sys
from pathlib import Path
from executors.kernels.compiler import compiled, usable_isas
logging.basicConfig(level=logging.INFO, format="%(message)s")
print(compiled(Path(sys.argv[1]), usable_isas()[0]).read_text())
"""
FAKE = """#!/bin/sh
[ "$1" = --version ] && echo fake && exit
while [ "$1" != -o ]; do shift; done
sh -c 'echo $$ >> "$0"; while [ ! -e "$0.go" ]; do sleep 0.05; done' {pids}
echo {pids} >> {log}
echo "made by $$" > "$2"
"""


class Starts:
    """Processes that want the same library, from a compiler that takes as long as the test likes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.pids, self._log = folder, folder / "pids", folder / "log"
        self.cache = folder / "cache" / "cohort" / "kernels"
        (folder / "small.cpp").write_text("int answer;")
        fake = folder / "fake-cxx"
        fake.write_text(FAKE.format(pids=self.pids, log=self._log))
        fake.chmod(0o755)
        self._env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "CXX": str(fake)}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WANTS, str(self._folder / "small.cpp")]
        process = subprocess.Popen(
            command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )
        self.processes.append(process)
        return process

    def go(self) -> None:
        """Let the compilers finish."""
        Path(f"{self.pids}.go").touch()

    def compilers(self) -> list[int]:
        """Process ids of all compilers so far: of what the driver started."""
        return [int(line) for line in self.pids.read_text().split()] if self.pids.exists() else []

    def finished(self) -> int:
        """Number of compilations that came to their end."""
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0


@pytest.fixture
def starts(tmp_path: Path) -> Iterator[Starts]:
    found = Starts(tmp_path)
    yield found
    found.go()
    for process in found.processes:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_two_starts_share_one_compilation(starts: Starts) -> None:
    first = starts.start()
    until(lambda: len(starts.compilers()) == 1, "the compiler was not started")
    second = starts.start()
    assert second.stderr is not None
    words = second.stderr.readline()
    assert f"waiting for process {first.pid}, which compiles small-" in words
    starts.go()
    results = [process.communicate(timeout=20)[0] for process in (first, second)]
    assert results[0] == results[1] and results[0].startswith("made by"), results
    assert len(starts.compilers()) == 1 == starts.finished() and len(list(starts.cache.iterdir())) == 1


@pytest.mark.parametrize("victim", ["process", "guard"])
def test_a_killed_start_takes_its_compiler_along_and_the_next_compiles(starts: Starts, victim: str) -> None:
    first = starts.start()
    until(lambda: len(starts.compilers()) == 1, "the compiler was not started")
    [compiler_proper] = starts.compilers()
    second = starts.start()
    assert second.stderr is not None and "waiting" in second.stderr.readline()
    if victim == "process":
        first.kill()
    else:
        [guard] = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        os.kill(int(guard), signal.SIGKILL)
        assert "it was killed, most likely for want of memory" in first.communicate(timeout=20)[1]
    until(lambda: not lives(compiler_proper), "the compiler goes on")
    until(lambda: len(starts.compilers()) == 2, "the other does not compile")
    starts.go()
    assert second.communicate(timeout=20)[0].startswith("made by") and starts.finished() == 1
    assert [path.suffix for path in starts.cache.iterdir()] == [".so"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_runs_on_for_a_process_that_is_gone_and_the_next_start_sweeps(
    starts: Starts, number: signal.Signals
) -> None:
    first = starts.start()
    until(lambda: len(starts.compilers()) == 1, "the compiler was not started")
    first.send_signal(number)
    first.wait(10)
    until(lambda: not lives(starts.compilers()[0]), "the compiler goes on")
    assert [path.suffix for path in starts.cache.iterdir()] == [".tmp"]
    starts.go()
    starts.start().communicate(timeout=20)
    assert [path.suffix for path in starts.cache.iterdir()] == [".so"]


def test_no_part_is_compiled_on_for_a_process_that_is_gone(starts: Starts, tmp_path: Path) -> None:
    """Here the compilers of both parts run, or on one processor the first."""
    (tmp_path / "small_part.cpp").write_text("int second;")
    first = starts.start()
    together = min(2, len(os.sched_getaffinity(0)))
    until(lambda: len(starts.compilers()) == together, "not all parts are compiled")
    first.kill()
    first.wait(10)
    for pid in starts.compilers():
        until(lambda pid=pid: not lives(pid), "a compiler goes on")  # type: ignore[misc]
    assert [path.suffix for path in starts.cache.iterdir()] == [".tmp"]
    starts.go()
    assert starts.start().communicate(timeout=20)[0].startswith("made by")
    assert [path.suffix for path in starts.cache.iterdir()] == [".so"]


def test_only_what_no_process_has_locked_is_swept(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_text("")
    for name, age in (("young.so.1.tmp", 60), ("old.so.2.tmp", 7200)):
        (tmp_path / name).write_text("of an earlier version")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    (tmp_path / "dead.so.tmp").mkdir()
    (tmp_path / "dead.so.tmp" / "lock").write_text("1")
    (tmp_path / "dead.so.tmp" / "half.o").write_text("")
    with workspace(tmp_path / "live.so", 1) as work:
        assert work is not None
        (work.folder / "half.o").write_text("")
        sweep(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "kernel.so",
            "live.so.tmp",
            "young.so.1.tmp",
        ]
        assert (work.folder / "half.o").exists()
    assert not work.folder.exists()


def test_one_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    target = tmp_path / "kernel.so"
    with workspace(target, 1) as stuck:
        with workspace(target, 0.2) as work:
            assert stuck is not None and work is not None and work.folder != stuck.folder
            (work.folder / "made").write_text("whole")
            (work.folder / "made").replace(target)
        assert stuck.folder.exists() and not work.folder.exists()
    with workspace(target, 1) as third:
        assert third is None
    assert [path.name for path in tmp_path.iterdir()] == ["kernel.so"]


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(compile_lock.fcntl, "flock", refuse)
    with workspace(tmp_path / "kernel.so", 1) as work:
        assert work is not None and work.lock is None and work.folder.is_dir()
        sweep(tmp_path)
        assert work.folder.is_dir()
    assert not work.folder.exists()


def test_private_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """Where the cache is read-only, each executor has one, and a killed one cannot remove it."""
    code = (
        "import sys, time; from pathlib import Path; from executors.kernels.compile_lock import private_folder\n"
        "folder = private_folder(Path(sys.argv[1]), 'a-'); (folder / 'x.so').touch(); (folder / 'y.so.tmp').mkdir()\n"
        "print(folder, flush=True); time.sleep(60)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        folders = [Path(process.stdout.readline().strip()) for process in processes if process.stdout]
        (tmp_path / "a-link").symlink_to(folders[0])
        (tmp_path / "a-other").mkdir()
        assert len(set(folders)) == 2 and all(folder.is_dir() for folder in folders)
        processes[0].kill()
        processes[0].wait()
        own = private_folder(tmp_path, "a-")
        assert sorted(tmp_path.iterdir()) == sorted(
            [folders[1], own, tmp_path / "a-link", tmp_path / "a-other"]
        )
    finally:
        for process in processes:
            process.kill()
            process.communicate()
