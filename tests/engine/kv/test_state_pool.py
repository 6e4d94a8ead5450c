"""`StatePool`: slots of states, and the snapshots that later sequences begin with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.kv import cache_points
from engine.kv.kv_cache_manager import KvCacheManager
from engine.kv.state_pool import StatePool
from engine.mailbox import Mailbox
from engine.sequence import Sequence
from engine.sequence_state import ZEROS
from executors.contract import KvGroup, KvLayout, StateLayout
from tests.engine.harness import request

BLOCK = 4


def manager(
    num_slots: int = 8, interval: int = BLOCK, prefix_caching: bool = True, num_blocks: int = 64
) -> KvCacheManager:
    layout = KvLayout(BLOCK, (KvGroup(num_blocks, 64),), StateLayout(64, num_slots, interval))
    return KvCacheManager(layout, "m", prefix_caching)


def pool(kv: KvCacheManager) -> StatePool:
    assert kv.states is not None
    return kv.states


def sequence(seq_id: int, tokens: list[int], **changes: object) -> Sequence:
    seq = Sequence(seq_id, replace(request(tokens, 200), **changes), Mailbox(), 0)  # type: ignore[arg-type]
    seq.take_slot(seq_id)
    return seq


def begin(kv: KvCacheManager, seq: Sequence) -> int:
    """Admit it; returns the number of tokens that it finds."""
    hit = kv.find(seq)
    assert not hit.pending and kv.fits(seq, hit)
    kv.begin(seq, hit)
    seq.admit(hit.num_tokens)
    return hit.num_tokens


def step(kv: KvCacheManager, *parts: tuple[Sequence, int]) -> tuple[list[int], list[int], list[list[int]]]:
    """A step that computes so many tokens of each sequence; returns its sources, destinations and snapshots."""
    kv.begin_step()
    for seq, count in parts:
        end = seq.num_computed_tokens + count
        assert kv.grow(seq, end) and kv.advance_state(seq, end)
        kv.register(seq, end)
    packed = pool(kv).pack([seq for seq, _ in parts])
    for seq, count in parts:
        seq.grant(count, 1)
        seq.receive(False)
    source, target, snapshots = packed
    return source.tolist(), target.tolist(), snapshots.tolist()


def test_a_state_begins_with_zeros_and_goes_on_where_it_is() -> None:
    kv = manager(prefix_caching=False)
    seq = sequence(0, list(range(10)))
    begin(kv, seq)
    [source], [slot], snapshots = step(kv, (seq, 5))
    assert source == ZEROS and not snapshots
    assert step(kv, (seq, 3)) == ([slot], [slot], [])
    kv.free(seq)
    assert pool(kv).num_used == 0
    pool(kv).check_integrity([])


def test_a_chunk_leaves_snapshots_on_its_way_and_none_is_copied_at_its_end() -> None:
    kv = manager()
    seq = sequence(0, list(range(17)), cache_points=(6, 13))
    begin(kv, seq)
    _, [first], snapshots = step(kv, (seq, 12))
    # At 4 on the way; at 12 the destination itself, so that the next step writes to another slot.
    assert [(item, position) for item, position, _ in snapshots] == [(0, 4)]
    [source], [second], snapshots = step(kv, (seq, 4))
    assert source == first != second and not snapshots
    [source], [third], _ = step(kv, (seq, 1))
    assert source == second != third, "the last place below the prompt's end is a cache point too"
    assert pool(kv).num_snapshots == 3
    other = sequence(1, [*range(13), 99, 98])
    kv.begin_step()
    assert begin(kv, other) == 12
    assert step(kv, (other, 3))[0] == [first]
    kv.free(seq)
    kv.free(other)
    pool(kv).check_integrity([])


def test_a_hit_needs_a_snapshot_and_the_story_names_it() -> None:
    kv = manager()
    seq = sequence(0, list(range(17)))
    begin(kv, seq)
    step(kv, (seq, 17))
    assert pool(kv).num_snapshots == 1, "at 16, the last place below the prompt's end"
    parted = sequence(1, [*range(13), 99, 98])
    kv.begin_step()
    hit = kv.find(parted)
    assert (hit.num_tokens, hit.num_in_full_groups, hit.missed_state, hit.state) == (0, 3, True, None)
    told = kv.explain(parted, hit)
    assert (told.matched_tokens, told.missed, told.evicted_tokens, told.evicted_by) == (
        0,
        "evicted",
        12,
        "state",
    )
    # Where the two part is a cache point from now on: a third prompt begins there.
    kv.begin(parted, hit)
    step(kv, (parted, 15))
    third = sequence(2, [*range(13), 77])
    kv.begin_step()
    assert begin(kv, third) == 12
    again = sequence(3, list(range(17)))
    kv.begin_step()
    assert begin(kv, again) == 16


def test_places_between_two_snapshots_are_no_miss_of_one() -> None:
    kv = manager(interval=2 * BLOCK)
    seq = sequence(0, list(range(20)))
    begin(kv, seq)
    step(kv, (seq, 20))
    other = sequence(1, [*range(13), 99, 98])
    kv.begin_step()
    hit = kv.find(other)
    assert (hit.num_tokens, hit.num_in_full_groups, hit.missed_state) == (0, 3, True)
    kv.begin(other, hit)
    step(kv, (other, 15))
    third = sequence(2, [*range(13), 99, 97])
    kv.begin_step()
    hit = kv.find(third)
    assert (hit.num_tokens, hit.num_in_full_groups, hit.missed_state) == (8, 3, False)
    assert kv.explain(third, hit).missed is None


def test_what_this_step_computes_is_waited_for() -> None:
    kv = manager()
    seq, other = sequence(0, list(range(9))), sequence(1, [*range(8), 50])
    begin(kv, seq)
    kv.begin_step()
    assert kv.grow(seq, 9) and kv.advance_state(seq, 9)
    kv.register(seq, 9)
    assert kv.find(other).pending
    kv.begin_step()
    assert not kv.find(other).pending and begin(kv, other) == 8


def test_the_snapshot_used_longest_ago_goes_first() -> None:
    kv = manager(num_slots=4)
    for number in range(3):
        seq = sequence(number, [number] * 9)
        kv.begin_step()
        begin(kv, seq)
        step(kv, (seq, 9))
        kv.free(seq)
    used = sequence(3, [0] * 8 + [5, 6])
    kv.begin_step()
    assert begin(kv, used) == 8
    step(kv, (used, 2))
    kv.free(used)
    found = []
    for number in range(3):
        seq = sequence(4 + number, [number] * 8 + [9])
        kv.begin_step()
        found.append(kv.find(seq).num_tokens)
    assert found == [8, 8, 8], "four slots: three snapshots and the one that was written"
    newer = sequence(9, [7] * 9)
    kv.begin_step()
    begin(kv, newer)
    step(kv, (newer, 9))
    found = []
    for number in range(3):
        kv.begin_step()
        found.append(kv.find(sequence(10 + number, [number] * 8 + [9])).num_tokens)
    assert found == [8, 0, 8]


def test_a_snapshot_goes_with_its_block() -> None:
    kv = manager(num_blocks=3)
    seq = sequence(0, list(range(9)))
    begin(kv, seq)
    step(kv, (seq, 9))
    kv.free(seq)
    assert pool(kv).num_snapshots == 1
    other = sequence(1, list(range(50, 59)))
    kv.begin_step()
    begin(kv, other)  # takes every block
    assert pool(kv).num_snapshots == 0
    pool(kv).check_integrity([other])


def test_a_failed_computation_takes_its_snapshots_along() -> None:
    kv = manager()
    seq = sequence(0, list(range(9)))
    begin(kv, seq)
    step(kv, (seq, 9))
    kv.withdraw(seq)
    assert pool(kv).num_snapshots == 0
    kv.free(seq)
    pool(kv).check_integrity([])


def test_the_rolling_snapshot_replaces_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_points, "ROLLING", 8)
    kv = manager()
    seq = sequence(0, list(range(6)))
    begin(kv, seq)
    step(kv, (seq, 6))
    for token in range(100, 121):
        seq.commit([token])
        step(kv, (seq, 1))
    assert seq.num_computed_tokens == 27 and pool(kv).num_snapshots == 2, "at 4 in the prompt, and at 24"
    kv.free(seq)
    tokens = [*range(6), *range(100, 121)]
    for length, found in ((24, 4), (25, 24), (17, 4)):
        kv.begin_step()
        assert kv.find(sequence(1, tokens[:length])).num_tokens == found


def test_a_long_conversation_does_not_drive_out_where_others_begin() -> None:
    """Each turn goes on from the one before; the beginning of all conversations is used last when the first turn is computed."""
    kv = manager(num_slots=6)
    prompt = list(range(9))
    for turn in range(12):
        seq = sequence(0, prompt, cache_points=(5,))
        kv.begin_step()
        begin(kv, seq)
        step(kv, (seq, len(prompt) - seq.num_computed_tokens))
        kv.free(seq)
        prompt = [*prompt, *range(100 * turn + 100, 100 * turn + 109)]
    assert pool(kv).num_snapshots < 12, "others were driven out"
    kv.begin_step()
    assert kv.find(sequence(1, [*range(5), 99, 98, 97, 96])).num_tokens == 4
    pool(kv).check_integrity([])


def test_a_snapshot_waits_for_the_tokens_that_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps in flight sample the tokens before a place that a later one has reached."""
    monkeypatch.setattr(cache_points, "ROLLING", 8)
    kv = manager()
    seq = sequence(0, list(range(6)))
    begin(kv, seq)
    step(kv, (seq, 6))
    seq.num_pending_tokens = 1
    slots = []
    for _ in range(4):
        kv.begin_step()
        end = seq.num_computed_tokens + 1
        assert kv.grow(seq, end) and kv.advance_state(seq, end)
        kv.register(seq, end)
        slots.append([part.tolist() for part in pool(kv).pack([seq])])
        seq.grant(1, 1)
    assert seq.num_computed_tokens == 10 and pool(kv).num_snapshots == 1
    (_, [at_8], _), ([read], [after], _) = slots[1], slots[2]
    assert read == at_8 != after
    seq.num_pending_tokens = 0
    seq.commit(range(100, 105))
    kv.begin_step()
    assert kv.grow(seq, 11) and kv.advance_state(seq, 11)
    kv.register(seq, 11)
    assert pool(kv).find(seq.block_keys[1]) == at_8
    pool(kv).check_integrity([seq])


def test_whoever_needs_the_whole_prompt_takes_no_snapshots() -> None:
    kv = manager()
    for number, changes in enumerate(({"prompt_logprobs": 0}, {"pooling": "mean"})):
        seq = sequence(number, list(range(9)), **changes)
        kv.begin_step()
        assert begin(kv, seq) == 0
        assert step(kv, (seq, 9))[2] == []
        kv.free(seq)
    assert pool(kv).num_snapshots == 0


def test_slots_are_found_where_all_are_in_use() -> None:
    """As many slots as sequences: snapshots and what is held for others give way."""
    kv = manager(num_slots=2)
    a, b = sequence(0, list(range(12))), sequence(1, list(range(40, 52)))
    begin(kv, a)
    begin(kv, b)
    for _ in range(12):
        step(kv, (a, 1), (b, 1))
    assert pool(kv).num_used == 2
    kv.free(a)
    kv.free(b)
    pool(kv).check_integrity([])


def test_books_that_do_not_balance_are_noticed() -> None:
    kv = manager()
    seq = sequence(0, list(range(9)))
    begin(kv, seq)
    step(kv, (seq, 9))
    with pytest.raises(RuntimeError, match="references"):
        pool(kv).check_integrity([])
    pool(kv)._free.pop()
    with pytest.raises(RuntimeError, match="free twice, or lost"):
        pool(kv).check_integrity([seq])


def test_rejected_drafts_leave_the_state_where_it_was() -> None:
    """The next step computes the accepted tokens again: their blocks get no key, and no window leaves what they read, before."""
    kv = manager()
    seq = sequence(0, list(range(6)))
    begin(kv, seq)
    [before] = step(kv, (seq, 6))[1]
    seq.num_pending_tokens = 0
    seq.commit([100])
    for accepted, computed in ((1, 6), (3, 10)):
        kv.begin_step()
        count, num_drafts = seq.num_uncomputed_tokens + 2, 2
        end = seq.num_computed_tokens + count
        assert kv.grow(seq, end) and kv.allows_drafts(seq, end) and kv.advance_state(seq, end, num_drafts)
        kv.register(seq, kv.num_named(seq, end, num_drafts))
        assert seq.num_keyed_blocks == 1
        seq.verify_drafts()
        position = seq.num_computed_tokens
        (source, target, _) = pool(kv).pack([seq])
        assert source.tolist() == [before] != target.tolist()
        seq.grant(count, 1)
        seq.receive(False)
        seq.settle(position + count - num_drafts - 1 + accepted)
        pool(kv).settle(seq, accepted == num_drafts + 1)
        if accepted <= num_drafts:
            seq.replay_from(position)
        seq.commit(range(200, 200 + accepted))
        assert seq.state is not None and seq.state.slot == (
            before if accepted <= num_drafts else target.tolist()[0]
        )
        assert seq.num_computed_tokens == computed
        assert seq.settled == min(computed, seq.num_known_tokens - 1)
        pool(kv).check_integrity([seq])
    assert seq.num_uncomputed_tokens == 1 and seq.num_replayed_tokens == 0
    seq.name_blocks(3)
    seq.replay_from(6)
    with pytest.raises(RuntimeError, match="writes again to blocks"):
        pool(kv).check_integrity([seq])
