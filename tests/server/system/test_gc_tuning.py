"""What was freed goes back to the system: in a process of its own, whose heap nobody else has touched."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

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


HEAPS = """
import ctypes, sys, threading
from server.system import gc_tuning

if sys.argv[1] == "limited":
    gc_tuning.limit_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
libc.malloc_info.argtypes = (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = libc.free.argtypes = (ctypes.c_void_p,)
all_there = threading.Barrier(6)

def take():
    libc.free(libc.malloc(100_000))
    all_there.wait()

threads = [threading.Thread(target=take) for _ in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
stream = libc.fopen(sys.argv[2].encode(), b"w")
libc.malloc_info(0, stream)
libc.fclose(stream)
"""


@pytest.mark.parametrize(
    ("mode", "variables", "at_least", "at_most"),
    [
        ("limited", {}, 1, 2),
        ("free", {}, 4, 99),
        ("limited", {"MALLOC_ARENA_MAX": "5"}, 3, 5),
        ("limited", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=5"}, 3, 5),
    ],
)
def test_threads_share_two_heaps_unless_the_environment_says_otherwise(
    tmp_path: Path, mode: str, variables: dict[str, str], at_least: int, at_most: int
) -> None:
    found = tmp_path / "heaps.xml"
    inherited = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    subprocess.run(
        [sys.executable, "-c", HEAPS, mode, str(found)], env=inherited | variables, timeout=60, check=True
    )
    assert at_least <= found.read_text().count("<heap nr=") <= at_most


KEPT = """
import ctypes, sys, threading
from server.system import gc_tuning
from tests.chaos.readers import resident_mib

if sys.argv[1] == "limited":
    gc_tuning.limit_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)

def take():
    libc.free(libc.malloc(30 * 2**20))  # from now on the heap may keep 60 MiB
    blocks = [libc.malloc(100_000) for _ in range(400)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks:
        libc.free(block)

before = resident_mib("self")
thread = threading.Thread(target=take)
thread.start()
thread.join()
gc_tuning.release_when_idle()
print(resident_mib("self") - before)
"""


@pytest.mark.parametrize(("mode", "at_least", "at_most"), [("limited", -99, 6), ("free", 25, 99)])
def test_the_heap_of_a_thread_gives_its_end_back(mode: str, at_least: int, at_most: int) -> None:
    """malloc_trim alone does not do it, as the second row shows."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    ran = subprocess.run(
        [sys.executable, "-c", KEPT, mode], env=inherited, timeout=60, check=True, capture_output=True
    )
    assert at_least < float(ran.stdout) < at_most


def test_a_c_library_without_it_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    gc_tuning._trim.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(ctypes, "CDLL", lambda name: object())
        assert gc_tuning._trim() is None
        gc_tuning.release_when_idle()
        gc_tuning.limit_heaps()
    gc_tuning._trim.cache_clear()
