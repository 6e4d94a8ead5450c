"""A start without a model where this disk has some, and the verbs that an Ollama user tries: run, ps, stop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server_process import ServerProcess
from tests.sparse_model import write_sparse_model

pytestmark = pytest.mark.long

COHORT = str(Path(sys.executable).with_name("cohort"))
REQUESTS = 'cohort_requests_total{outcome="stop"}'


def run(
    folder: Path, *args: str, stdin: str = "", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COHORT, *args], cwd=folder, input=stdin, env={**os.environ, "COLUMNS": "80", **(env or {})}, capture_output=True,
        text=True, timeout=55,
    )  # fmt: skip


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user with one model for chats, and a larger one that is none."""
    hub = tmp_path_factory.mktemp("hub")
    for name, layers in {"chat": 13, "base": 16}.items():
        folder = hub / f"models--acme--{name}"
        write_sparse_model(folder / "snapshots" / "abc", layers)
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text("abc")
    return {"HF_HUB_CACHE": str(hub), "XDG_RUNTIME_DIR": str(tmp_path_factory.mktemp("run"))}


@pytest.fixture(scope="module")
def server(disk: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess([], tmp_path_factory.mktemp("unnamed"), env=disk) as running:
        yield running


@pytest.fixture(scope="module")
def tiny(disk: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"XDG_RUNTIME_DIR": disk["XDG_RUNTIME_DIR"]}
    with ServerProcess(["cohort-tiny"], tmp_path_factory.mktemp("tiny"), env=env) as running:
        yield running


def test_the_best_model_is_served_and_the_log_says_why(server: ServerProcess) -> None:
    [model] = server.get("/v1/models").json()["data"]
    assert model["id"] == "acme/chat"
    log = server.log()
    assert "no model is named: looking for the best of 2 on this disk" in log
    assert (
        "serving acme/chat: of 2 models on this disk the largest that chats and fits into memory (0.16B parameters"
        in log
    )
    assert "another: cohort serve NAME, with a name that `cohort list` shows" in log
    [ready] = [line for line in log.splitlines() if "is ready at" in line]
    assert "chosen=" in ready and "another=" in ready


@pytest.mark.long(extended=True)
def test_list_marks_it(server: ServerProcess, disk: dict[str, str], tmp_path: Path) -> None:
    rows = json.loads(run(tmp_path, "list", "--json", env=disk).stdout)
    assert [row["short"] for row in rows if row["chosen"]] == ["acme/chat"]


def test_ps_shows_servers(
    server: ServerProcess, tiny: ServerProcess, disk: dict[str, str], tmp_path: Path
) -> None:
    rows = {row["pid"]: row for row in json.loads(run(tmp_path, "ps", "--json", env=disk).stdout)}
    mine = rows[server.pid]
    assert (mine["url"], mine["models"]) == (server.url, ["acme/chat"])
    assert 0 < mine["seconds"] < 300 and mine["memory"] > 150 << 20, "with that of the executor"
    assert rows[tiny.pid]["models"] == ["cohort-tiny"]
    text = run(tmp_path, "ps", env=disk).stdout
    [line] = [line for line in text.splitlines() if line.startswith(str(server.pid))]
    assert line.split()[1:3] == [server.url, "acme/chat"]


def test_stop_without_a_name_is_refused_where_several_run(
    server: ServerProcess, tiny: ServerProcess, disk: dict[str, str], tmp_path: Path
) -> None:
    done = run(tmp_path, "stop", env=disk)
    assert done.returncode == 2 and "name one by its process id" in done.stderr
    done = run(tmp_path, "stop", "no-such-model", env=disk)
    assert done.returncode == 1 and "no running server has this model" in done.stderr
    server.check_alive()
    tiny.check_alive()


def test_run_answers_at_the_server_that_has_the_model(
    tiny: ServerProcess, disk: dict[str, str], tmp_path: Path
) -> None:
    before = tiny.metric(REQUESTS)
    done = run(tmp_path, "run", "cohort-tiny", "Count", "from 3 to 9.", "--temperature", "0", env=disk)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3, 4, 5, 6, 7, 8, 9\n", "")
    deadline = time.monotonic() + 5  # it is counted once its connection is done with
    while tiny.metric(REQUESTS) != before + 1:
        assert time.monotonic() < deadline, "another server answered"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "stdin"),
    [(["from 3 to 9."], "Count"), ([], "Count from 3 to 9."), (["Count from 3 to 9."], "")],
)
def test_run_reads_what_is_piped(
    tiny: ServerProcess, disk: dict[str, str], tmp_path: Path, words: list[str], stdin: str
) -> None:
    done = run(tmp_path, "run", "cohort-tiny", *words, "--temperature", "0", stdin=stdin, env=disk)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3, 4, 5, 6, 7, 8, 9\n", "")


@pytest.mark.long(extended=True)
def test_run_starts_a_server_of_its_own_and_ends_it(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = run(tmp_path, "run", "cohort-tiny", "Count from 3 to 9.", "--temperature", "0", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3, 4, 5, 6, 7, 8, 9\n", "")
    assert list(tmp_path.rglob("*.json")) == []


def test_stop_ends_a_server(tmp_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    running = ServerProcess(["cohort-tiny"], tmp_path, env=env)
    try:
        running.wait_until_ready()
        assert (tmp_path / "cohort" / f"{running.pid}.json").exists()
        port = running.url.rpartition(":")[2]
        done = run(tmp_path, "stop", port, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Stopped the server {running.pid} at {running.url} (cohort-tiny).")
        assert running.process.wait(5) == 0
        assert not (tmp_path / "cohort" / f"{running.pid}.json").exists()
    finally:
        running.kill()
