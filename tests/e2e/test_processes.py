"""Two processes: inline mode, the death of one, the death of the other, and metrics while the executor hangs."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.checkpoints import write_model, write_tokenizer
from tests.e2e.conftest import ECHO
from tests.e2e.littering_executor import FILE
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

STREAM = {"prompt": "Hi", "max_tokens": 3000, "ignore_eos": True, "stream": True}


def test_inline(tokenizer_dir: Path, tmp_path: Path) -> None:
    with ServerProcess([str(tokenizer_dir), *ECHO, "--executor-mode", "inline"], tmp_path) as server:
        assert server.children() == []
        answer = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4, "ignore_eos": True}).json()
        assert answer["usage"]["completion_tokens"] == 4


def test_executor_death(tokenizer_dir: Path, tmp_path: Path) -> None:
    """SIGKILL under a stream: it pauses and goes on, token for token, and new requests are served."""
    args = [str(tokenizer_dir), *ECHO, "--executor-option", "step_delay_ms=2"]
    asked = STREAM | {"max_tokens": 400, "seed": 5}
    with ServerProcess(args, tmp_path) as server:
        undisturbed = server.post("/v1/completions", asked | {"stream": False}).json()
        [child] = server.children()
        with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=30) as response:
            lines = (line for line in response.iter_lines() if line)
            events = [next(lines)]
            os.kill(child, signal.SIGKILL)
            *rest, done = lines
        assert done == "data: [DONE]"
        texts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in events + rest]
        assert "".join(texts) == undisturbed["choices"][0]["text"]
        assert server.get("/live").status_code == 200
        server.wait_until("/ready", 200)
        assert server.children() not in ([], [child])
        answer = server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4})
        assert answer.status_code == 200
        assert server.metric('cohort_executor_restarts_total{cause="signal"}') == 1
        assert server.metric("cohort_requests_resumed_total") == 1


def test_an_executor_that_cannot_come_back_ends_the_server(tmp_path: Path) -> None:
    """Exit code 3, so that an orchestrator starts it anew: `/live` alone would pass for ever."""
    model = tmp_path / "model"
    model.mkdir()
    write_model(model)
    write_tokenizer(model)
    args = [
        str(model),
        "--load-format",
        "dummy",
        "--kv-cache-memory-bytes",
        "2MiB",
        "--recovery-timeout",
        "2",
    ]
    with ServerProcess(args, tmp_path) as server:
        [child] = server.children()
        (model / "config.json").unlink()
        os.kill(child, signal.SIGKILL)
        # Lives share what was loaded while the file was there.
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200
        for pid in set(server.processes()) - {server.pid}:
            os.kill(pid, signal.SIGKILL)
        # /health turns to 503 before, for a moment that no client can count on seeing.
        assert server.process.wait(20) == 3
        assert (
            server.log().splitlines()[-1]
            == "cohort: error: the executor cannot be brought back; see the log above"
        )


def test_orphans(tokenizer_dir: Path, tmp_path: Path) -> None:
    """SIGKILL to the server leaves no child after a second."""
    with ServerProcess([str(tokenizer_dir), *ECHO], tmp_path) as server:
        [child] = server.children()
        server.kill()
        deadline = time.monotonic() + 1
        while Path(f"/proc/{child}").exists() and _state(child) != "Z":
            assert time.monotonic() < deadline, "the executor outlives its server"
            time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_orphans_that_it_inherits_are_reaped(tokenizer_dir: Path, tmp_path: Path) -> None:
    """As process 1 of a container would: here it is made a "child subreaper", which asks for no privileges."""
    executor = f"{__name__.replace('test_processes', 'littering_executor')}:LitteringFactory"
    args = [str(tokenizer_dir), "--executor", executor, *ECHO[2:]]
    litter = tmp_path / "litter"
    with ServerProcess(args, tmp_path, enter=_become_subreaper, env={FILE: str(litter)}) as server:
        orphan, deadline = int(litter.read_text()), time.monotonic() + 30
        while Path(f"/proc/{orphan}").exists():
            # With nobody to wait for it, a zombie stays for ever.
            assert time.monotonic() < deadline, _state(orphan)
            time.sleep(0.05)
        assert server.post("/v1/completions", {"prompt": "Hi", "max_tokens": 4}).status_code == 200
        assert server.metric('cohort_executor_restarts_total{cause="exit"}') == 0


def _become_subreaper() -> None:
    set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0


def test_metrics_while_the_executor_hangs(tokenizer_dir: Path, tmp_path: Path) -> None:
    """SIGSTOP: /metrics answers within 100 ms (the best of five), and says how old the executor's numbers are."""
    with ServerProcess([str(tokenizer_dir), *ECHO], tmp_path) as server:
        [child] = server.children()
        os.kill(child, signal.SIGSTOP)
        try:
            time.sleep(1.5)
            url, times = f"{server.url}/metrics", []
            with httpx.Client() as client:
                client.get(url)
                for _ in range(5):
                    begun = time.monotonic()
                    assert client.get(url).status_code == 200
                    times.append(time.monotonic() - begun)
            assert min(times) < 0.1, times
            assert server.metric("cohort_executor_snapshot_age_seconds") > 1
            assert server.get("/live").status_code == 200
        finally:
            os.kill(child, signal.SIGCONT)
