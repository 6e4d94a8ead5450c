"""The pace that a server has measured is known to the next one, unless steps did not keep it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.compiled_kernels import bring_kernels
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.timeout(180)

MEASURING = "measuring the pace"
_SLOW = """
import os
import time

_replace = os.replace

def _slowly(source, target, **options):
    if "/pace/" in os.fspath(target):
        time.sleep(1.5)
    _replace(source, target, **options)

os.replace = _slowly
"""


def run(folder: Path, *, tokens: int = 0) -> str:
    """Load a model of a server, have it make tokens, unload it, and return what the log says of the load."""
    env = {"XDG_CACHE_HOME": str(folder / "cache")}
    with ServerProcess(["a=cohort-tiny"], folder, env=env) as server:
        assert server.post("/models/load", {"model": "a"}, timeout=120).status_code == 200
        if tokens:
            body = {"model": "a", "prompt": "Once", "max_tokens": tokens, "ignore_eos": True}
            assert server.post("/v1/completions", body, timeout=120).status_code == 200
        assert server.post("/models/unload", {"model": "a"}, timeout=60).status_code == 200
        deadline = time.monotonic() + 60
        while not (log := server.log()).rstrip().endswith("unloaded a"):
            assert time.monotonic() < deadline, log
            time.sleep(0.05)
    (line,) = (one for one in log.splitlines() if "loaded a in" in one and "unloaded" not in one)
    return line


def test_a_second_server_measures_nothing_and_a_wrong_pace_is_measured_anew(tmp_path: Path) -> None:
    bring_kernels(tmp_path / "cache")
    assert MEASURING in run(tmp_path)
    (entry,) = (tmp_path / "cache/cohort/pace").iterdir()
    measured = json.loads(entry.read_text())
    assert MEASURING not in run(tmp_path)

    # As of a machine that was busy: the steps of the next server show that it is wrong.
    slow = [[count, 1000 * seconds] for count, seconds in measured["decode_steps"]]
    entry.write_text(
        json.dumps({**measured, "prompt_token": 1000 * measured["prompt_token"], "decode_steps": slow})
    )
    assert MEASURING not in run(tmp_path, tokens=50)
    assert not entry.exists()
    assert MEASURING in run(tmp_path)
    assert json.loads(entry.read_text())["decode_steps"][0][1] < slow[0][1] / 10


def test_a_server_of_one_model_keeps_its_pace_too(tmp_path: Path) -> None:
    bring_kernels(tmp_path / "cache")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    kept = []
    for _ in range(2):
        with ServerProcess(["cohort-tiny"], tmp_path, env=env) as server:
            assert server.get("/ready").status_code == 200
        (entry,) = (tmp_path / "cache/cohort/pace").iterdir()
        kept.append((entry.name, entry.stat().st_mtime_ns, entry.read_text()))
    assert kept[0] == kept[1]


def test_a_ready_server_has_said_what_it_serves(tmp_path: Path) -> None:
    """Also where the cache's folder is slow: a supervisor that has waited for /ready finds these lines in the log."""
    bring_kernels(tmp_path / "cache")
    (tmp_path / "sitecustomize.py").write_text(_SLOW)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with ServerProcess(
        ["cohort-tiny"], tmp_path, env={"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": paths}
    ) as server:
        assert "executor: attention: " in server.log() and "kv_tokens=" in server.log(), server.log()
