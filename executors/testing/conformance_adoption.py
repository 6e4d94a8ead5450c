"""Conformance cases on blocks, and snapshots of states, that outlive the executor's process: seals, and their adoption by the
next life.

They concern executors with a `KvLayout.fingerprint`. One with a method `kill`, as `RemoteExecutor`, is killed between two lives;
of others the next epoch is the next life.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from executors.contract import Int32Array, SealedBlocks
from executors.testing.conformance_kit import (
    Driver,
    Feed,
    Kit,
    NotApplicable,
    case,
    require,
)
from executors.testing.conformance_states import NO_STATES

NOT_DECLARED = "the executor's blocks do not outlive its process"
_NUM = 4


def _fingerprint(kit: Kit) -> str:
    kit.need_paged()
    fingerprint = kit.executor.kv_layout().fingerprint
    if not fingerprint:
        raise NotApplicable(NOT_DECLARED)
    return fingerprint


def _end(kit: Kit) -> int:
    """Number of tokens behind which the next life goes on: two blocks, and with states a place for a snapshot."""
    layout = kit.executor.kv_layout()
    interval = layout.state.interval if layout.state is not None else 0
    return max(2 * kit.block_size, interval)


def _prompt(kit: Kit, seed: int) -> list[int]:
    """A prompt of that many tokens and a bit."""
    return kit.prompt(_end(kit) + 3, seed)


def _snapshot(kit: Kit, driver: Driver) -> tuple[tuple[int, int], ...]:
    """(position, slot) of a snapshot at the end of a prompt's full blocks, if there are states."""
    return () if driver.states is None else ((_end(kit), driver.free_states.pop()),)


async def _sealed(kit: Kit, driver: Driver, *feeds: Feed) -> SealedBlocks:
    """Compute the prompts of these sequences in one step that seals their full blocks, and the snapshots that it leaves."""
    fingerprint = _fingerprint(kit)
    batch = driver.batch(*feeds)
    seals = np.array(
        [
            *(
                (group, block)
                for feed in feeds
                for group, (first, blocks) in enumerate(zip(feed.seq.firsts, feed.seq.blocks, strict=True))
                for block in blocks[: len(feed.seq.prompt) // kit.block_size - first]
            ),
            *((len(driver.groups), slot) for feed in feeds for _, slot in feed.snapshots),
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


async def _goes_on(kit: Kit, driver: Driver, sealed: SealedBlocks, old: Feed, what: str) -> None:
    """A sequence with the prompt of `old`, whose full blocks and first snapshot were adopted, gives what it gives alone in a cold
    executor."""
    num_tokens, state = (old.snapshots or ((_end(kit), None),))[0]
    num_blocks, shared = num_tokens // kit.block_size, []
    for index, group in enumerate(driver.groups):
        low = 0 if group.window is None else max(0, num_tokens - group.window + 1) // kit.block_size
        first = old.seq.firsts[index]
        shared.append(old.seq.blocks[index][low - first : num_blocks - first])
        in_use = set(sealed.blocks[sealed.groups == index].tolist())
        driver.free_blocks[index] = [block for block in driver.free_blocks[index] if block not in in_use]
    in_use = set(sealed.blocks[sealed.groups == len(driver.groups)].tolist())
    driver.free_states = [slot for slot in driver.free_states if slot not in in_use]
    seq = driver.add(old.seq.prompt, kit.greedy, shared_blocks=shared, num_computed=num_tokens, state=state)
    await driver.prefill(seq)
    await driver.decode(_NUM - 1, seq)
    kit.same(await kit.alone(old.seq.prompt, _NUM), seq, what)


@case
async def adopted_blocks_are_hits(kit: Kit) -> None:
    """What a life sealed the next one adopts: a sequence that begins behind it goes on as if it had computed it."""
    _fingerprint(kit)
    driver = await kit.driver()
    feed = Feed(driver.add(_prompt(kit, 90), kit.greedy), snapshots=_snapshot(kit, driver))
    sealed = await _sealed(kit, driver, feed)
    driver, adopted = await _next_life(kit, sealed)
    require(adopted.tolist() == list(range(len(sealed))), f"of {len(sealed)} blocks {adopted} are adopted")
    await _goes_on(kit, driver, sealed, feed, "a sequence behind adopted blocks")


@case
async def written_blocks_are_not_adopted(kit: Kit) -> None:
    """A block that holds something else than was sealed is refused, those beside it are not."""
    _fingerprint(kit)
    kit.need_slots(2)
    driver = await kit.driver()
    keeper, gone = (
        Feed(driver.add(_prompt(kit, seed), kit.greedy), snapshots=_snapshot(kit, driver))
        for seed in (91, 92)
    )
    sealed = await _sealed(kit, driver, keeper, gone)
    blocks = [list(group) for group in gone.seq.blocks] + [[slot for _, slot in gone.snapshots]]
    driver.release(gone.seq)
    for free, freed in zip(driver.free_blocks, blocks, strict=False):
        free[:] = [*freed, *(block for block in free if block not in freed)]
    driver.free_states[:0] = blocks[-1]
    await driver.prefill(driver.add(_prompt(kit, 93), kit.greedy))
    driver, adopted = await _next_life(kit, sealed)
    written = [
        block in blocks[group]
        for group, block in zip(sealed.groups.tolist(), sealed.blocks.tolist(), strict=True)
    ]
    expected = np.flatnonzero(~np.array(written)).tolist()
    require(adopted.tolist() == expected, f"{adopted} are adopted, {expected} were not written")
    await _goes_on(kit, driver, sealed, keeper, "a sequence behind the blocks that were not written")


@case
async def written_snapshots_are_not_adopted(kit: Kit) -> None:
    """A slot with another state than was sealed is refused, blocks and the other snapshot of the sequence are not."""
    _fingerprint(kit)
    driver = await kit.driver()
    if driver.states is None:
        raise NotApplicable(NO_STATES)
    kit.need_slots(2)
    end, interval = _end(kit), driver.states.interval
    snapshots = ((end, driver.free_states.pop()), (end + interval, driver.free_states.pop()))
    feed = Feed(driver.add(kit.prompt(end + interval + 3, 96), kit.greedy), snapshots=snapshots)
    sealed = await _sealed(kit, driver, feed)
    driver.free_states.insert(0, snapshots[1][1])
    await driver.prefill(driver.add(kit.prompt(2, 97), kit.greedy))
    driver, adopted = await _next_life(kit, sealed)
    expected = list(range(len(sealed) - 1))  # the last seal was that of the deeper snapshot
    require(adopted.tolist() == expected, f"{adopted} are adopted, {expected} were not written")
    await _goes_on(kit, driver, sealed, feed, "a sequence behind the snapshot that was not written")


@case
async def another_fingerprint_adopts_nothing(kit: Kit) -> None:
    """Blocks that were sealed under another fingerprint are refused, whatever they hold."""
    fingerprint = _fingerprint(kit)
    driver = await kit.driver()
    feed = Feed(driver.add(_prompt(kit, 94), kit.greedy), snapshots=_snapshot(kit, driver))
    sealed = await _sealed(kit, driver, feed)
    _, adopted = await _next_life(kit, replace(sealed, fingerprint=fingerprint + "x"))
    require(not len(adopted), f"{adopted} are adopted from another fingerprint")


@case
async def what_was_not_adopted_is_gone(kit: Kit) -> None:
    """A life that was offered nothing keeps nothing: the one after it adopts no block of the life before it."""
    _fingerprint(kit)
    driver = await kit.driver()
    feed = Feed(driver.add(_prompt(kit, 95), kit.greedy), snapshots=_snapshot(kit, driver))
    sealed = await _sealed(kit, driver, feed)
    _, adopted = await _next_life(kit, None)
    require(not len(adopted), f"{adopted} are adopted though nothing was offered")
    _, adopted = await _next_life(kit, sealed)
    require(not len(adopted), f"{adopted} are adopted from memory that was emptied")
