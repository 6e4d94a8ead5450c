"""Blocks that outlive the executor's process: the next life finds those that hold what was sealed, and no others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executors.contract import ExecutorConfig, OptimizationConfig, ParallelConfig, SealedBlocks
from executors.memory_file import MemoryFile
from executors.process.client import RemoteExecutor
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.checkpoints import QWEN3, write_checkpoint
from tests.executors.llm.driver import config

pytestmark = pytest.mark.timeout(300)
PROMPT = list(range(1, 61))
BLOCKS = len(PROMPT) // 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), QWEN3)


@asynccontextmanager
async def loaded(settings: ExecutorConfig) -> AsyncIterator[RemoteExecutor]:
    # On demand: no thread makes blocks resident beside the test.
    memory = replace(settings.memory, kv_on_demand=True)
    executor = RemoteExecutor(replace(settings, memory=memory))
    await executor.warmup()
    try:
        yield executor
    finally:
        await executor.shutdown()


async def sealed_prompt(driver: Driver) -> tuple[DrivenSequence, SealedBlocks]:
    """Compute the prompt in two steps, each of which seals the blocks it fills."""
    seq = driver.add(PROMPT)
    sums = []
    for count in (32, len(PROMPT) - 32):
        first = seq.num_computed // driver.block_size
        batch = driver.batch(Feed(seq, count))
        blocks = seq.blocks[0][first : (seq.num_computed + count) // driver.block_size]
        batch = replace(batch, seals=np.array([(0, block) for block in blocks], np.int32))
        output = await driver.executor.unified_decode(batch)
        assert output.checksums is not None and len(output.checksums) == len(blocks)
        sums.append(output.checksums)
        seq.num_computed += count
        seq.tokens += output.token_ids.tolist()
    full = len(PROMPT) // driver.block_size
    blocks = np.array(seq.blocks[0][:full], np.int32)
    fingerprint = driver.executor.kv_layout().fingerprint
    return seq, SealedBlocks(fingerprint, np.zeros(full, np.int32), blocks, np.concatenate(sums))


async def kill(executor: RemoteExecutor) -> None:
    assert executor.pid is not None
    os.kill(executor.pid, signal.SIGKILL)
    await executor.wait_dead()


async def continued(
    executor: RemoteExecutor, epoch: int, seq: DrivenSequence, num_blocks: int, num_drafts: int = 0
) -> list[int]:
    """Six more tokens of a sequence whose first blocks are in KV; `num_drafts`: drafts to ask for in each step, which are those
    of the target itself."""
    driver = Driver(executor, epoch)
    shared = [seq.blocks[0][:num_blocks]]
    driver.free_blocks[0] = [block for block in driver.free_blocks[0] if block not in shared[0]]
    again = driver.add(
        PROMPT, output=seq.output[:1], shared_blocks=shared, num_computed=driver.block_size * num_blocks
    )
    drafts: list[int] = []
    while len(again.output) < 7:
        feed = Feed(again, drafts=drafts[: 6 - len(again.output)], num_drafts=num_drafts)
        batch = driver.batch(feed)
        output = await driver.executor.unified_decode(batch)
        again.num_computed += int(batch.num_q_tokens[0]) - len(feed.drafts) + len(output.token_ids) - 1
        again.tokens += output.token_ids.tolist()
        # The draft model is the target: all it proposes after a restart, too, is right.
        assert len(output.token_ids) == len(feed.drafts) + 1
        drafts = [] if output.drafts is None else output.drafts.token_ids.tolist()
    return again.output


def arena(executor: RemoteExecutor) -> MemoryFile:
    assert executor._memory
    return executor._memory[0]


@pytest.mark.long
async def test_a_killed_life_is_continued_from_its_blocks(model: Path) -> None:
    async with loaded(config(model, dtype="float32")) as executor:
        layout = executor.kv_layout()
        assert layout.fingerprint
        driver = Driver(executor, 1)
        assert len(await executor.begin_epoch(1)) == 0
        seq, sealed = await sealed_prompt(driver)
        await driver.decode(6, seq)
        # A life that goes on, as after a failed step, finds all of them.
        assert (await executor.begin_epoch(2, sealed)).tolist() == list(range(BLOCKS))
        await kill(executor)
        # The last byte of a block that holds KV.
        size, used = layout.groups[0].bytes_per_block, QWEN3["num_hidden_layers"] * 2 * 2 * 4 * 20 * 4
        flip(arena(executor), int(sealed.blocks[-1]) * size + used - 1)
        # The steps that a new life tries out have written to no block.
        assert (await executor.begin_epoch(3, sealed)).tolist() == list(range(BLOCKS - 1))
        assert executor.kv_layout() == layout
        # Only the blocks that were adopted are memory.
        assert arena(executor).resident_bytes == (BLOCKS - 1) * size
        assert await continued(executor, 3, seq, BLOCKS - 1) == seq.output
        flip(arena(executor), int(sealed.blocks[3]) * size)
        # The last block was computed again, into the same place and with the same bits.
        assert (await executor.begin_epoch(4, sealed)).tolist() == [i for i in range(BLOCKS) if i != 3]

        assert (await executor.begin_epoch(5, replace(sealed, fingerprint="0" * 64))).tolist() == []
        file = arena(executor)
        assert file.resident_bytes == 0
    assert executor._memory == []
    with pytest.raises(OSError):
        os.fstat(file.descriptor)


def flip(file: MemoryFile, at: int) -> None:
    byte = os.pread(file.descriptor, 1, at)
    os.pwrite(file.descriptor, bytes([byte[0] ^ 16]), at)


@pytest.mark.long(extended=True)
async def test_a_new_life_that_adopts_nothing_begins_with_no_memory_of_the_old(model: Path) -> None:
    async with loaded(config(model, dtype="float32")) as executor:
        await executor.begin_epoch(1)
        _, sealed = await sealed_prompt(Driver(executor, 1))
        file = arena(executor)
        assert file.resident_bytes >= BLOCKS * executor.kv_layout().groups[0].bytes_per_block
        await kill(executor)
        started = asyncio.Event()
        executor.set_progress(lambda *_: started.set())
        begun = asyncio.ensure_future(executor.begin_epoch(2))
        await started.wait()
        assert file.resident_bytes == 0
        await begun
        assert (await executor.begin_epoch(3, sealed)).tolist() == []
        _, sealed = await sealed_prompt(Driver(executor, 3))
        # A begin that adopts and is cancelled, then one that does not: what the child found is given back.
        await kill(executor)
        started.clear()
        begun = asyncio.ensure_future(executor.begin_epoch(4, sealed))
        await started.wait()
        begun.cancel()
        await asyncio.wait((begun,))
        held = file.resident_bytes
        assert (await executor.begin_epoch(5)).tolist() == [] and held > 0
        assert file.resident_bytes == 0


@pytest.mark.long(every=2)
async def test_another_checkpoint_in_the_same_place_is_another_fingerprint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", QWEN3)
    async with loaded(config(path, dtype="float32")) as executor:
        await executor.begin_epoch(1)
        seq, sealed = await sealed_prompt(Driver(executor, 1))
        write_checkpoint(path, QWEN3, seed=1)
        await kill(executor)
        assert (await executor.begin_epoch(2, sealed)).tolist() == []
        assert executor.kv_layout().fingerprint not in ("", sealed.fingerprint)
        again = await continued(executor, 2, seq, 0)
    async with loaded(config(path, dtype="float32")) as executor:
        await executor.begin_epoch(1)
        assert await continued(executor, 1, seq, 0) == again


@pytest.mark.long(every=2)
async def test_without_such_memory_the_executor_runs_and_adopts_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: str, flags: int) -> int:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    async with loaded(config(model, dtype="float32")) as executor:
        assert executor.kv_layout().fingerprint == "" and "Operation not permitted" in caplog.text
        sealed = SealedBlocks("", np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.uint64))
        assert (await executor.begin_epoch(1, sealed)).tolist() == []
        driver = Driver(executor, 1)
        batch = replace(driver.batch(Feed(driver.add(PROMPT))), seals=np.array([(0, 0)], np.int32))
        assert (await executor.unified_decode(batch)).checksums is None


@pytest.mark.long(every=2)
async def test_a_file_that_cannot_be_mapped_is_a_note(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = os.open("/dev/null", os.O_RDWR)
    monkeypatch.setattr(MemoryFile, "create", lambda name: MemoryFile(os.dup(closed)))
    async with loaded(config(model, dtype="float32")) as executor:
        assert executor.kv_layout().fingerprint == ""
        assert any("KV ends with its process" in note for note in executor.status().notes)
        await executor.begin_epoch(1)
        assert (await executor.begin_epoch(2)).tolist() == []
    os.close(closed)


@pytest.mark.long(every=3)
@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)], ids=["tp2", "pp2"])
async def test_ranks_seal_and_adopt_together(model: Path, sizes: tuple[int, int]) -> None:
    parallel = ParallelConfig(*sizes)
    settings = replace(
        config(model, dtype="float32"), parallel=parallel, executor_type=parallel.executor_type
    )
    async with loaded(settings) as executor:
        await executor.begin_epoch(1)
        driver = Driver(executor, 1)
        seq, sealed = await sealed_prompt(driver)
        await driver.decode(6, seq)
        await kill(executor)
        assert (await executor.begin_epoch(2, sealed)).tolist() == list(range(BLOCKS))
        assert await continued(executor, 2, seq, BLOCKS - 1) == seq.output
        # A flipped byte of the last rank drops the block on all of them.
        assert executor._memory is not None and len(executor._memory) == 2
        flip(executor._memory[1], int(sealed.blocks[5]) * executor.kv_layout().groups[0].bytes_per_block)
        assert (await executor.begin_epoch(3, sealed)).tolist() == [i for i in range(BLOCKS) if i != 5]


@pytest.mark.long(extended=True)
@pytest.mark.parametrize(
    "changes", [{"dtype": "bfloat16"}, {"kv": "int8"}, {"draft": True}], ids=["bf16", "int8", "draft"]
)
async def test_every_kind_of_kv_is_adopted(model: Path, changes: dict[str, object]) -> None:
    size, num_drafts = (16 if "kv" in changes else 4), (3 if "draft" in changes else 0)
    settings = config(model, dtype=str(changes.get("dtype", "float32")), block_size=size)
    if "kv" in changes:
        settings = replace(settings, memory=replace(settings.memory, kv_cache_dtype="int8"))
    if num_drafts:
        settings = replace(settings, optimization=OptimizationConfig(num_threads=1, draft_model=str(model)))
    async with loaded(settings) as executor:
        await executor.begin_epoch(1)
        driver = Driver(executor, 1)
        seq, sealed = await sealed_prompt(driver)
        await driver.decode(6, seq)
        await kill(executor)
        assert (await executor.begin_epoch(2, sealed)).tolist() == list(range(len(PROMPT) // size))
        # A block less than there are: a step computes one token at least.
        assert await continued(executor, 2, seq, (len(PROMPT) - 1) // size, num_drafts) == seq.output
