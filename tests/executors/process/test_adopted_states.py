"""Snapshots of states that outlive the executor's process: the next life of a hybrid finds those that hold what was sealed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executors.contract import InvalidInput, SealedBlocks
from executors.llm.memory.arena import _ALIGNMENT
from executors.process.client import RemoteExecutor
from executors.testing import conformance_adoption
from executors.testing.conformance import CASES, run_case
from executors.testing.driver import DrivenSequence, Driver, Feed
from tests.executors.llm.driver import config
from tests.executors.llm.models import SHAPES, write
from tests.executors.process.test_adoption import arena, flip, kill, loaded
from tests.tiers import part_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
NAMES = ("qwen3-next", pytest.param("lfm2-short-convolutions", marks=pytest.mark.long(extended=True)))
ADOPTION = [name for name, one in CASES.items() if one.__module__ == conformance_adoption.__name__]
INTERVAL, SEQS = 64, 6
PROMPT = [7 * i % 90 for i in range(2 * INTERVAL + 9)]


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    write(*SHAPES[request.param], path, 3)
    return path


@asynccontextmanager
async def hybrid(model: Path) -> AsyncIterator[RemoteExecutor]:
    async with loaded(config(model, dtype="float32", max_num_seqs=SEQS)) as executor:
        yield executor


async def test_a_hybrid_conforms_when_it_is_killed(model: Path, pytestconfig: pytest.Config) -> None:
    async with hybrid(model) as executor:
        assert executor.kv_layout().fingerprint
        for number, case in enumerate(part_of(pytestconfig, ADOPTION, every=2)):
            reason = await run_case(
                case, lambda: executor, tolerance=1e-3, executor=executor, epoch=1 + 20 * number
            )
            assert reason is None


async def sealed_prompt(executor: RemoteExecutor) -> tuple[DrivenSequence, list[int], SealedBlocks]:
    """Compute the prompt in one step, which seals its full blocks and leaves two snapshots. Returns their slots as well."""
    driver, layout = Driver(executor, 1), executor.kv_layout()
    assert layout.state is not None and layout.state.interval == INTERVAL
    slots = [driver.free_states.pop(), driver.free_states.pop()]
    seq = driver.add(PROMPT)
    batch = driver.batch(Feed(seq, snapshots=((INTERVAL, slots[0]), (2 * INTERVAL, slots[1]))))
    blocks = seq.blocks[0][: 2 * INTERVAL // driver.block_size]
    seals = np.array(
        [*((0, block) for block in blocks), *((layout.state_group, slot) for slot in slots)], np.int32
    )
    output = await executor.unified_decode(replace(batch, seals=seals))
    assert output.checksums is not None
    seq.tokens += output.token_ids.tolist()
    seq.num_computed, seq.state_src = len(PROMPT), -1 if seq.state is None else seq.state
    await driver.decode(5, seq)
    groups, ids = np.ascontiguousarray(seals.T)
    return seq, slots, SealedBlocks(layout.fingerprint, groups, ids, output.checksums)


async def continued(
    executor: RemoteExecutor, epoch: int, seq: DrivenSequence, position: int, slot: int
) -> list[int]:
    """The output of a sequence that begins behind `position` tokens with the snapshot in `slot`."""
    driver = Driver(executor, epoch)
    shared = [seq.blocks[0][: position // driver.block_size]]
    driver.free_blocks[0] = [block for block in driver.free_blocks[0] if block not in shared[0]]
    again = driver.add(PROMPT, shared_blocks=shared, num_computed=position, state=slot)
    await driver.prefill(again)
    await driver.decode(5, again)
    return again.output


async def test_a_killed_life_is_continued_from_its_snapshots(model: Path) -> None:
    async with hybrid(model) as executor:
        layout = executor.kv_layout()
        assert layout.state is not None
        await executor.begin_epoch(1)
        seq, slots, sealed = await sealed_prompt(executor)
        await kill(executor)
        size, of_states = layout.state.slot_bytes, -(-layout.block_bytes // _ALIGNMENT) * _ALIGNMENT
        assert (await executor.begin_epoch(2, sealed)).tolist() == list(range(len(sealed)))
        assert executor.kv_layout() == layout
        # Of states only the slots of the two snapshots are memory.
        in_blocks = (len(sealed) - 2) * layout.groups[0].bytes_per_block
        assert arena(executor).resident_bytes == in_blocks + 2 * size
        assert await continued(executor, 2, seq, 2 * INTERVAL, slots[1]) == seq.output
        await kill(executor)
        flip(arena(executor), of_states + slots[1] * size)
        # The blocks stay, and a sequence goes on behind the snapshot before the one that is damaged.
        assert (await executor.begin_epoch(3, sealed)).tolist() == list(range(len(sealed) - 1))
        assert await continued(executor, 3, seq, INTERVAL, slots[0]) == seq.output


async def test_an_adopted_snapshot_lies_at_a_place_for_snapshots(model: Path) -> None:
    """The executor does not know the position of what it has adopted; what cannot be one is refused, and so is any other slot."""
    async with hybrid(model) as executor:
        await executor.begin_epoch(1)
        seq, slots, sealed = await sealed_prompt(executor)
        await executor.begin_epoch(2, sealed)
        other = next(slot for slot in range(SEQS) if slot not in slots)
        for position, slot, why in (
            (INTERVAL + 4, slots[0], "its state is a snapshot at a multiple of 64 tokens"),
            (INTERVAL, other, "its slot holds no state"),
        ):
            with pytest.raises(InvalidInput, match=why):
                await continued(executor, 2, seq, position, slot)
        assert await continued(executor, 2, seq, INTERVAL, slots[0]) == seq.output
