"""Nobody reads the server's log: every answer comes all the same, and the log says later what is missing."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

F_SETPIPE_SZ = 1031


def served(url: str, path: str, status: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{url}{path}", timeout=5).status_code == status:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def start(args: Sequence[str], folder: Path) -> tuple[subprocess.Popen[bytes], int, str]:
    """The server, the reading end of its stderr, a pipe of 4 KiB that is read up to the server's address, and its URL."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    command = [str(Path(sys.executable).with_name("cohort")), "serve", "--port", "0", *args]
    process = subprocess.Popen(
        command, stderr=writing, stdout=subprocess.DEVNULL, cwd=folder, start_new_session=True
    )
    os.close(writing)
    log = b""
    while (address := re.search(rb"listening on (http://[\d.:]+)", log)) is None:
        log += os.read(reading, 4096)
    url = address[1].decode()
    served(url, "/ready", 200)
    return process, reading, url


def executor_of(url: str) -> int:
    [executor] = httpx.get(f"{url}/v1/executors").json()["data"]
    return int(executor["pid"])


def use(url: str) -> None:
    """Write more lines than the queue holds, beside a stream, and kill the executor meanwhile."""
    body: dict[str, Any] = {"prompt": "a", "max_tokens": 300, "ignore_eos": True, "stream": True}
    chunks: list[str] = []

    def stream() -> None:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            chunks.extend(response.iter_lines())

    streaming = threading.Thread(target=stream)
    streaming.start()
    client = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    for number in range(5000):
        client.request("GET", f"/v1/models/{number}{'x' * 90}", headers={"x-request-id": "y" * 90})
        response = client.getresponse()
        response.read()
        assert response.status == 404
        if number == 1000:
            os.kill(executor_of(url), signal.SIGKILL)
    client.close()
    served(url, "/live", 200)
    streaming.join(60)
    assert "data: [DONE]" in chunks
    served(url, "/ready", 200)
    dropped = next(
        line
        for line in httpx.get(f"{url}/metrics").text.splitlines()
        if line.startswith("cohort_log_lines_dropped_total")
    )
    assert float(dropped.split()[1]) > 100


@pytest.mark.long(every=2)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_what_is_missing_is_told_once_there_is_a_reader(tmp_path: Path, workers: str) -> None:
    server, reading, url = start(
        ["cohort-tiny", "--log-format", "json", "--api-server-count", workers], tmp_path
    )
    try:
        use(url)
        parts: list[bytes] = []
        reader = threading.Thread(target=lambda: parts.extend(iter(lambda: os.read(reading, 65536), b"")))
        reader.start()
        time.sleep(0.2)
        server.terminate()
        assert server.wait(30) == 0
        reader.join(10)
    finally:
        server.kill()
        server.wait()
        os.close(reading)
    lines = [json.loads(line) for line in b"".join(parts).splitlines()]
    assert sum(line.get("dropped", 0) for line in lines) > 100
    assert any(line["event"].startswith("draining") for line in lines)


def test_an_end_without_a_reader(tmp_path: Path) -> None:
    server, reading, url = start(["cohort-tiny"], tmp_path)
    try:
        use(url)
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
        os.close(reading)
