"""Conformance cases on states of layers: from which slot a state is read, to which it is written, and what a step keeps of it."""

from __future__ import annotations

import numpy as np

from executors.testing.conformance_kit import (
    DrivenSequence,
    Driver,
    Feed,
    Kit,
    NotApplicable,
    case,
    refused,
    require,
)

NO_STATES = "the executor has no states"
_NUM = 4  # tokens that each comparison samples


async def _driver(kit: Kit) -> tuple[Driver, int]:
    """A driver and the interval of snapshots. Raises NotApplicable for an executor without states, or with too few slots."""
    driver = await kit.driver()
    if driver.states is None:
        raise NotApplicable(NO_STATES)
    kit.need_slots(3)
    if driver.states.num_slots < 6:
        raise NotApplicable(f"the executor has {driver.states.num_slots} slots of states")
    return driver, driver.states.interval


def _prefix(kit: Kit, driver: Driver, seq: DrivenSequence, position: int) -> list[list[int]]:
    """The sequence's full blocks before `position`, of each group."""
    blocks = []
    for index, group in enumerate(driver.groups):
        first = 0 if group.window is None else max(0, position - group.window + 1) // kit.block_size
        blocks.append(
            seq.blocks[index][first - seq.firsts[index] : position // kit.block_size - seq.firsts[index]]
        )
    return blocks


@case
async def a_snapshot_equals_the_state_there(kit: Kit) -> None:
    """A sequence that begins with the snapshot which another one's chunk left on its way, and with its blocks, equals a cold one;
    so does the one that left it, and a third, after both have gone."""
    _, interval = await _driver(kit)
    shared = kit.prompt(2 * interval, 301)
    tails = [kit.prompt(interval + 3, 302), kit.prompt(2, 303), kit.prompt(1, 304)]
    cold = [await kit.alone(shared + tail, _NUM) for tail in tails]
    driver, _ = await _driver(kit)
    snapshot, earlier = driver.free_states.pop(), driver.free_states.pop()
    first = driver.add(shared + tails[0], kit.greedy)
    await driver.step(Feed(first, interval - 1))
    await driver.step(Feed(first, snapshots=((interval, earlier), (2 * interval, snapshot))))
    blocks = _prefix(kit, driver, first, len(shared))
    second = driver.add(
        shared + tails[1], kit.greedy, shared_blocks=blocks, num_computed=len(shared), state=snapshot
    )
    await driver.step(Feed(second), Feed(first))
    await driver.decode(_NUM - 2, second, first)
    kit.same(cold[0], first, "the sequence that left snapshots")
    kit.same(cold[1], second, "a sequence that begins with a snapshot")
    driver.release(first)
    driver.release(second)
    third = driver.add(
        shared + tails[2], kit.greedy, shared_blocks=blocks, num_computed=len(shared), state=snapshot
    )
    await driver.step(Feed(third))
    await driver.decode(_NUM - 1, third)
    kit.same(cold[2], third, "a sequence that begins with it when its writer is gone")


@case
async def a_state_goes_on_in_any_slot(kit: Kit) -> None:
    """Each step may write the state to another slot than it reads; the slot that was read holds what it held, and a sequence
    begins there that has the same tokens."""
    await _driver(kit)
    prompt = kit.long(305)
    alone = [await kit.alone(prompt, _NUM, kit.drawn(choice)) for choice in range(2)]
    driver, _ = await _driver(kit)
    seq = driver.add(prompt, kit.drawn(0))
    await driver.step(Feed(seq, len(prompt) - 1))
    assert seq.state is not None
    source, seq.state = seq.state, driver.free_states.pop()
    fork = _fork(kit, driver, seq, source)
    await driver.step(Feed(seq), Feed(fork))
    for _ in range(_NUM - 1):
        free = [driver.free_states.pop(), driver.free_states.pop()]
        seq.state, free[0] = free[0], seq.state
        fork.state, free[1] = free[1], fork.state
        await driver.step(Feed(fork), Feed(seq))
        driver.free_states += free
    late = _fork(kit, driver, fork, source)
    await driver.step(Feed(late))
    await driver.decode(_NUM - 1, late)
    kit.same(alone[0], seq, "a sequence whose state changes its slot in each step")
    kit.same(alone[1], fork, "a sequence that begins with the slot which another one has left")
    kit.same(alone[1], late, "a sequence that begins with a slot which others have read")


def _fork(kit: Kit, driver: Driver, other: DrivenSequence, source: int) -> DrivenSequence:
    """A sequence with the prompt of another one, that begins behind all of it but the last token, with the state in `source`."""
    num_computed = len(other.prompt) - 1
    full, partial = divmod(num_computed, kit.block_size)
    blocks = [of_group[: full - first] for of_group, first in zip(other.blocks, other.firsts, strict=True)]
    fork = driver.add(
        other.prompt, kit.drawn(1), shared_blocks=blocks, num_computed=num_computed, state=source
    )
    driver.grow(fork, len(other.prompt))
    if kit.paged and partial:
        pairs = zip(other.blocks, fork.blocks, strict=True)
        driver.block_copies = [(group, a[full], b[full]) for group, (a, b) in enumerate(pairs)]
    return fork


@case
async def a_used_slot_begins_with_zeros(kit: Kit) -> None:
    """Source -1 is a state of zeros, whatever the slot held before."""
    await _driver(kit)
    alone = await kit.alone(kit.prompt(3, 307), _NUM)
    driver, _ = await _driver(kit)
    used = driver.add(kit.long(306), kit.greedy)
    await driver.prefill(used)
    driver.release(used)
    seq = driver.add(kit.prompt(3, 307), kit.greedy)
    require(seq.state == used.state, "the driver gives out the slot that was freed last")
    await driver.prefill(seq)
    await driver.decode(_NUM - 1, seq)
    kit.same(alone, seq, "a sequence in a used slot")


@case
async def a_batch_with_wrong_states_is_refused(kit: Kit) -> None:
    """Slots that do not exist, that are written twice, or by one item and read by another, and snapshots where none can be taken
    are refused before anything changes."""
    _, interval = await _driver(kit)
    prompt = kit.prompt(2 * interval + 1, 308)
    whole = await kit.alone(prompt, _NUM)
    driver, _ = await _driver(kit)
    assert driver.states is not None
    a, b = driver.add(prompt, kit.greedy), driver.add(kit.prompt(2, 309), kit.greedy)
    batch = driver.batch(Feed(a), Feed(b))
    assert batch.state_src is not None and batch.state_dst is not None
    spare, size = driver.free_states[-1], driver.states.num_slots
    wrong: dict[str, tuple[list[int], list[int], list[tuple[int, int, int]]]] = {
        "a destination beyond the last slot": ([-1, -1], [size, 0], []),
        "one destination of two items": ([-1, -1], [spare, spare], []),
        "a state that another item writes": ([spare, -1], [0, spare], []),
        "a snapshot in a destination": ([-1, -1], [0, 1], [(0, interval, 1)]),
        "a snapshot in a source": ([-1, spare], [0, 1], [(0, interval, spare)]),
        "a snapshot at the item's end": ([-1, -1], [0, 1], [(1, 2, spare)]),
        "a snapshot beyond the item's end": ([-1, -1], [0, 1], [(0, 3 * interval, spare)]),
    }
    own = batch.state_src, batch.state_dst
    for what, (sources, destinations, snapshots) in wrong.items():
        batch.state_src, batch.state_dst = np.array(sources, np.int32), np.array(destinations, np.int32)
        batch.snapshots = np.array(snapshots, np.int32).reshape(-1, 3)
        await refused(kit.executor.unified_decode(batch), what)
    batch.state_src = None
    await refused(kit.executor.unified_decode(batch), "a batch without states")
    batch.state_src, batch.state_dst = own
    batch.snapshots = np.empty((0, 3), np.int32)
    output = await kit.executor.unified_decode(batch)
    item = output[0]
    assert item is not None
    kit.same_token(whole.samples[0], item.tokens[0], kit.greedy, len(prompt), "after refused batches")
