"""The short way by which tables of decoding sequences go on (`Stride`) does what the long one does, and names what it may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.kv import cache_points
from engine.kv.adoption import hold_over
from engine.kv.kv_cache_manager import KvCacheManager
from engine.mailbox import Mailbox
from engine.sequence import Sequence
from executors.contract import KvGroup, KvLayout, TableUpdates
from tests.engine.harness import request

BLOCK = 4
END = 99
"""An id that ends a turn."""


def manager(*windows: int | None, fingerprint: str = "", num_blocks: int = 240) -> KvCacheManager:
    groups = tuple(KvGroup(num_blocks, 1, window) for window in windows)
    return KvCacheManager(KvLayout(BLOCK, groups, fingerprint=fingerprint), most_granted=16)


def admitted(kv: KvCacheManager, prompt: list[int], slot: int = 0) -> Sequence:
    seq = Sequence(1 + slot, request(prompt, 10**6, stop=(END,)), Mailbox(), 0)
    seq.take_slot(slot)
    kv.begin(seq, kv.find(seq))
    seq.admit(0)
    return seq


def compute(kv: KvCacheManager, seq: Sequence, count: int) -> None:
    """A step with the next `count` tokens of a sequence, whose result is in when this returns."""
    kv.begin_step()
    end = seq.num_computed_tokens + count
    assert kv.grow(seq, end)
    kv.register(seq, end)
    sampled = seq.grant(count, 1)
    assert seq.receive(sampled)
    if sampled:
        seq.commit([seq.num_known_tokens % 98])
    else:
        seq.settle_chunk(end)


def seal(kv: KvCacheManager) -> None:
    """Each step that was to seal a block has done so."""
    for group in kv.groups:
        group.seals.checksums.update(dict.fromkeys(group.seals.requests, 1))
        group.seals.requests.clear()


def rows(updates: TableUpdates) -> list[tuple[int, ...]]:
    """(slot, group, index, block) of each block that the executor is told of, rising."""
    places = zip(updates.slots, updates.groups, updates.starts, updates.counts, strict=True)
    blocks = iter(updates.block_ids.tolist())
    return sorted(
        (int(slot), int(group), int(begin) + i, next(blocks))
        for slot, group, begin, count in places
        for i in range(count)
    )


def story(kv: KvCacheManager, prompt: list[int], steps: int) -> Iterator[Any]:
    """What is to be seen of a sequence and of the groups after each of its steps."""
    seq = admitted(kv, prompt)
    kv.take_updates()
    while seq.num_uncomputed_tokens > 1:
        compute(kv, seq, min(8, seq.num_uncomputed_tokens))
        kv.take_updates()
    for number in range(steps):
        compute(kv, seq, 1)
        told = rows(kv.take_updates())
        assert all(seq.block_tables[group].part(at, at + 1) == [block] for _, group, at, block in told)
        if number % 16 == 0:
            kv.check_integrity([seq])
        yield (
            [row[:3] for row in told],
            [(table.first, len(table.blocks)) for table in seq.block_tables],
            [set(group.cache.blocks.values()) for group in kv.groups],
            [(group.pool.num_used, group.pool.num_kept) for group in kv.groups],
        )
    kv.free(seq)
    yield [set(group.cache.blocks.values()) for group in kv.groups], kv.num_used


@pytest.mark.parametrize(
    "windows", [(None, 6, 20), (None, 300), (20,), (None, 21, None)], ids=lambda windows: str(windows)
)
@pytest.mark.parametrize(("length", "rolling"), [(9, 256), (251, 256), (9, 20)])
def test_the_short_way_does_what_the_long_one_does(
    windows: tuple[int | None, ...], length: int, rolling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_points, "ROLLING", rolling)
    prompt = np.random.default_rng(length).integers(0, 98, length).tolist()
    prompt[length // 3] = END
    short, long = manager(*windows), manager(*windows)
    taken: list[bool] = []
    step_on = short._step_on

    def counted(seq: Sequence, begin: int) -> bool:
        taken.append(step_on(seq, begin))
        return taken[-1]

    monkeypatch.setattr(short, "_step_on", counted)
    monkeypatch.setattr(long, "_step_on", lambda seq, begin: False)
    both = zip(story(short, prompt, 530), story(long, prompt, 530), strict=True)
    for number, (one, other) in enumerate(both):
        assert one == other, f"after step {number}"
    assert sum(taken) > 0.9 * len(taken)


@pytest.mark.parametrize("fingerprint", ["", "a"])
def test_a_window_that_slid_without_room_to_grow_does_not_leave_a_block_twice(fingerprint: str) -> None:
    kv = manager(None, 8, 21, fingerprint=fingerprint)
    seq = grown(kv)
    full = kv.groups[0].pool
    num_refused = 0
    for _ in range(60):
        seal(kv)
        taken = full.allocate(full.num_free)
        assert taken is not None
        num_refused += not kv.grow(seq, seq.num_computed_tokens + 1)
        full.release(taken)
        compute(kv, seq, 1)
        assert seq.stride is not None or seq.num_computed_tokens % BLOCK != 1
        for group, table in zip(kv.groups, seq.block_tables, strict=True):
            assert table.first <= group.lowest(seq.settled)
    assert num_refused == 60 // BLOCK


def test_a_window_that_leaves_a_block_too_early_is_noticed() -> None:
    kv = manager(None, 8)
    seq = grown(kv)
    kv.check_integrity([seq])
    kv.groups[1].release(seq.slide_table(1, kv.groups[1].lowest(seq.settled) + 1))
    with pytest.raises(RuntimeError, match="left what sequence 1 reads in group 1"):
        kv.check_integrity([seq])


def test_a_window_takes_the_block_that_it_leaves() -> None:
    kv = manager(None, 8)
    seq = admitted(kv, [1] * 6)
    compute(kv, seq, 6)
    for _ in range(100):
        compute(kv, seq, 1)
    table = seq.block_tables[1]
    oldest, first = table.blocks[0], table.first
    while table.first == first:
        compute(kv, seq, 1)
    assert table.blocks[-1] == oldest and kv.groups[1].pool.num_used == len(table.blocks)


def test_the_seal_of_a_block_goes_before_it_is_taken_again() -> None:
    kv = manager(None, 8, fingerprint="a")
    seq = admitted(kv, [1] * 6)
    compute(kv, seq, 6)
    seals = kv.groups[1].seals
    for _ in range(200):
        compute(kv, seq, 1)
        seal(kv)
        filled = seq.num_computed_tokens // BLOCK
        table = seq.block_tables[1]
        assert [block in seals.checksums for block in table.blocks] == [
            index < filled for index in range(table.first, table.end)
        ]


def test_a_table_that_steps_and_grows_is_told_of_both_in_order() -> None:
    """It ends with the latest entry."""
    kv = manager(None, 8)
    seq = admitted(kv, [1] * 6)
    compute(kv, seq, 6)
    while seq.num_computed_tokens % BLOCK:
        compute(kv, seq, 1)
    kv.take_updates()
    assert kv.grow(seq, seq.num_computed_tokens + 1) and kv.changes.stepped
    assert kv.grow(seq, seq.num_computed_tokens + 12)
    updates = kv.take_updates()
    for group in (0, 1):
        starts = updates.starts[updates.groups == group].tolist()
        assert starts == sorted(starts) and len(starts) == 2


def names(kv: KvCacheManager) -> list[int]:
    return [len(group.cache.blocks) for group in kv.groups]


def grown(kv: KvCacheManager) -> Sequence:
    seq = admitted(kv, [1] * 9)
    compute(kv, seq, 9)
    for _ in range(30):
        compute(kv, seq, 1)
    return seq


def test_blocks_of_an_output_are_found_in_windows_once_it_ends() -> None:
    kv = manager(None, 8)
    seq = grown(kv)
    assert names(kv) == [9, 2], "all in the full group, those of the prompt in the other"
    kv.free(seq)
    assert names(kv) == [9, 2 + 2], "and the window before the end"


def test_what_failed_gets_no_name_at_its_end() -> None:
    kv = manager(None, 8)
    seq = grown(kv)
    kv.withdraw(seq)
    kv.free(seq)
    assert names(kv) == [0, 0]


def test_what_a_lost_executor_has_not_sealed_gets_no_name() -> None:
    kv = manager(None, 8, fingerprint="a")
    seq = grown(kv)
    hold_over(kv, [seq])
    kv.free(seq)
    assert names(kv) == [0, 0]


def test_what_one_window_leaves_at_a_failure_another_sequence_finds_in_its_own_block() -> None:
    kv = manager(None, 8, fingerprint="a")
    ahead, behind = admitted(kv, [1] * 6), admitted(kv, [1] * 6, slot=1)
    for seq, num_steps in ((ahead, 14), (behind, 10)):  # the same tokens
        compute(kv, seq, 6)
        for _ in range(num_steps):
            seal(kv)
            compute(kv, seq, 1)
    seal(kv)
    assert hold_over(kv, [ahead, behind])
    for seq in (ahead, behind):
        kv.free(seq)
    assert kv.find(behind).num_tokens == behind.num_computed_tokens == 16
