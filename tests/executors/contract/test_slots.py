import numpy as np
import pytest

from executors.contract.batch import SequenceStart, TableUpdates, UnifiedBatch
from executors.contract.errors import InvalidInput
from executors.contract.slots import SlotTable


def start(seq_id: int, slot: int) -> SequenceStart:
    return SequenceStart(seq_id, slot, np.array([1, 2], np.int32), np.empty(0, np.int32))


def tables(*rows: tuple[int, int, int, list[int]]) -> TableUpdates:
    """Rows of (slot, group, first, block ids)."""
    columns = [np.array([row[i] for row in rows], np.int32) for i in range(3)]
    counts = np.array([len(row[3]) for row in rows], np.int32)
    return TableUpdates(*columns, counts, np.array([b for row in rows for b in row[3]], np.int32))


def batch(
    *items: tuple[int, int], starts: tuple[SequenceStart, ...] = (), updates: TableUpdates | None = None
):
    """A decode step of (seq_id, slot) items."""
    n = len(items)
    ones = np.ones(n, np.int32)
    return UnifiedBatch(
        1, 1, np.array([i[0] for i in items], np.int64), np.array([i[1] for i in items], np.int32), ones, ones,
        ones.astype(bool), ones * 0, ones, starts=starts, tables=updates or TableUpdates.empty(),
    )  # fmt: skip


def held(table: SlotTable, slot: int, group: int = 0) -> list[int]:
    return table.block_tables_of(slot)[group].tolist()


def test_start_update_release() -> None:
    table = SlotTable(4, 8, windows=(None, None))
    table.apply(batch((7, 2), starts=(start(7, 2),), updates=tables((2, 0, 0, [5, 6]), (2, 1, 0, [9]))))
    assert (held(table, 2), held(table, 2, 1)) == ([5, 6], [9])
    assert (table.slot_of(7), table.start_of(2).seq_id, len(table)) == (2, 7, 1)
    table.apply(batch((7, 2), updates=tables((2, 0, 2, [1]), (2, 1, 0, [3, 4]))))
    assert (held(table, 2), held(table, 2, 1)) == ([5, 6, 1], [3, 4])
    assert table.release(7) == 2
    assert (table.slot_of(7), len(table), table.release(7)) == (None, 0, None)
    with pytest.raises(InvalidInput, match="empty"):
        table.start_of(2)


def test_the_table_of_a_window_may_begin_above_0() -> None:
    table = SlotTable(2, 8, windows=(None, 6))
    table.apply(batch((1, 0), starts=(start(1, 0),), updates=tables((0, 0, 0, [3, 4, 5, 6]), (0, 1, 3, [9]))))
    assert held(table, 0) == [3, 4, 5, 6] and held(table, 0, 1)[3:] == [9]
    table.update(tables((0, 0, 4, [7]), (0, 1, 4, [8])))
    assert held(table, 0)[4:] == [7] and held(table, 0, 1)[3:] == [9, 8]
    table.update(tables((0, 1, 7, [2])))
    assert held(table, 0, 1)[7:] == [2], "after a preemption, beyond where it ended"
    with pytest.raises(InvalidInput, match="cannot write 1 ids from index 6"):
        table.update(tables((0, 0, 6, [1])))
    with pytest.raises(InvalidInput, match="cannot write 2 ids from index 7"):
        table.update(tables((0, 1, 7, [1, 2])))


def test_several_updates_of_one_table_follow_one_another() -> None:
    table = SlotTable(1, 8)
    table.apply(
        batch(
            (1, 0), starts=(start(1, 0),), updates=tables((0, 0, 0, [1]), (0, 0, 1, [2, 3]), (0, 0, 2, [4]))
        )
    )
    assert held(table, 0) == [1, 2, 4]


def test_a_second_start_begins_with_an_empty_table() -> None:
    table = SlotTable(2, 8)
    table.apply(batch((1, 0), starts=(start(1, 0),), updates=tables((0, 0, 0, [1, 2]))))
    table.remember(1, 4, [9])
    table.apply(batch((1, 0), starts=(start(1, 0),)))
    assert held(table, 0) == []
    with pytest.raises(InvalidInput):
        table.recall(1, 4)


REFUSED = {
    "outside": batch((2, 9), starts=(start(2, 9),)),
    "still belongs": batch((2, 0), starts=(start(2, 0),)),
    "started twice": batch((2, 1), starts=(start(2, 1), start(3, 1))),
    "holds slot 0 already": batch((1, 1), starts=(start(1, 1),)),
    "never started": batch((5, 1)),
    "cannot write 1 ids from index 2": batch((2, 1), starts=(start(2, 1),), updates=tables((1, 0, 2, [1]))),
    "cannot write 9 ids": batch((1, 0), updates=tables((0, 0, 0, [1] * 9))),
    "slot is empty": batch((1, 0), updates=tables((1, 0, 0, [1]))),
    "no block table of slot 0, group 1": batch((1, 0), updates=tables((0, 1, 0, [1]))),
    "no block table of slot -1": batch((1, 0), updates=tables((-1, 0, 0, [1]))),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refused_batch_changes_nothing(message: str) -> None:
    table = SlotTable(2, 8)
    table.apply(batch((1, 0), starts=(start(1, 0),), updates=tables((0, 0, 0, [4, 5]))))
    with pytest.raises(InvalidInput, match=message):
        table.apply(REFUSED[message])
    assert (held(table, 0), len(table), table.slot_of(1), table.slot_of(2)) == ([4, 5], 1, 0, None)


def test_clear_forgets_everything() -> None:
    table = SlotTable(2, 8)
    table.apply(batch((1, 0), starts=(start(1, 0),)))
    table.remember(1, 2, [7, 8])
    assert (table.recall(1, 2), table.recall(1, 3)) == (7, 8)
    table.failed = True
    table.clear()
    assert (len(table), table.failed) == (0, False)
    table.apply(batch((1, 1), starts=(start(1, 1),)))
    with pytest.raises(InvalidInput, match="no token was sampled"):
        table.recall(1, 2)


def test_hidden_sums_go_on_where_they_ended() -> None:
    table = SlotTable(1, 0)
    one = np.ones(2)
    assert table.add_hidden(0, 0, one, 3).tolist() == [1, 1]
    assert table.add_hidden(0, 3, one, 2).tolist() == [2, 2]
    with pytest.raises(InvalidInput, match="5 tokens were seen"):
        table.add_hidden(0, 4, one, 1)
    assert table.add_hidden(0, 0, one, 1).tolist() == [1, 1]


def test_an_owning_executor_has_no_tables() -> None:
    table = SlotTable(1, 0)
    table.apply(batch((1, 0), starts=(start(1, 0),)))
    assert table.block_tables_of(0) == ()


def test_updates_of_a_block_each_are_what_they_are_one_by_one() -> None:
    """Those of many tables at once are taken in together; sound or not, the outcome is that of the same updates singly."""

    class OneByOne(SlotTable):
        def _one_block_each(self, tables: TableUpdates) -> bool:
            return False

    rng = np.random.default_rng(3)
    starts = tuple(start(slot + 1, slot) for slot in range(6))
    taken = refused = 0
    for _ in range(300):
        windows = (None, 8, None)
        together, singly = SlotTable(8, 4, windows), OneByOne(8, 4, windows)
        for table in (together, singly):
            table.apply(batch(starts=starts))
            for slot in range(6):
                table.update(
                    tables(*((slot, group, first, [9]) for group in range(3) for first in range(slot % 4)))
                )
        # Now and then a slot that is empty, one or a group that is none, a hole, or the end of a table.
        slots = rng.permutation([*range(6)] * 3 + [6, 8, -1])[: rng.integers(1, 5)].tolist()
        entries = [
            (slot, group, min(max(slot % 4 + int(rng.integers(-1, 2)), 0), 4), [slot + 20])
            for slot, group in zip(
                slots,
                rng.choice([0, 0, 1, 2, 3], len(slots), p=[0.3, 0.2, 0.3, 0.19, 0.01]).tolist(),
                strict=True,
            )
        ]
        wrong = False
        for entry in entries:
            try:
                singly.update(tables(entry))
            except InvalidInput:
                wrong = True
        if wrong:
            before = together.num_blocks.copy(), np.array(together.block_tables)
            with pytest.raises(InvalidInput):
                together.update(tables(*entries))
            assert np.array_equal(together.num_blocks, before[0])
            assert np.array_equal(together.block_tables, before[1])
            refused += 1
        else:
            together.update(tables(*entries))
            assert np.array_equal(together.num_blocks, singly.num_blocks)
            assert np.array_equal(together.block_tables, singly.block_tables)
            taken += 1
    assert taken > 50 and refused > 50
