"""Conformance cases on blocks that outlive the executor's process: seals, and their adoption by the next life.

They concern executors with a `KvLayout.fingerprint`. One with a method `kill`, as `RemoteExecutor`, is killed between two lives;
of others the next epoch is the next life.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from executors.contract import Int32Array, SealedBlocks
from executors.testing.conformance_kit import (
    DrivenSequence,
    Driver,
    Feed,
    Kit,
    NotApplicable,
    case,
    require,
)

NOT_DECLARED = "the executor's blocks do not outlive its process"
_NUM = 4
_NUM_BLOCKS = 2  # full ones of `Kit.long`


def _fingerprint(kit: Kit) -> str:
    kit.need_paged()
    fingerprint = kit.executor.kv_layout().fingerprint
    if not fingerprint:
        raise NotApplicable(NOT_DECLARED)
    return fingerprint


async def _sealed(kit: Kit, driver: Driver, *seqs: DrivenSequence) -> SealedBlocks:
    """Compute the prompts of these sequences in one step that seals their full blocks."""
    fingerprint = _fingerprint(kit)
    batch = driver.batch(*(Feed(seq) for seq in seqs))
    seals = np.array(
        [
            (group, block)
            for seq in seqs
            for group, (first, blocks) in enumerate(zip(seq.firsts, seq.blocks, strict=True))
            for block in blocks[: len(seq.prompt) // kit.block_size - first]
        ],
        np.int32,
    )
    output = await kit.executor.unified_decode(replace(batch, seals=seals))
    checksums = output.checksums
    require(checksums is not None, "a step that seals blocks gave no checksums")
    assert checksums is not None
    require(
        checksums.dtype == np.uint64 and checksums.shape == (len(seals),),
        f"{len(seals)} seals have checksums {checksums.dtype}{list(checksums.shape)}",
    )
    groups, blocks = np.ascontiguousarray(seals.T)
    return SealedBlocks(fingerprint, groups, blocks, checksums)


async def _next_life(kit: Kit, sealed: SealedBlocks | None) -> tuple[Driver, Int32Array]:
    """End this life, and begin the next one with what may be adopted."""
    executor = kit.executor
    if (kill := getattr(executor, "kill", None)) is not None:
        kill()
        await executor.wait_dead()  # type: ignore[attr-defined]  # as RemoteExecutor's
    adopted = await executor.begin_epoch(kit.epoch, sealed)
    driver = Driver(executor, kit.epoch)
    kit.epoch += 1
    require(
        adopted.dtype == np.int32 and adopted.ndim == 1 and bool((np.diff(adopted) > 0).all()),
        f"begin_epoch returned {adopted!r}, no rising indices",
    )
    return driver, adopted


async def _goes_on(kit: Kit, driver: Driver, sealed: SealedBlocks, old: DrivenSequence, what: str) -> None:
    """A sequence with the prompt of `old`, whose full blocks were adopted, gives what it gives alone in a cold executor."""
    num_tokens = _NUM_BLOCKS * kit.block_size
    shared = []
    for index, group in enumerate(driver.groups):
        low = 0 if group.window is None else max(0, num_tokens - group.window + 1) // kit.block_size
        first = old.firsts[index]
        shared.append(old.blocks[index][low - first : _NUM_BLOCKS - first])
        in_use = set(sealed.blocks[sealed.groups == index].tolist())
        driver.free_blocks[index] = [block for block in driver.free_blocks[index] if block not in in_use]
    seq = driver.add(old.prompt, kit.greedy, shared_blocks=shared, num_computed=num_tokens)
    await driver.prefill(seq)
    await driver.decode(_NUM - 1, seq)
    kit.same(await kit.alone(old.prompt, _NUM), seq, what)


@case
async def adopted_blocks_are_hits(kit: Kit) -> None:
    """What a life sealed the next one adopts: a sequence that begins behind it goes on as if it had computed it."""
    _fingerprint(kit)
    driver = await kit.driver()
    seq = driver.add(kit.long(90), kit.greedy)
    sealed = await _sealed(kit, driver, seq)
    driver, adopted = await _next_life(kit, sealed)
    require(adopted.tolist() == list(range(len(sealed))), f"of {len(sealed)} blocks {adopted} are adopted")
    await _goes_on(kit, driver, sealed, seq, "a sequence behind adopted blocks")


@case
async def written_blocks_are_not_adopted(kit: Kit) -> None:
    """A block that holds something else than was sealed is refused, those beside it are not."""
    _fingerprint(kit)
    kit.need_slots(2)
    driver = await kit.driver()
    keeper, gone = driver.add(kit.long(91), kit.greedy), driver.add(kit.long(92), kit.greedy)
    sealed = await _sealed(kit, driver, keeper, gone)
    blocks = [list(group) for group in gone.blocks]
    driver.release(gone)
    for free, freed in zip(driver.free_blocks, blocks, strict=True):
        free[:] = [*freed, *(block for block in free if block not in freed)]
    await driver.prefill(driver.add(kit.long(93), kit.greedy))
    driver, adopted = await _next_life(kit, sealed)
    written = [
        block in blocks[group]
        for group, block in zip(sealed.groups.tolist(), sealed.blocks.tolist(), strict=True)
    ]
    expected = np.flatnonzero(~np.array(written)).tolist()
    require(adopted.tolist() == expected, f"{adopted} are adopted, {expected} were not written")
    await _goes_on(kit, driver, sealed, keeper, "a sequence behind the blocks that were not written")


@case
async def another_fingerprint_adopts_nothing(kit: Kit) -> None:
    """Blocks that were sealed under another fingerprint are refused, whatever they hold."""
    fingerprint = _fingerprint(kit)
    driver = await kit.driver()
    seq = driver.add(kit.long(94), kit.greedy)
    sealed = await _sealed(kit, driver, seq)
    _, adopted = await _next_life(kit, replace(sealed, fingerprint=fingerprint + "x"))
    require(not len(adopted), f"{adopted} are adopted from another fingerprint")


@case
async def what_was_not_adopted_is_gone(kit: Kit) -> None:
    """A life that was offered nothing keeps nothing: the one after it adopts no block of the life before it."""
    _fingerprint(kit)
    driver = await kit.driver()
    seq = driver.add(kit.long(95), kit.greedy)
    sealed = await _sealed(kit, driver, seq)
    _, adopted = await _next_life(kit, None)
    require(not len(adopted), f"{adopted} are adopted though nothing was offered")
    _, adopted = await _next_life(kit, sealed)
    require(not len(adopted), f"{adopted} are adopted from memory that was emptied")
