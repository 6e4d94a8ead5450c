"""What was freed goes back to the system: in a process of its own, whose heap nobody else has touched."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from server.system import gc_tuning

PINNED = """
import random
from pathlib import Path
from server.system import gc_tuning

def resident():
    [line] = [line for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if line.startswith("Anonymous")]
    return int(line.split()[1]) / 1024

rng = random.Random(1)
kept = []
for _ in range(4000):
    # Below glibc's threshold for a mapping of its own: a part of the heap, held up by the few that are kept.
    held = [bytearray(20_000) for _ in range(3)]
    if rng.random() < 0.01:
        kept.append(held[0])
    kept.append(bytearray(700))
    del held
many = [bytearray(50_000) for _ in range(2000)]
kept += many[::100]
del many
before = resident()
gc_tuning.release_when_idle()
print(before, resident(), all(not any(one) for one in kept))
"""


def test_freed_memory_below_a_kept_object_goes_back() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, timeout=60, check=True
    )
    before, after, whole = ran.stdout.split()
    assert float(before) > 80, "else there was nothing to give back"
    assert float(after) < 0.5 * float(before)
    assert whole == "True"


def test_a_c_library_without_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gc_tuning._trim.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda name: object())
        assert gc_tuning._trim() is None
        gc_tuning.release_when_idle()
    gc_tuning._trim.cache_clear()
