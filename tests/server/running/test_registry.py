"""Servers that run, by the files that they write and by what /proc says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.running import processes, registry
from server.running.registry import RunningServer, folders, register, running, unregister


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(processes, "servers", list)
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path / "run" / "cohort"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.communicate()


def listed() -> list[RunningServer]:
    return running({"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"]})


def test_a_server_is_there_while_its_file_is(runtime: Path) -> None:
    path = register("http://127.0.0.1:8000", ["small"], 30.0)
    assert path == runtime / f"{os.getpid()}.json" and runtime.stat().st_mode & 0o777 == 0o700
    assert listed() == [RunningServer(os.getpid(), "http://127.0.0.1:8000", ("small",), 30.0)]
    assert [one.name for one in runtime.iterdir()] == [path.name]
    unregister(path)
    unregister(path)
    assert listed() == []


@pytest.mark.parametrize(
    "stale", ["gone", "another start", "another boot", "no object", "no JSON", "too large"]
)
def test_files_of_dead_servers_are_deleted(stale: str, runtime: Path, other: subprocess.Popen[bytes]) -> None:
    path = register("http://127.0.0.1:8000", ["small"], 30.0)
    assert path is not None
    entry = json.loads(path.read_text())
    match stale:
        case "gone":
            entry["pid"] = 2**22 + 5  # beyond the largest that Linux gives
        case "another start":
            entry["pid"] = other.pid
            entry["started"] = (processes.start_ticks(other.pid) or 0) - 1
        case "another boot":
            entry["boot"] = "1"
        case "too large":
            entry["models"] = ["x" * (1 << 17)]
    text = {"no object": "[1]", "no JSON": "{"}.get(stale, json.dumps(entry))
    path.write_text(text)
    assert listed() == [] and not path.exists()


def test_a_file_of_a_living_process_stays(runtime: Path, other: subprocess.Popen[bytes]) -> None:
    path = register("http://127.0.0.1:8000", ["small"], 30.0)
    assert path is not None
    entry = {**json.loads(path.read_text()), "pid": other.pid, "started": processes.start_ticks(other.pid)}
    path.with_name(f"{other.pid}.json").write_text(json.dumps(entry))
    assert {one.pid for one in listed()} == {os.getpid(), other.pid}


def test_a_folder_that_others_can_write_to_is_not_used(runtime: Path, tmp_path: Path) -> None:
    runtime.mkdir()
    runtime.chmod(0o777)
    (runtime / "1.json").write_text("{}")
    path = register("http://127.0.0.1:8000", ["small"], 30.0)
    assert path is not None and path.parent != runtime
    assert [one.pid for one in listed()] == [os.getpid()]
    assert (runtime / "1.json").exists()
    unregister(path)


def test_without_a_place_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "folders", lambda environ: [Path("/proc/none")])
    assert register("http://127.0.0.1:8000", ["small"], 30.0) is None
    unregister(None)


def test_the_cache_is_the_last_place(tmp_path: Path) -> None:
    places = folders({})
    assert places[-1] == tmp_path / "cache" / "cohort" / "running"
    assert folders({"XDG_RUNTIME_DIR": "relative"}) == places


def test_a_server_without_a_file_has_its_process_id_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    path = register("http://127.0.0.1:8000", ["small"], 30.0)
    monkeypatch.setattr(processes, "servers", lambda: [1, os.getpid()])
    assert listed() == [
        RunningServer(1),
        RunningServer(os.getpid(), "http://127.0.0.1:8000", ("small",), 30.0),
    ]
    unregister(path)


def test_facts_of_a_process(other: subprocess.Popen[bytes]) -> None:
    assert processes.start_ticks(2**22 + 5) is None and processes.seconds_running(2**22 + 5) is None
    seconds = processes.seconds_running(other.pid)
    assert seconds is not None and 0 <= seconds < 60
    assert {os.getpid(), other.pid} <= set(processes.family(os.getpid()))
    assert processes.family(other.pid) == [other.pid]
    both = processes.memory_bytes([os.getpid(), other.pid])
    assert both > processes.memory_bytes([os.getpid()]) > 10 << 20
    assert processes.memory_bytes([2**22 + 5]) == 0


def test_what_is_left_of_a_process_is_none() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert processes.start_ticks(process.pid) is None
    finally:
        process.wait()
