"""Turns of processes at the cores: one at a time, in the order of waiting, and free once the holder has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from executors.contract import ExecutorConfig, UnifiedBatch, UnifiedOutput
from executors.process.client import RemoteExecutor
from executors.process.core_turns import CoreTurns
from executors.process.watch import HangWatch, Limits, TokenCost
from executors.testing.driver import Driver, Feed

HOLD = """
import sys, time
from executors.process.core_turns import CoreTurns
turns = CoreTurns.open(sys.argv[1])
turns.take()
print("taken", flush=True)
time.sleep(60)
"""


@pytest.fixture
def turns() -> Iterator[CoreTurns]:
    made = CoreTurns.create()
    yield made
    made.close()


def test_turns_go_round_among_those_that_wait(turns: CoreTurns) -> None:
    """Each asks again as soon as it has given its turn away, and yet none has two while others wait."""
    order: list[int] = []
    inside = threading.Lock()
    ready = threading.Barrier(3)

    def compute(number: int) -> None:
        mine = CoreTurns.open(turns.path)
        ready.wait()
        for _ in range(40):
            with mine.turn():
                assert inside.acquire(blocking=False), "two at once"
                order.append(number)
                time.sleep(0.002)
                inside.release()
        mine.close()

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(order) == 120
    # In the first and last turns fewer than three wait, and a thread may be slow to ask again.
    again = sum(order[at] == order[at - 1] for at in range(3, 110))
    assert again <= 5, order
    assert all(30 <= order[:110].count(number) <= 40 for number in range(3)), order


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_ends_gives_its_turn(turns: CoreTurns, how: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, turns.path], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
        taken = threading.Event()

        def take() -> None:
            with turns.turn():
                taken.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not taken.wait(0.2)
        holder.send_signal(how)
        assert taken.wait(10)
        thread.join()


async def test_a_step_waits_for_its_turn_and_tells_how_long(turns: CoreTurns) -> None:
    executor = RemoteExecutor(ExecutorConfig("paged_fake"), turns=turns.path)
    waits: list[float] = []
    decode = executor.unified_decode

    async def noted(batch: UnifiedBatch) -> UnifiedOutput:
        output = await decode(batch)
        waits.append(output.waited)
        return output

    executor.unified_decode = noted  # type: ignore[method-assign]
    try:
        driver = await Driver.start(executor)
        sequence = driver.add([5, 6, 7])
        await driver.step(Feed(sequence))
        other = CoreTurns.open(turns.path)
        other.take()
        threading.Timer(0.4, other.close).start()
        began = time.monotonic()
        await driver.step(Feed(sequence))
        assert time.monotonic() - began >= 0.35
        assert waits[0] < 0.2 and waits[1] > 0.3
    finally:
        await executor.shutdown()


def test_time_in_the_queue_is_no_hang() -> None:
    watch = HangWatch(Limits(step_floor_s=30.0), TokenCost(0.001), 0.0)
    watch.loaded()
    watch.sent(0.0, 1)
    for now in range(1, 100):
        watch.heard(now)
        watch.waits(now)
    assert watch.verdict(100.0) is None
    for now in range(100, 131):
        watch.heard(now)
    assert "deadline" in (watch.verdict(130.5) or "")


async def test_without_the_file_steps_take_no_turns(capfd: pytest.CaptureFixture[str]) -> None:
    executor = RemoteExecutor(ExecutorConfig("paged_fake"), turns=f"/proc/{os.getpid()}/fd/9999")
    try:
        driver = await Driver.start(executor)
        await driver.step(Feed(driver.add([5, 6, 7])))
    finally:
        await executor.shutdown()
    assert "take no turns" in capfd.readouterr().err
