"""Conformance cases on life: start and end, epochs, refusals, failures, declared facts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from executors.contract import (
    BatchModelExecutor,
    ExecutorError,
    ExecutorState,
    NotReady,
    OutOfMemory,
    Skipped,
    StepFailed,
    UnifiedBatch,
)
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

_NUM = 4
_MOST_SEQUENCES = 64  # cases that fill every slot stop here
_LONGEST = 2048  # the longest sequence that a case computes


@case
async def cancel_leaves_nothing(kit: Kit) -> None:
    """Sequences released in the middle of their prompt, many in turn, leave slots, blocks and KV as if never there."""
    prompt = kit.long(50)
    cold = await kit.alone(prompt, _NUM)
    driver = await kit.driver()
    for i in range(min(kit.capabilities.max_batch_size, _MOST_SEQUENCES) + 2):
        seq = driver.add(kit.long(51 + i), kit.drawn(i))
        await driver.step(Feed(seq, kit.block_size + 1))
        driver.release(seq)
    after = driver.add(prompt, kit.greedy)
    await driver.prefill(after)
    await driver.decode(_NUM - 1, after)
    kit.same(cold, after, "a sequence after many that were cancelled")


@case
async def released_slots_are_clean(kit: Kit) -> None:
    """A slot's next sequence inherits nothing: other parameters, other length, neighbours untouched."""
    kit.need_slots(2)
    keeper_alone = await kit.alone(kit.long(52), 3 * _NUM)
    short_alone = await kit.alone(kit.prompt(2, 53), _NUM, kit.drawn(53))
    driver = await kit.driver()
    keeper = driver.add(kit.long(52), kit.greedy)
    gone = driver.add(kit.long(54), kit.greedy, prompt_logprobs=1)
    await driver.prefill(keeper, gone)
    await driver.decode(_NUM, keeper, gone)
    driver.release(gone)
    short = driver.add(kit.prompt(2, 53), kit.drawn(53), slot=gone.slot)
    await driver.prefill(short)
    await driver.decode(_NUM - 1, short, keeper)
    kit.same(short_alone, short, "the next sequence in a released slot")
    kit.same(keeper_alone, keeper, "the neighbour of a released slot")


@case
async def memory_given_back_is_nobody_elses(kit: Kit) -> None:
    """release_memory of every free block disturbs no living sequence, and the blocks serve the next one."""
    kit.need_paged()
    kit.need_slots(2)
    keeper_alone = await kit.alone(kit.long(87), 3 * _NUM)
    other_alone = await kit.alone(kit.long(88), _NUM)
    driver = await kit.driver()
    gone = driver.add(kit.long(89), kit.greedy)
    keeper = driver.add(kit.long(87), kit.greedy)  # its blocks lie between free ones
    await driver.prefill(gone, keeper)
    driver.release(gone)
    for group, free in enumerate(driver.free_blocks):
        kit.executor.release_memory(group, np.array(sorted(free), np.int32))
    if driver.states is not None:
        kit.executor.release_memory(len(driver.groups), np.array(sorted(driver.free_states), np.int32))
    await driver.decode(_NUM, keeper)
    other = driver.add(kit.long(88), kit.greedy)
    await driver.prefill(other)
    await driver.decode(_NUM - 1, other, keeper)
    kit.executor.release_memory(0, np.array([], np.int32))
    kit.same(other_alone, other, "a sequence in blocks whose memory was given back")
    kit.same(keeper_alone, keeper, "a sequence beside blocks whose memory was given back")


@case
async def release_of_unknown_ids_is_harmless(kit: Kit) -> None:
    """release_cache of an id never seen, or already released, changes nothing."""
    cold = await kit.alone(kit.long(55), _NUM)
    driver = await kit.driver()
    kit.executor.release_cache(10**12)
    seq = driver.add(kit.long(55), kit.greedy)
    gone = driver.add(kit.prompt(3, 56), kit.greedy, slot=driver.free_slots[-1])
    await driver.prefill(gone)
    await driver.prefill(seq)
    driver.release(gone)
    kit.executor.release_cache(gone.seq_id)
    kit.executor.release_cache(10**12 + 1)
    await driver.decode(_NUM - 1, seq)
    kit.same(cold, seq, "a sequence beside unknown releases")


Spoil = Callable[[Kit, UnifiedBatch], UnifiedBatch]


def _with_token(batch: UnifiedBatch, token: int) -> UnifiedBatch:
    ids = batch.token_ids.copy()
    ids[-1] = token
    return replace(batch, token_ids=ids)


def _with_table(batch: UnifiedBatch, block: int) -> UnifiedBatch:
    ids = batch.tables.block_ids.copy()
    ids[-1] = block
    return replace(batch, tables=replace(batch.tables, block_ids=ids))


# Each spoils the last item of a batch: a new sequence with its whole prompt.
_SPOILED: dict[str, Spoil] = {
    "a token id too large": lambda kit, b: _with_token(b, kit.info.logits_width),
    "a negative token id": lambda kit, b: _with_token(b, -1),
    "a sequence that was never started": lambda kit, b: replace(b, starts=b.starts[:-1]),
    "a slot that is taken": lambda kit, b: replace(
        b,
        starts=(*b.starts[:-1], replace(b.starts[-1], slot=int(b.slots[0]))),
        slots=b.slots * 0 + b.slots[0],
    ),
    "a slot that does not exist": lambda kit, b: replace(
        b,
        starts=(*b.starts[:-1], replace(b.starts[-1], slot=10**6)),
        slots=np.array([b.slots[0], 10**6], np.int32),
    ),
    "a position beyond the longest sequence": lambda kit, b: replace(
        b, pos_offsets=np.array([b.pos_offsets[0], kit.capabilities.max_sequence_length], np.int32)
    ),
    "an unknown adapter": lambda kit, b: replace(
        b, starts=(*b.starts[:-1], replace(b.starts[-1], adapter="no-such-adapter"))
    ),
}
_SPOILED_PAGED: dict[str, Spoil] = {
    "a block table that is too short": lambda kit, b: replace(b, tables=type(b.tables).empty()),
    "a block that does not exist": lambda kit, b: _with_table(
        b, kit.executor.kv_layout().groups[-1].num_blocks
    ),
    "a negative block": lambda kit, b: _with_table(b, -1),
}


@case
async def refused_batches_leave_nothing(kit: Kit) -> None:
    """A batch with one bad item is refused with InvalidInput; its neighbour in the batch goes on as if nothing had been."""
    kit.need_slots(3)
    prompt = kit.prompt(kit.block_size, 57)
    spoiled = _SPOILED | (_SPOILED_PAGED if kit.paged else {})
    whole = await kit.alone(prompt, len(spoiled) + 2)
    driver = await kit.driver()
    keeper = driver.add(prompt, kit.greedy)
    await driver.prefill(keeper)
    # Room for all its tokens from the start: a refused batch must not take the keeper's table update with it.
    driver.grow(keeper, len(prompt) + len(spoiled) + 2)
    await driver.decode(1, keeper)
    for what, spoil in spoiled.items():
        bad = driver.add(kit.prompt(3, 58), kit.greedy)
        batch = driver.batch(Feed(keeper), Feed(bad))
        await refused(kit.executor.unified_decode(spoil(kit, batch)), what)
        driver.release(bad)
        await driver.decode(1, keeper)
    kit.same(whole, keeper, "the neighbour of refused items")


@case
async def failed_steps_are_skipped_until_a_new_epoch(kit: Kit) -> None:
    """After StepFailed or OutOfMemory every step is Skipped; a new epoch starts clean."""
    if kit.inject is None:
        raise NotApplicable("no way to inject failures was given")
    prompt = kit.long(59)
    cold = await kit.alone(prompt, _NUM)
    for kind, error in (("step_failed", StepFailed), ("out_of_memory", OutOfMemory)):
        driver = await kit.driver()
        seq, other = driver.add(prompt, kit.greedy), driver.add(kit.prompt(3, 60), kit.greedy)
        await driver.prefill(other)
        kit.inject(kit.executor, kind, seq.seq_id)
        await _raises(driver, error, Feed(seq), Feed(other))
        await _raises(driver, Skipped, Feed(other))
        await _raises(driver, Skipped, Feed(seq))
        kit.executor.release_cache(other.seq_id)  # releases go on meanwhile
        driver = await kit.driver()
        again = driver.add(prompt, kit.greedy)
        await driver.prefill(again)
        await driver.decode(_NUM - 1, again)
        kit.same(cold, again, f"after {kind} and a new epoch")


async def _raises(driver: Driver, error: type[ExecutorError], *feeds: Feed) -> None:
    try:
        await driver.step(*feeds)
    except error:
        return
    require(False, f"the step did not raise {error.__name__}")


@case
async def nan_is_isolated(kit: Kit) -> None:
    """An item whose logits are NaN fails alone, with `error`; its neighbours stand."""
    if kit.inject is None:
        raise NotApplicable("no way to inject failures was given")
    kit.need_slots(2)
    whole = await kit.alone(kit.long(61), _NUM)
    driver = await kit.driver()
    seq, sick = driver.add(kit.long(61), kit.greedy), driver.add(kit.prompt(3, 62), kit.greedy)
    await driver.prefill(seq)
    kit.inject(kit.executor, "nan", sick.seq_id)
    outputs = await driver.step(Feed(sick), Feed(seq))
    require(
        outputs[0] is not None and bool(outputs[0].error) and not outputs[0].tokens,
        f"the item gave {outputs[0]}",
    )
    driver.release(sick)
    await driver.decode(_NUM - 2, seq)
    kit.same(whole, seq, "the neighbour of an item with NaN")


@case
async def begin_epoch_forgets(kit: Kit) -> None:
    """After begin_epoch old sequences are unknown, and their slots and KV are free without a release."""
    prompt = kit.long(63)
    cold = await kit.alone(prompt, _NUM)
    driver = await kit.driver()
    old: list[DrivenSequence] = [driver.add(kit.long(64 + i), kit.greedy) for i in range(2)]
    for seq in old:
        await driver.prefill(seq)
    new_driver = await kit.driver()
    driver.epoch = new_driver.epoch
    await refused(driver.step(Feed(old[1])), "a step of a sequence that an older epoch started")
    seq = new_driver.add(prompt, kit.greedy)
    await new_driver.prefill(seq)
    kit.executor.release_cache(old[0].seq_id)  # a late release, of an unknown sequence
    await new_driver.decode(_NUM - 1, seq)
    kit.same(cold, seq, "a new epoch's sequence in an old slot")


@case
async def largest_batch_works(kit: Kit) -> None:
    """As many sequences as declared fit one step, and every size is supported that should be."""
    limit = kit.capabilities.max_batch_size
    require(limit >= 1, f"max_batch_size is {limit}")
    if isinstance(kit.executor, BatchModelExecutor):
        require(1 <= kit.executor.optimal_batch_size() <= limit, "optimal_batch_size is not a supported one")
        require(kit.executor.supports_batch_size(limit), "max_batch_size is not supported")
        require(not kit.executor.supports_batch_size(limit + 1), "more than max_batch_size is supported")
        require(not kit.executor.supports_batch_size(0), "an empty batch is supported")
    prompts = [kit.prompt(2, 70 + i) for i in range(min(limit, _MOST_SEQUENCES))]
    driver = await kit.driver()
    if kit.paged and min(map(len, driver.free_blocks)) < len(prompts):
        raise NotApplicable("there are fewer blocks than sequences")
    seqs = [driver.add(prompt, kit.greedy) for prompt in prompts]
    await driver.prefill(*seqs)
    await driver.decode(2, *seqs)
    for i in (0, len(seqs) - 1):
        kit.same(await kit.alone(prompts[i], 3), seqs[i], f"sequence {i} of the largest batch")


@case
async def longest_sequence_works(kit: Kit) -> None:
    """A sequence of the declared length is computed; one token more is refused."""
    capacity = kit.executor.kv_capacity()
    longest = min(kit.capabilities.max_sequence_length, capacity or 2**31)
    require(kit.info.max_model_len >= kit.capabilities.max_sequence_length, "longer than the model's context")
    if longest > _LONGEST:
        raise NotApplicable(f"{longest} tokens take too long here")
    driver = await kit.driver()
    if kit.paged and min(map(len, driver.free_blocks)) * driver.block_size < longest + 1:
        raise NotApplicable("the blocks hold less than the longest sequence and one token")
    seq = driver.add(kit.prompt(longest - 1, 80), kit.greedy)
    await driver.step(Feed(seq, longest // 2))
    await driver.prefill(seq)
    await driver.decode(1, seq)
    await refused(driver.step(Feed(seq)), f"token {longest + 1} of a sequence")


@case
async def declared_facts_agree(kit: Kit) -> None:
    """info, capabilities, kv_layout and kv_capacity are sound and agree with one another."""
    info, able, layout = kit.info, kit.capabilities, kit.executor.kv_layout()
    require(
        0 < info.vocab_size <= info.logits_width, f"vocabulary {info.vocab_size}, logits {info.logits_width}"
    )
    require(
        0 < able.max_sequence_length <= info.max_model_len, "max_sequence_length exceeds the model's context"
    )
    require(able.paged == layout.paged, f"paged is {able.paged}, there are {len(layout.groups)} groups of KV")
    require(layout.block_size >= 1, f"{layout}")
    require(
        all(one.num_blocks > 0 and one.bytes_per_block > 0 for one in layout.groups), "a block takes no bytes"
    )
    require(able.memory.calculate_total_memory(2, 64, info.num_layers) >= 0, f"{able.memory}")
    require(bool(able.dtypes) and bool(able.devices), "no dtype or device is declared")
    require(info.dtype in able.dtypes, f"the model runs in {info.dtype}, declared are {able.dtypes}")
    capacity = kit.executor.kv_capacity()
    require(capacity is None or 0 < capacity < info.max_model_len, f"kv_capacity is {capacity}")
    await kit.alone(kit.prompt(3, 81), 2)
    require(kit.executor.kv_layout() == layout, "kv_layout changed after warmup")


@case
async def snapshots_are_plain(kit: Kit) -> None:
    """Snapshots are dicts of numbers and strings or None; status and metrics count what happened."""
    before = kit.executor.metrics()
    await kit.alone(kit.long(82), _NUM)
    for name in ("cache_metrics_snapshot", "lora_metrics_snapshot"):
        snapshot = getattr(kit.executor, name)()
        if snapshot is not None:
            plain = all(isinstance(k, str) and isinstance(v, float | int | str) for k, v in snapshot.items())
            require(plain, f"{name} gave {snapshot}")
    # They may be as old as a heartbeat where the executor is another process.
    for _ in range(60):
        status, after = kit.executor.status(), kit.executor.metrics()
        counted = min(
            after.total_steps - before.total_steps, after.total_sampled_tokens - before.total_sampled_tokens
        )
        if counted >= _NUM and status.state is ExecutorState.READY:
            break
        await asyncio.sleep(0.05)
    require(
        status.state is ExecutorState.READY and status.is_ready, f"between two steps the state is {status}"
    )
    require(counted >= _NUM, f"{_NUM} steps and tokens were computed: {before} became {after}")
    require(0 <= status.memory.percent <= 100, f"memory {status.memory}")
    for share in (after.memory_efficiency, after.batch_utilization):
        require(0.0 <= share <= 1.0, f"a share is outside 0..1: {after}")


@case
async def life_is_idempotent(kit: Kit) -> None:
    """warmup and shutdown may come twice; before the one and after the other members raise NotReady, status answers."""
    executor = kit.make()
    require(not executor.status().is_ready, "ready before warmup")
    executor.metrics()
    try:
        executor.info()
        require(False, "info before warmup did not raise NotReady")
    except NotReady:
        pass
    await executor.warmup()
    try:
        info = executor.info()
        driver = await Driver.start(executor)  # warms up once more
        require(executor.info() == info, "a second warmup changed the model")
        seq = driver.add(kit.prompt(4, 83), kit.greedy)
        await driver.prefill(seq)
        await executor.warmup()
        await driver.decode(1, seq)
        kit.same(await kit.alone(kit.prompt(4, 83), 2), seq, "warmup between two steps")
    finally:
        await executor.shutdown()
        await executor.shutdown()
    require(executor.status().state is ExecutorState.SHUTDOWN, f"after shutdown: {executor.status().state}")
    try:
        await executor.begin_epoch(2)
        require(False, "begin_epoch after shutdown did not raise NotReady")
    except NotReady:
        pass
