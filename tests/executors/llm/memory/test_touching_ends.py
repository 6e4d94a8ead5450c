"""A process may end while KV is made resident in the background, with an executor that was shut down or not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, atexit, gc, sys, threading, time
import torch
from executors import tiny
from executors.llm.executor import LlmExecutor
from executors.llm.memory.kv_cache import KvCache
from tests.executors.llm.driver import config

begun, over = threading.Event(), threading.Event()

class Slow:
    @staticmethod
    def touch(address, num_bytes):
        begun.set()
        time.sleep(0.02)

real = KvCache.touch

def touch(self, kernels, *rest):
    real(self, Slow, *rest)
    over.set()

KvCache.touch = touch
atexit.register(lambda: print(*(thread.name for thread in threading.enumerate())))

async def begin(slices):
    executor = LlmExecutor.from_config(config(tiny.weights_dir(), kv_bytes=slices * (2 << 20)))
    await executor.warmup()
    # To free so many takes longer than it takes the interpreter to come to its end, and each lets other threads go on.
    executor._runtime.runner.cache.caches[0].layers += [torch.zeros(1) for _ in range(50_000)]
    begun.wait()
    if sys.argv[1] == "shut down":
        await executor.shutdown()
    return executor

executor = asyncio.run(begin(10 if sys.argv[1] == "dropped" else 1_000))
if sys.argv[1] != "held":
    del executor
    gc.collect()
    over.wait()
"""


@pytest.mark.long(every=3)
@pytest.mark.parametrize("executor", ["shut down", "dropped", "held"])
def test_the_process_ends_well(executor: str) -> None:
    """A C++ destructor that waits for the interpreter's lock while the interpreter ends is unwound there, and C++ aborts."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, executor], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["MainThread"], "no thread is left when the interpreter ends"
