"""A server whose standard streams are closed, or whose working directory is removed, starts, serves and restarts its executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long
BODY = {"model": "cohort-tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def chat(url: str) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=60)
    assert response.status_code == 200, response.text
    assert response.json()["usage"]["completion_tokens"] == 4


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.long(every=3)
@pytest.mark.parametrize("redirections", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(redirections: str) -> None:
    port = free_port()
    command = [str(Path(sys.executable).with_name("cohort")), "serve", "cohort-tiny", "--port", str(port)]
    process = subprocess.Popen(["sh", "-c", f'exec "$0" "$@" {redirections}', *command])
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 50
        while not answers(f"{url}/ready"):
            assert process.poll() is None, "it ended"
            assert time.monotonic() < deadline
            time.sleep(0.05)
        chat(url)
        for number in range(3):
            place = Path(f"/proc/{process.pid}/fd/{number}").readlink()
            assert not str(place).startswith(("socket:", "anon_inode:")), (number, place)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def enter_and_remove(folder: Path) -> Callable[[], None]:
    def enter() -> None:
        os.chdir(folder)
        folder.rmdir()

    return enter


@pytest.mark.long(extended=True)
def test_a_directory_that_is_removed_before(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with ServerProcess(["cohort-tiny"], tmp_path, enter=enter_and_remove(gone)) as server:
        chat(server.url)


@pytest.mark.parametrize(
    "more", [[], pytest.param(["--api-server-count", "1"], marks=pytest.mark.long(extended=True))]
)
def test_a_directory_that_is_removed_while_it_serves(tmp_path: Path, more: list[str]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    flags = ["cohort-tiny", "--enable-kill-button", "--admin-key", "a", *more]
    with ServerProcess(flags, tmp_path, enter=lambda: os.chdir(gone)) as server:
        chat(server.url)
        gone.rmdir()
        headers = {"Authorization": "Bearer a"}
        assert httpx.post(f"{server.url}/v1/kill_executor", json={}, headers=headers).status_code == 200
        chat(server.url)


def test_a_key_of_another_server_is_in_force(tmp_path: Path) -> None:
    environ = {"VLLM_API_KEY": "sk-theirs", "OLLAMA_HOST": "0.0.0.0", "COHORT_PORT": "", "HF_HOME": ""}
    with ServerProcess(["cohort-tiny", "--executor", "echo"], tmp_path, env=environ) as server:
        models = f"{server.url}/v1/models"
        assert httpx.get(models).status_code == 401
        assert httpx.get(models, headers={"Authorization": "Bearer sk-theirs"}).status_code == 200
        log = server.log()
        assert "VLLM_API_KEY is taken as the API key" in log and "sk-theirs" not in log
        assert "OLLAMA_HOST is not read here: use --host 0.0.0.0 --port 11434" in log
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        environments = [Path(f"/proc/{child}/environ").read_bytes() for child in children]
        assert environments and not any(b"sk-theirs" in one or b"HF_HOME" in one for one in environments)
