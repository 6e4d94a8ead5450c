"""The next child begins when the last one is gone: two executors at once would not fit into memory, nor onto one device."""

import asyncio
import os
import signal

import pytest

from executors.contract import ExecutorDied
from executors.process.children import child_command
from tests.executors.process import stub
from tests.executors.process.helpers import SHORT, Make, state_of, step, until


@pytest.mark.long
@pytest.mark.parametrize("how", ["killed", "stopped, then killed", "hung", "exit", "closed"])
async def test_the_last_one_is_reaped_before_the_next_begins(remote: Make, how: str) -> None:
    born: list[str | None] = []

    def command(fd: int) -> list[str]:
        # Called right before the process is made. None: there is no such process, not even as a zombie.
        born.append(state_of(executor.pid))
        return child_command(fd)

    executor = remote(limits=SHORT, command=command)
    await executor.warmup()
    first = executor.pid
    assert first is not None
    call = asyncio.ensure_future(executor.unified_decode(step(stub.EXIT if how == "exit" else stub.NEVER)))
    if how in ("stopped, then killed", "hung"):
        os.kill(first, signal.SIGSTOP)
        await until(lambda: state_of(first) == "T")
    if how == "closed":
        assert executor._life is not None
        executor._life._stream_ended("garbage")
    elif "killed" in how:
        os.kill(first, signal.SIGKILL)
    # As the engine does: at once with the verdict.
    with pytest.raises(ExecutorDied):
        await call
    await executor.begin_epoch(2)
    assert executor.pid != first and born[1:] == [None]
    assert (await executor.unified_decode(step(5, epoch=2))).token_ids.tolist() == [6]
