"""Configurations, steps and short limits for the tests of this folder."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from executors.contract import ExecutorConfig, UnifiedBatch
from executors.process.children import Begin
from executors.process.client import RemoteExecutor
from executors.process.watch import Limits

STUB = "tests.executors.process.stub"
FACTORY = f"{STUB}:Factory"
QUICK = Limits(heartbeat_s=0.05)
"""Limits for tests that wait for a heartbeat and must not take a busy machine for a hang."""
SHORT = Limits(
    heartbeat_s=0.05,
    tick_s=0.05,
    silence_s=0.8,
    step_floor_s=0.3,
    slow_call_s=5.0,
    shutdown_s=0.5,
    grace_s=0.3,
)
"""Limits for tests of hangs: what takes seconds in earnest takes tenths of them."""


class CountedExecutor(RemoteExecutor):
    """Counts its restarts by the cause of the death before: exit, signal, closed, hang, load, memory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.restarts: Counter[str] = Counter()
        super().__init__(*args, **options)

    def _start(self, begin: Begin) -> None:
        if self._life is not None and self._life.death is not None:
            self.restarts[self._life.death.cause] += 1
        super()._start(begin)


Make = Callable[..., CountedExecutor]


def config(**options: Any) -> ExecutorConfig:
    """The stub's configuration."""
    return ExecutorConfig(FACTORY, options=options)


def step(*tokens: int, epoch: int = 1, step_id: int = 0) -> UnifiedBatch:
    """A step of items with one token each."""
    n = len(tokens)
    rows = np.arange(n, dtype=np.int32)
    return UnifiedBatch(
        epoch=epoch,
        step_id=step_id,
        seq_ids=np.arange(n, dtype=np.int64),
        slots=rows,
        num_q_tokens=np.ones(n, np.int32),
        pos_offsets=rows,
        is_final_chunk=np.ones(n, np.bool_),
        num_draft_tokens=np.zeros(n, np.int32),
        token_ids=np.array(tokens, np.int32),
    )


async def log_of(executor: RemoteExecutor) -> str:
    """The members that the stub was asked for, in order; waits for the next heartbeat (use short limits)."""
    beat = executor._beat
    await until(lambda: executor._beat is not beat)
    snapshot = executor.cache_metrics_snapshot()
    assert snapshot is not None
    return str(snapshot["log"])


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (what is waited for happens in another process)
            await asyncio.sleep(0.01)


def title_of(executor: RemoteExecutor) -> str:
    """The title of its process, as ps shows it."""
    return Path(f"/proc/{executor.pid}/cmdline").read_text().rstrip("\0")


def state_of(pid: int | None) -> str | None:
    """One letter (R, S, T, Z, ...), None for no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


_OF_OTHERS: set[int] = set()


def pass_over_children() -> None:
    """Leave the children of now out of `living_children`: libraries that other tests use keep one until the process ends."""
    _OF_OTHERS.clear()
    _OF_OTHERS.update(living_children())


def living_children() -> set[int]:
    """Ids of this process's children, zombies included, but for those of other tests."""
    pids = set[int]()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            pids.update(map(int, (task / "children").read_text().split()))
    return pids - _OF_OTHERS


def open_files() -> set[str]:
    """Numbers of this process's file descriptors."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}
