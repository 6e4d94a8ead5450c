"""The server's own copies of adapters, and those that a killed server left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from server.lora.store import LoraStore

LEFT = """
import os, sys
from server.lora.store import LoraStore
store = LoraStore()
place = store.place()
place.mkdir()
(place / "a").write_text("a")
print(store.folder, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_places_are_different_and_go() -> None:
    store = LoraStore()
    first, second = store.place(), store.place()
    assert first != second and not first.exists()
    first.mkdir()
    (first / "a").write_text("a")
    store.remove(first)
    store.remove(first)
    assert not first.exists()
    second.mkdir()
    store.close()
    store.close()
    assert not store.folder.exists()


def test_a_killed_server_leaves_nothing_for_long() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert done.returncode == -9 and (left / "1" / "a").exists()
    running = LoraStore()
    assert not left.exists()
    other = LoraStore()
    assert running.folder.exists() and other.folder.exists()
    running.close()
    other.close()


def test_nobody_else_may_read_them() -> None:
    store = LoraStore()
    assert store.folder.stat().st_mode & 0o077 == 0 == store.folder.parent.stat().st_mode & 0o077
    store.close()
