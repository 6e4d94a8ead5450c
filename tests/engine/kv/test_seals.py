"""`SealTable`: when a block counts as sealed, and when no longer."""

from __future__ import annotations

import numpy as np
import pytest

from engine.block_table import BlockTable
from engine.kv.seals import GroupSeals, SealTable
from executors.contract import KvGroup, KvLayout, StateLayout, UnifiedBatch, UnifiedOutput

LAYOUT = KvLayout(4, (KvGroup(8, 64), KvGroup(8, 64, window=6)), fingerprint="a")


def table() -> SealTable:
    return SealTable(LAYOUT, [GroupSeals(), GroupSeals()])


def table_with_states() -> SealTable:
    """Of one group and slots of states, which are its group 1."""
    layout = KvLayout(4, (KvGroup(8, 64),), StateLayout(64, 6, 4), fingerprint="a")
    return SealTable(layout, [GroupSeals(), GroupSeals()])


def step(seals: SealTable, step_id: int) -> UnifiedBatch:
    """A step without items that seals what was asked for."""
    none = np.empty(0, np.int32)
    return UnifiedBatch(
        epoch=1, step_id=step_id, seq_ids=none.astype(np.int64), slots=none, num_q_tokens=none, pos_offsets=none,
        is_final_chunk=none.astype(np.bool_), num_draft_tokens=none, token_ids=none, seals=seals.take(step_id),
    )  # fmt: skip


def answer(*checksums: int) -> UnifiedOutput:
    none = np.empty(0, np.int32)
    return UnifiedOutput(none, none, checksums=np.array(checksums, np.uint64))


def request(seals: SealTable, *blocks: int, group: int = 0) -> None:
    """A sequence fills these blocks."""
    seals.request([BlockTable(0, list(blocks) if group == index else []) for index in range(2)], 0, 9)


def sealed(seals: SealTable) -> list[tuple[int, int, int]]:
    """(group, block, checksum) of what would be offered."""
    offer = seals.offer()
    if offer is None:
        return []
    return list(zip(offer.groups.tolist(), offer.blocks.tolist(), offer.checksums.tolist(), strict=True))


def test_a_block_is_sealed_when_its_step_is_committed() -> None:
    seals = table()
    request(seals, 3, 1)
    request(seals, 3, group=1)
    batch = step(seals, 1)
    assert batch.seals.tolist() == [[0, 3], [0, 1], [1, 3]] and sealed(seals) == []
    seals.commit(batch, answer(2**64 - 1, 20, 30))
    assert sealed(seals) == [(0, 1, 20), (0, 3, 2**64 - 1), (1, 3, 30)]


def test_each_block_is_asked_for_once() -> None:
    seals = table()
    request(seals, 3)
    first = step(seals, 1)
    request(seals, 3)  # in flight
    assert len(step(seals, 2).seals) == 0
    seals.commit(first, answer(7))
    request(seals, 3)  # sealed, and found by another sequence
    assert len(step(seals, 3).seals) == 0


def test_a_block_that_was_freed_and_filled_anew_has_the_checksum_of_its_last_step() -> None:
    """Both steps are in flight when the first one answers, and the executor may die before the second one does."""
    seals = table()
    request(seals, 3)
    first = step(seals, 1)
    seals._groups[0].drop([3])
    request(seals, 3)
    second = step(seals, 2)
    seals.commit(first, answer(7))
    assert sealed(seals) == []
    seals.commit(second, answer(8))
    assert sealed(seals) == [(0, 3, 8)]


def test_a_block_dropped_while_its_step_is_put_together_is_not_asked_for() -> None:
    seals = table()
    request(seals, 3, 4)
    seals._groups[0].drop([3])
    assert step(seals, 1).seals.tolist() == [[0, 4]]


def test_a_window_that_has_left_a_block_does_not_seal_it() -> None:
    seals = table()
    seals.request([BlockTable(0, [1, 2, 3]), BlockTable(2, [7])], 1, 3)
    assert step(seals, 1).seals.tolist() == [[0, 2], [0, 3], [1, 7]]
    seals.request([BlockTable(0, [1, 2, 3, 4]), BlockTable(9, [])], 3, 4)
    assert step(seals, 2).seals.tolist() == [[0, 4]]


def test_a_snapshot_is_sealed_with_the_blocks_of_its_step() -> None:
    seals = table_with_states()
    seals.request([BlockTable(0, [3])], 0, 9)
    seals.request_snapshot(5)
    batch = step(seals, 1)
    assert batch.seals.tolist() == [[0, 3], [1, 5]] and sealed(seals) == []
    seals.commit(batch, answer(7, 8))
    assert sealed(seals) == [(0, 3, 7), (1, 5, 8)]


def test_a_snapshot_that_was_evicted_meanwhile_has_the_checksum_of_its_last_step() -> None:
    seals = table_with_states()
    seals.request_snapshot(5)
    first = step(seals, 1)
    seals._groups[1].drop((5,))
    seals.commit(first, answer(7))
    assert sealed(seals) == []
    seals.request_snapshot(5)
    second = step(seals, 2)
    seals.drop_requests()
    seals.commit(second, answer(8))
    assert sealed(seals) == []


def test_an_answer_without_checksums_seals_nothing() -> None:
    seals = table()
    request(seals, 3)
    seals.commit(step(seals, 1), UnifiedOutput(np.empty(0, np.int32), np.empty(0, np.int32)))
    assert sealed(seals) == []


def test_lost_steps_seal_nothing() -> None:
    seals = table()
    request(seals, 3)
    batch = step(seals, 1)
    request(seals, 4)
    seals.drop_requests()
    seals.commit(batch, answer(7))
    assert sealed(seals) == [] and len(step(seals, 2).seals) == 0


def test_a_life_of_another_fingerprint_begins_without_seals() -> None:
    seals = table()
    request(seals, 3)
    seals.commit(step(seals, 1), answer(7))
    seals.begin_life("a")
    assert sealed(seals) == [(0, 3, 7)]
    seals.begin_life("b")
    assert sealed(seals) == [] and seals.active
    seals.begin_life("")
    assert not seals.active


@pytest.mark.parametrize(
    "layout", [KvLayout(4, LAYOUT.groups), KvLayout(4, fingerprint="a")],
)  # fmt: skip
def test_nothing_is_asked_for_where_nothing_can_be_adopted(layout: KvLayout) -> None:
    seals = SealTable(layout, [GroupSeals() for _ in layout.groups])
    request(seals, 3)
    assert not seals.active and len(seals.take(1)) == 0
