"""The executor ends itself, with a name for it, before its container's limit does."""

from __future__ import annotations

import itertools

import pytest

from executors.cgroup import Pressure
from executors.process.memory_watch import MemoryWatch

GIB = 1 << 30


def watch(*looks: Pressure | None) -> list[str]:
    """What the watch said when it saw `looks`, the last one again and again until it is stopped."""
    said: list[str] = []
    seen = itertools.count()

    def look() -> Pressure | None:
        number = next(seen)
        if number == len(looks):
            thread.stop()
        return looks[min(number, len(looks) - 1)]

    thread = MemoryWatch(said.append, look)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return said


def test_nothing_to_watch_without_a_limit():
    assert watch(None) == []


def test_it_gives_up_once_and_names_the_numbers():
    said = watch(Pressure(2 * GIB, GIB), Pressure(2 * GIB, 2 * GIB - (40 << 20)))
    assert len(said) == 1
    assert "2,008 MiB" in said[0] and "2,048 MiB" in said[0] and "--kv-cache-memory-bytes" in said[0]


@pytest.mark.parametrize("left", [100 << 20, GIB])
def test_it_stays_while_there_is_room(left):
    assert watch(Pressure(2 * GIB, 2 * GIB - left)) == []


def test_a_limit_with_room_for_nothing_is_left_to_the_kernel():
    assert watch(Pressure(100 << 20, 99 << 20)) == []


@pytest.mark.parametrize(("reserves", "gives_up"), [(1.0, False), (2.0, True)])
def test_a_process_that_stands_by_gives_way_before_one_that_serves(reserves, gives_up):
    said: list[str] = []
    left = 1.5 * 0.03 * 2 * GIB
    looks = itertools.chain([Pressure(2 * GIB, int(2 * GIB - left))], itertools.repeat(None))
    thread = MemoryWatch(said.append, lambda: next(looks), reserves)
    thread.start()
    thread.join(10)
    assert bool(said) is gives_up
