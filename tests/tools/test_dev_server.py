"""`make dev`: serves at once, and again after each change."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tools.dev_server import changed, snapshot

ROOT = Path(__file__).resolve().parents[2]


def test_changes_are_seen(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    kept, written, gone = (tmp_path / name for name in ("kept.py", "deep/written.yaml", "gone.py"))
    for path in (kept, written, gone):
        path.write_text("1")
    before = snapshot([tmp_path])
    (tmp_path / "notes.txt").write_text("no code")
    assert changed(before, snapshot([tmp_path])) == []
    os.utime(written, ns=(1, 1))
    gone.unlink()
    (tmp_path / "new.py").write_text("1")
    assert changed(before, snapshot([tmp_path])) == sorted([written, gone, tmp_path / "new.py"])


@pytest.mark.long
@pytest.mark.timeout(90)
def test_serves_and_starts_again(tmp_path: Path) -> None:
    watched, log = tmp_path / "watched", tmp_path / "log"
    watched.mkdir()
    words = [sys.executable, "-m", "tools.dev_server", "--watch", str(watched), "--port", "0"]
    with log.open("w") as output:
        process = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        first = _ready(log, 1)
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx.post(f"{first}/v1/chat/completions", json=body, timeout=30)
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
        (watched / "code.py").write_text("1")
        second = _ready(log, 2)
        assert "code.py changed; starting again" in log.read_text()
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{first}/live", timeout=5)
        assert httpx.get(f"{second}/ready", timeout=5).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{second}/live", timeout=5)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ready(log: Path, nth: int) -> str:
    """The address of the nth server, once it is ready."""
    found = _until(lambda: re.findall(r"is ready at (\S+)", log.read_text())[nth - 1 : nth], log)
    return found[0]


def _until(look: Callable[[], list[str]], log: Path) -> list[str]:
    deadline = time.monotonic() + 40
    while not (found := look()):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found
