"""A restarted child gets the KV pool of the one before it, whatever the box would allow by then."""

from __future__ import annotations

import os
import signal

from executors.contract import ExecutorConfig
from executors.process.client import RemoteExecutor


async def test_the_next_life_has_the_same_number_of_blocks() -> None:
    remote = RemoteExecutor(ExecutorConfig("paged_fake"))
    await remote.warmup()
    try:
        first = remote.kv_layout()
        assert remote.config.memory.kv_cache_memory_bytes == first.num_blocks * first.bytes_per_block
        assert remote.config.max_model_len == remote.info().max_model_len
        assert remote.pid is not None
        os.kill(remote.pid, signal.SIGKILL)
        await remote.wait_dead()
        await remote.begin_epoch(2)
        assert remote.kv_layout() == first
    finally:
        await remote.shutdown()
