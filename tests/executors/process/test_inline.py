"""InlineExecutor keeps RemoteExecutor's semantics on a thread."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from executors.contract import (
    ConfigError,
    ExecutorDied,
    ExecutorState,
    InvalidInput,
    KvCacheHandle,
    NotReady,
    PrefillInput,
    Skipped,
    StepFailed,
    Tensor,
    Unsupported,
)
from executors.process.inline import InlineExecutor
from tests.executors.process import stub
from tests.executors.process.helpers import config, step

MakeInline = Callable[..., InlineExecutor]


@pytest.fixture
async def inline() -> AsyncIterator[MakeInline]:
    made: list[InlineExecutor] = []

    def make(on_death: Any = None, shutdown_s: float = 2.0, **options: Any) -> InlineExecutor:
        made.append(InlineExecutor(config(**options), on_death=on_death, shutdown_s=shutdown_s))
        return made[-1]

    yield make
    for executor in made:
        await executor.shutdown()


def log(executor: InlineExecutor) -> str:
    assert isinstance(executor.inner, stub.Stub)
    return " ".join(executor.inner.log)


async def test_calls_run_in_order_beside_the_loop(inline: MakeInline) -> None:
    executor = inline(adapters=True)
    with pytest.raises(NotReady):
        executor.info()
    await executor.warmup()
    calls = [asyncio.ensure_future(executor.unified_decode(step(i, step_id=i))) for i in range(5)]
    await asyncio.sleep(0)
    executor.release_cache(3)
    executor.truncate_kv(KvCacheHandle(4), 1)
    executor.release_memory(1, np.array([2, 3], np.int32))
    await executor.load_adapter("a", "p", "d")
    assert [(await call).token_ids.tolist() for call in calls] == [[i + 1] for i in range(5)]
    assert (await executor.forward(Tensor.of([1.0]))).numpy().tolist() == [2.0]
    assert (await executor.prefill(PrefillInput(Tensor.of([[1]], "int32")))).sampled is not None
    assert (
        log(executor)
        == "step0 step1 step2 step3 step4 release3 truncate4:1:0 memory1[2,3] load:a:p:d prefill"
    )
    assert (
        executor.supports_adapters() and executor.optimal_batch_size() == 4 and executor.snapshot_age() == 0.0
    )


async def test_a_long_step_blocks_neither_the_loop_nor_the_synchronous_members(inline: MakeInline) -> None:
    executor = inline(shutdown_s=0.05)
    await executor.warmup()
    call = asyncio.ensure_future(executor.unified_decode(step(stub.NEVER)))
    began = time.monotonic()
    await asyncio.sleep(0.01)
    assert executor.status().is_ready and executor.metrics().total_steps == 1
    await executor.shutdown()
    assert time.monotonic() - began < 1.0
    assert executor.status().state is ExecutorState.SHUTDOWN
    with pytest.raises(NotReady):
        await call


async def test_a_failed_step_stops_the_epoch(inline: MakeInline) -> None:
    executor = inline()
    await executor.warmup()
    calls = (executor.unified_decode(step(token)) for token in (stub.INVALID, 1, stub.CRASH, 2))
    refused, good, failed, after = await asyncio.gather(*calls, return_exceptions=True)
    assert type(refused) is InvalidInput and not isinstance(good, BaseException)
    assert type(failed) is StepFailed and "ZeroDivisionError" in str(failed) and type(after) is Skipped
    await executor.begin_epoch(1)
    assert (await executor.unified_decode(step(2))).token_ids.tolist() == [3]
    with pytest.raises(Unsupported):
        await executor.load_adapter("a", "p", "d")


async def test_a_death_lasts_until_the_next_epoch(inline: MakeInline) -> None:
    deaths: list[ExecutorDied] = []
    executor = inline(on_death=deaths.append)
    await executor.warmup()
    watching = asyncio.ensure_future(executor.wait_dead())
    with pytest.raises(ExecutorDied):
        await executor.unified_decode(step(stub.DIE))
    assert await watching is deaths[0]
    with pytest.raises(ExecutorDied):
        await executor.unified_decode(step(1))
    assert executor.status().state is ExecutorState.ERROR
    await executor.begin_epoch(2)
    assert [death.cause for death in deaths] == ["fake"]
    assert (await executor.unified_decode(step(2))).token_ids.tolist() == [3]


async def test_a_cancelled_call_is_carried_out(inline: MakeInline) -> None:
    executor = inline()
    await executor.warmup()
    for make in (lambda: executor.unified_decode(step(1)), lambda: executor.begin_epoch(2)):
        task = asyncio.ensure_future(make())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await executor.unified_decode(step(1, step_id=9))
    assert log(executor).startswith("step0") and log(executor).endswith("step9")


@pytest.mark.parametrize(("load", "error"), [("config", ConfigError), ("crash", ExecutorDied)])
async def test_a_failed_load_is_typed(inline: MakeInline, load: str, error: type[Exception]) -> None:
    executor = inline(load=load)
    with pytest.raises(error):
        await executor.warmup()
    with pytest.raises(error):
        await executor.begin_epoch(1)


async def test_shutdown_ends_the_thread(inline: MakeInline) -> None:
    executor = inline()
    seen: list[tuple[str, int, int]] = []
    executor.set_progress(lambda *report: seen.append(report))
    await executor.warmup()
    assert ("weights", 1, 2) in seen and executor.stage() == ""
    await executor.shutdown()
    await executor.shutdown()
    assert not any(thread.name == "executor" for thread in threading.enumerate())
    assert await executor.wait_dead() is None
    executor.release_cache(1)
    with pytest.raises(NotReady):
        await executor.unified_decode(step(1))


LEFT_COMPUTING = """
import asyncio, atexit, threading, time
from executors.process.inline import InlineExecutor
from tests.executors.process.helpers import config, step

atexit.register(lambda: print(*(thread.name for thread in threading.enumerate())))
computing = threading.Event()

async def compute(batch):
    computing.set()
    time.sleep(0.1)

async def main():
    executor = InlineExecutor(config())
    await executor.warmup()
    await executor.begin_epoch(1)
    executor.inner.unified_decode = compute
    steps = [asyncio.ensure_future(executor.unified_decode(step(1))) for _ in range(3)]
    await asyncio.to_thread(computing.wait)

asyncio.run(main())
"""


def test_a_thread_that_computes_ends_before_the_interpreter() -> None:
    """An interpreter that ends unwinds the other threads, and C++ code of a forward would abort the process then."""
    done = subprocess.run([sys.executable, "-c", LEFT_COMPUTING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "MainThread\n", "")
