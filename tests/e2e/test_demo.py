"""`cohort demo` with a real server: a real executor dies, and real answers are compared."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

COHORT = str(Path(sys.executable).with_name("cohort"))
PIDS = re.compile(r"its executor is process (\d+)")


def processes() -> Iterator[tuple[int, int, str]]:
    """Each living process: its id, its parent's, its command."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            command = stat.with_name("cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if state != "Z":
            yield int(stat.parent.name), int(parent), command


def children_of(pid: int) -> set[int]:
    """Of all generations."""
    family, alive = {pid}, list(processes())
    while more := {one for one, parent, _ in alive if parent in family} - family:
        family |= more
    return family - {pid}


def port_of(pid: int) -> int:
    """Where this process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed in the meantime
            inodes.add(str(fd.readlink()).removeprefix("socket:[").removesuffix("]"))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *more = line.split()
        if state == "0A" and more[5] in inodes:
            return int(local.rpartition(":")[2], 16)
    raise AssertionError("it listens nowhere")


def test_nothing_is_lost(tmp_path: Path) -> None:
    """Six streams of six kinds, two deaths; whoever reads a pipe gets lines and an exit code."""
    env = {**os.environ, "COLUMNS": "80", "COHORT_API_KEY": "not-for-this-server", "COHORT_PORT": "1"}
    done = subprocess.run(
        [COHORT, "demo", "cohort-tiny", "--streams", "6", "--kills", "2"], cwd=tmp_path, env=env,
        capture_output=True, text=True, timeout=55,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"6 of 6 equal, longest pause \d+\.\d s", lines[-1])
    assert re.fullmatch(r"Restarting the executor took \d+\.\d s, \d+\.\d s", lines[-2])
    cut = [int(n) for n in re.findall(r"killed by SIGKILL, (\d) streams in mid-answer", done.stdout)]
    # Where this process gets to read late, the shortest answer may have come whole by the second.
    assert len(cut) == 2 and all(5 <= n <= 6 for n in cut), cut
    assert sum("┃" in line for line in lines) == 6 and max(map(len, lines)) <= 80
    assert not list(tmp_path.iterdir()), "it leaves no file"


@pytest.mark.long(every=3)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_whatever_ends_it_ends_all(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """No process and no port is left, also where it could not clean up after itself."""
    with subprocess.Popen(
        [COHORT, "demo", "cohort-tiny", "--streams", "2"], cwd=tmp_path, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as demo:  # fmt: skip
        assert demo.stdout is not None and demo.stderr is not None
        found = PIDS.search(demo.stdout.readline())
        assert found is not None, demo.stderr.read()
        parents = {pid: parent for pid, parent, _ in processes()}
        server = parents[parents[int(found[1])]]  # behind the fork server
        family, port = children_of(demo.pid), port_of(server)
        assert {server, int(found[1])} <= family
        demo.send_signal(number)
        assert demo.wait(20) == code
        complaint = demo.stderr.read()
        assert complaint == "", complaint
    deadline = time.monotonic() + 20
    while left := family & {pid for pid, _, _ in processes()}:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


@pytest.mark.long(extended=True)
@pytest.mark.parametrize(
    ("args", "code", "line"),
    [
        (["/nowhere"], 2, "/nowhere: no such directory"),
        (["--streams", "0"], 2, "--streams 0: it should be from 1 to 512"),
        (["--kills", "11"], 2, "--kills 11: it should be from 1 to 10"),
        (["--seed", "-1"], 2, "--seed -1: it should be from 0 to 2147483647"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, args: list[str], code: int, line: str) -> None:
    done = subprocess.run([COHORT, "demo", *args], cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"cohort: error: {line}") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.long(extended=True)
def test_a_directory_without_a_model(tmp_path: Path) -> None:
    done = subprocess.run(
        [COHORT, "demo", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cohort: error: ") and done.stderr.count("\n") == 1, done.stderr


def test_the_verb_is_light(tmp_path: Path) -> None:
    """Its process imports no torch, and the help none of what it runs with."""
    names = "('torch', 'rich.live', 'uvloop')"
    enter = "import sys; from cohort_server import rooms; rooms.enter()"
    code = f"{enter}; from cohort_server import command_line; print([m for m in {names} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "[]\n", done
    code = f"{enter}; import clients.demo.view; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == "False\n", done
