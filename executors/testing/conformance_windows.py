"""Conformance cases on KV groups with a window: what lies behind it is not read, though other sequences may have its blocks."""

from __future__ import annotations

from executors.testing.conformance_kit import Driver, Feed, Kit, NotApplicable, case

NO_WINDOW = "no KV group has a window"
ONE_GROUP = "there is one KV group"
_NUM = 4  # tokens that each comparison samples
_LONGEST = 2048  # the longest sequence that a case computes


def _window(kit: Kit) -> int:
    """The largest window. Raises NotApplicable for an executor without one, or with sequences too short to leave it."""
    kit.need_paged()
    kit.need_slots(2)
    windows = [group.window for group in kit.executor.kv_layout().groups if group.window is not None]
    if not windows:
        raise NotApplicable(NO_WINDOW)
    if max(windows) + 5 * kit.block_size > min(_LONGEST, kit.capabilities.max_sequence_length):
        raise NotApplicable(f"no sequence is longer than the window of {max(windows)} tokens")
    return max(windows)


def _shared(driver: Driver, blocks: list[list[int]], num_blocks: int) -> list[list[int]]:
    """For each group the blocks that a sequence begins with behind `num_blocks` full ones: those that its first token reads."""
    position = num_blocks * driver.block_size
    firsts = [
        0 if group.window is None else max(0, position - group.window + 1) // driver.block_size
        for group in driver.groups
    ]
    return [of_group[first:num_blocks] for first, of_group in zip(firsts, blocks, strict=True)]


@case
async def blocks_behind_a_window_are_not_read(kit: Kit) -> None:
    """A sequence whose blocks behind the window are given to others, which write to them at once, equals one that keeps them."""
    window, size = _window(kit), kit.block_size
    prompt = kit.prompt(window + 2 * size + 1, 120)
    whole = await kit.alone(prompt, size + _NUM)
    visitor_alone = await kit.alone(kit.prompt(size, 121), 1)
    driver = await kit.driver()
    seq = driver.add(prompt, kit.greedy)
    while len(seq.samples) < size + _NUM:
        driver.slide(seq)
        visitor = driver.add(kit.prompt(size, 121), kit.greedy)  # what was freed last is given to it
        rest = len(seq.tokens) - seq.num_computed
        await driver.step(Feed(visitor), Feed(seq, min(size, rest)))
        kit.same(visitor_alone, visitor, "a sequence in blocks that a window has left")
        driver.release(visitor)
    kit.same(whole, seq, "a sequence whose window slid on")


@case
async def table_of_a_window_begins_at_the_hit(kit: Kit) -> None:
    """A sequence that begins with another's prefix is given the blocks of its window alone, where others have the rest."""
    window, size = _window(kit), kit.block_size
    kit.need_no_states()
    num_blocks = -(-window // size) + 2
    shared, tail = kit.prompt(num_blocks * size, 122), kit.prompt(size + 2, 123)
    cold = await kit.alone(shared + tail, _NUM)
    driver = await kit.driver()
    first = driver.add(shared + kit.prompt(1, 124), kit.greedy)
    await driver.prefill(first)
    blocks = _shared(driver, first.blocks, num_blocks)
    driver.slide(first)  # the next one grows into what it leaves
    second = driver.add(shared + tail, kit.greedy, shared_blocks=blocks, num_computed=len(shared))
    await driver.step(Feed(second), Feed(first))
    await driver.decode(_NUM - 1, second, first)
    kit.same(cold, second, "a prefix hit with the blocks of its window")
    driver.release(first)
    third = driver.add(shared + tail, kit.greedy, shared_blocks=blocks, num_computed=len(shared))
    await driver.step(Feed(third, 1))
    await driver.step(Feed(third))
    await driver.decode(_NUM - 1, third)
    kit.same(cold, third, "a prefix hit after its writer was released, in chunks")


@case
async def groups_keep_their_own_blocks(kit: Kit) -> None:
    """A block of one group may have the id of another sequence's block in another group, and copies are made in their group."""
    kit.need_paged()
    kit.need_no_states()
    kit.need_slots(2)
    if len(kit.executor.kv_layout().groups) < 2:
        raise NotApplicable(ONE_GROUP)
    prompts = [kit.long(125), kit.long(126)]
    alone = [await kit.alone(prompt, _NUM) for prompt in prompts]
    driver = await kit.driver()
    num_blocks = len(kit.long()) // kit.block_size + 1
    # What the first sequence has in one group the second has in the next.
    for index, free in enumerate(driver.free_blocks):
        ids = sorted(free)
        begin = num_blocks * (index % 2)
        free[:] = ids[begin : begin + num_blocks] + ids[:begin] + ids[begin + num_blocks :]
    seqs = [driver.add(prompt, kit.greedy) for prompt in prompts]
    await driver.prefill(*seqs)
    full = (len(prompts[0]) - 1) // kit.block_size
    fork = driver.add(
        prompts[0],
        kit.greedy,
        shared_blocks=[blocks[:full] for blocks in seqs[0].blocks],
        num_computed=len(prompts[0]) - 1,
    )
    driver.grow(fork, len(prompts[0]))
    pairs = zip(seqs[0].blocks, fork.blocks, strict=True)
    driver.block_copies = [(group, a[full], b[full]) for group, (a, b) in enumerate(pairs)]
    await driver.step(Feed(seqs[0]), Feed(fork))
    await driver.decode(_NUM - 1, *seqs)
    await driver.decode(_NUM - 1, fork)
    for want, actual in zip((*alone, alone[0]), (*seqs, fork), strict=True):
        kit.same(want, actual, "beside one with the same ids in another group")
