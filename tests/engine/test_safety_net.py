"""What holds when the engine itself is wrong: everybody is told, and the process may end."""

from __future__ import annotations

import asyncio

import pytest

from engine.config import EngineConfig
from engine.core.engine import EngineCore
from engine.errors import ExecutorFailed
from engine.mailbox import Mailbox
from engine.request import Stage
from engine.sequence import Sequence
from executors.contract import (
    ExecutorDied,
    Int32Array,
    SealedBlocks,
)
from tests.engine.harness import fake, read, request


@pytest.mark.parametrize("times", [1, 100])
async def test_a_bug_while_a_sequence_ends_leaves_nobody_waiting(times: int) -> None:
    """It is half ended then: ending it once more fails as well."""
    made = fake()
    shut_down = asyncio.Event()
    goes_down = made.shutdown

    async def shutdown() -> None:
        shut_down.set()
        await goes_down()

    made.shutdown = shutdown  # type: ignore[method-assign]
    core = EngineCore(made, EngineConfig())
    await core.start()
    ends, calls = core._waiting.end, 0

    def end(seq: Sequence) -> None:
        nonlocal calls
        calls += 1
        if calls <= times:
            raise KeyError("a bug")
        ends(seq)

    core._waiting.end = end  # type: ignore[method-assign]
    boxes = [Mailbox() for _ in range(3)]
    for number, box in enumerate(boxes):
        core.submit(request([1, 2 + number], 3 + 20 * number), box)
    async with asyncio.timeout(5):
        answers = [await read(box) for box in boxes]
        await core.failed.wait()
    assert [type(answer.error) for answer in answers] == [ExecutorFailed] * 3
    assert core.stage is Stage.FAILED and "a bug" in core.detail
    await core.stop()
    assert shut_down.is_set()


async def test_a_start_that_fails_behind_the_loading_is_a_failed_one() -> None:
    made = fake()

    async def begin_epoch(epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        raise ExecutorDied("gone as soon as it was ready", "signal")

    made.begin_epoch = begin_epoch  # type: ignore[method-assign]
    core = EngineCore(made, EngineConfig())
    with pytest.raises(ExecutorDied):
        await core.start()
    assert core.stage is Stage.FAILED and "gone as soon" in core.detail
    await core.stop()
