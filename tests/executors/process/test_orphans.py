"""A server that is killed leaves no executor behind, whatever the executor is doing."""

import asyncio
import os
import signal
import sys
import time

import pytest

from tests.executors.process import stub
from tests.executors.process.helpers import state_of

PARENT = """
import asyncio, sys
from executors.process.client import RemoteExecutor
from tests.executors.process.helpers import config, step

async def main(token, load):
    executor = RemoteExecutor(config(load=load))
    loading = asyncio.ensure_future(executor.warmup())
    if load:
        await asyncio.sleep(0.5)
    else:
        await loading
    if token:
        call = asyncio.ensure_future(executor.unified_decode(step(token)))
    await asyncio.sleep(0.1)
    print(executor.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("token", "load"),
    [(0, ""), (stub.SLEEP, ""), (stub.HOLD_GIL, ""), (0, "slow")],
    ids=["idle", "in a long call", "holding the GIL", "loading"],
)
async def test_a_killed_server_leaves_no_executor(token: int, load: str) -> None:
    arguments = [sys.executable, "-c", PARENT, str(token), load]
    parent = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert state_of(child) not in (None, "Z")
    parent.send_signal(signal.SIGKILL)
    began = time.monotonic()
    await parent.wait()
    while state_of(child) not in (None, "Z"):
        await asyncio.sleep(0.01)
        if time.monotonic() - began > 1.0:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the executor outlived its server by more than a second")
    parent._transport.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("token", [0, stub.SLEEP])
async def test_the_end_of_the_socket_alone_ends_the_executor(token: int) -> None:
    from executors.process.client import RemoteExecutor
    from executors.process.watch import Limits
    from tests.executors.process.helpers import config, step

    executor = RemoteExecutor(config(), limits=Limits(grace_s=30.0))
    await executor.warmup()
    call = asyncio.ensure_future(executor.unified_decode(step(token or 1)))
    await asyncio.sleep(0.05)
    assert executor._life is not None
    began = time.monotonic()
    executor._life._stream.close()
    death = await executor.wait_dead()
    assert death is not None and death.cause == "exit" and time.monotonic() - began < 1.0
    await asyncio.gather(call, return_exceptions=True)
    await executor.shutdown()
