"""Which deaths need not have to do with what was being computed: whoever was there is then given the benefit of the doubt."""

import asyncio
import os
import signal

import pytest

from executors.contract import ExecutorDied
from tests.executors.process import stub
from tests.executors.process.helpers import SHORT, Make, step


@pytest.mark.parametrize(
    ("how", "from_outside"),
    [
        (signal.SIGKILL, True),
        (signal.SIGSTOP, True),
        (signal.SIGSEGV, True),
        (signal.SIGABRT, True),
        (stub.EXIT, False),
        (stub.DIE, False),
    ],
)
async def test_a_death_says_whether_it_may_have_come_from_outside(
    remote: Make, how: signal.Signals | int, from_outside: bool
) -> None:
    executor = remote(limits=SHORT)
    await executor.warmup()
    assert executor.pid is not None
    by_itself = not isinstance(how, signal.Signals)
    call = asyncio.ensure_future(executor.unified_decode(step(int(how) if by_itself else 1, 2)))
    if not by_itself:
        os.kill(executor.pid, how)
        await executor.wait_dead()
        call.cancel()
        call = asyncio.ensure_future(executor.unified_decode(step(1)))
    with pytest.raises(ExecutorDied) as caught:
        await call
    assert caught.value.from_outside == from_outside


async def test_a_step_past_its_deadline_is_its_own_fault(remote: Make) -> None:
    executor = remote(limits=SHORT)
    await executor.warmup()
    await executor.unified_decode(step(1))
    with pytest.raises(ExecutorDied, match="deadline") as caught:
        await executor.unified_decode(step(stub.SLEEP))
    assert caught.value.cause == "hang" and not caught.value.from_outside
