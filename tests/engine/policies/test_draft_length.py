"""How many drafts are verified: as many as pay, by what was accepted and what steps take."""

from __future__ import annotations

import random

import pytest

from engine.mailbox import Mailbox
from engine.policies.draft_length import DraftLengths
from engine.policies.draft_room import within_room
from engine.policies.drafter import ModelDrafter, NgramDrafter
from engine.sequence import Sequence
from executors.contract import Pace
from tests.engine.harness import request

FLAT = Pace(0.001, ((1, 0.010), (8, 0.0105), (64, 0.014)), ((1, 0.001), (8, 0.001), (64, 0.0012)))
"""A machine whose steps take as long for many rows as for one."""
STEEP = Pace(0.010, ((1, 0.010), (8, 0.080), (64, 0.640)), ((1, 0.001), (8, 0.008), (64, 0.064)))
"""One whose steps take as much longer as they have rows."""


def sequence(tokens: int = 10) -> Sequence:
    return Sequence(1, request(list(range(tokens)), 10_000), Mailbox(), 0)


def say(seq: Sequence, *token_ids: int) -> None:
    seq.commit(token_ids)


def settled(
    pace: Pace, chance: float, from_model: bool = True, most: int = 6, num_seqs: int = 1
) -> list[int]:
    """What is verified of proposals of `most` tokens after many, of which that share was right."""
    lengths = DraftLengths(most, from_model)
    lengths.expect(pace)
    seqs = [sequence() for _ in range(num_seqs)]
    token = 100
    for turn in range(200):
        proposals = [(seq, [token] + [0] * (most - 1)) for seq in seqs]
        lengths.verified(num_seqs, proposals)
        for seq in seqs:
            say(seq, token if (turn * 7919) % 1000 < 1000 * chance else token + 1)
        token += 2
    # Two in a row: one may be the plain step that is due now and then.
    if from_model:
        return lengths.wanted(num_seqs, seqs)
    return [len(part) for part in lengths.verified(num_seqs, [(seq, [1] * most) for seq in seqs])]


def test_the_better_the_drafts_the_longer_they_are() -> None:
    found = [settled(FLAT, chance)[0] for chance in (0.05, 0.4, 0.7, 0.95)]
    assert found == sorted(found) and found[0] < found[-1] == 6


def test_where_rows_cost_as_much_as_steps_there_are_none() -> None:
    assert settled(STEEP, 0.9) == [0]
    assert settled(STEEP, 0.9, from_model=False) == [0]


def test_a_batch_that_fills_the_machine_has_none() -> None:
    pace = Pace(0.002, ((1, 0.010), (8, 0.012), (64, 0.120)), ((1, 0.001), (8, 0.002), (64, 0.010)))
    lengths = DraftLengths(5, True)
    lengths.expect(pace)
    assert lengths.could_pay(1) and not lengths.could_pay(64)
    assert settled(pace, 0.9)[0] > 0
    assert settled(pace, 0.9, num_seqs=32) == [0] * 32


def _least_likely_cut(lengths: list[int], chances: list[float], room: int) -> list[int]:
    """Drafts taken away one by one: the last of the longest proposal, of equals the one with the least chance, the last one."""
    left = list(lengths)
    while sum(left) > room:
        left[max(range(len(left)), key=lambda i: (left[i], -chances[i], i))] -= 1
    return left


def test_where_a_step_has_room_for_fewer_the_longest_give_way() -> None:
    rng = random.Random(4)
    for _ in range(500):
        count = rng.randint(1, 9)
        lengths = [rng.choice((0, 0, 1, 2, 5, 32)) for _ in range(count)]
        chances = [rng.choice((0.1, 0.5, 0.5, 0.9)) for _ in range(count)]
        room = rng.randint(0, sum(lengths) + 2)
        found = within_room(lengths, chances, room)
        assert found == _least_likely_cut(lengths, chances, room)
        assert sum(found) == min(room, sum(lengths))
    assert within_room([5, 1, 5], [0.5, 0.1, 0.9], 6) == [2, 1, 3]


@pytest.mark.parametrize("pace", [None, FLAT])
@pytest.mark.parametrize("from_model", [False, True])
def test_no_step_verifies_more_drafts_than_there_is_room_for(pace: Pace | None, from_model: bool) -> None:
    lengths = DraftLengths(6, from_model)
    lengths.expect(pace, room=13)
    seqs = [sequence() for _ in range(5)]
    parts = lengths.verified(5, [(seq, [1] * 6) for seq in seqs])
    assert sorted(map(len, parts)) == [2, 2, 3, 3, 3]
    assert sum(lengths.wanted(5, seqs)) == 13
    free = DraftLengths(6, from_model)
    free.expect(pace)
    assert sum(map(len, free.verified(5, [(seq, [1] * 6) for seq in seqs]))) == 30


def test_each_sequence_has_its_own_length() -> None:
    lengths = DraftLengths(5, False)
    lengths.expect(FLAT)
    good, bad = sequence(), sequence()
    for turn in range(40):
        lengths.verified(2, [(good, [turn, 0]), (bad, [turn, 0])])
        say(good, turn)
        say(bad, 999)
    parts = lengths.verified(2, [(good, [1] * 5), (bad, [1] * 5)])
    assert len(parts[0]) > len(parts[1])


def test_what_was_measured_counts_more_than_what_was_expected() -> None:
    """The pace says that rows are free; steps say otherwise."""
    lengths = DraftLengths(4, False)
    lengths.expect(FLAT)
    seq = sequence()

    def verified() -> int:
        return len(lengths.verified(1, [(seq, [1] * 4)])[0])

    assert verified() == 4
    for _ in range(30):
        lengths.observe(1, 0, 0.010)
        lengths.observe(1, 4, 0.060)
    assert verified() < 4


def test_a_step_that_took_no_time_teaches_nothing() -> None:
    """Two results that are taken in at once: the later step seems to have taken none."""
    lengths = DraftLengths(4, True)
    lengths.expect(FLAT)
    lengths.observe(1, 0, 0.0)
    lengths.observe_drafting(1, 4, 0.0)
    assert lengths.wanted(1, [sequence()]) == [4]


def test_a_plain_step_comes_now_and_then() -> None:
    lengths = DraftLengths(4, False)
    lengths.expect(FLAT)
    seq, plain = sequence(), 0
    for _ in range(300):
        part = lengths.verified(1, [(seq, [1] * 4)])[0]
        plain += not part
        lengths.observe(1, len(part), 0.01)
    assert 2 <= plain <= 6


def test_a_sequence_that_was_given_up_gets_another_chance() -> None:
    lengths = DraftLengths(4, True)
    lengths.expect(Pace(0.001, FLAT.decode_steps, ((1, 0.004),)))
    seq = sequence()
    for turn in range(30):
        lengths.verified(1, [(seq, [turn])])
        say(seq, 500 + turn)
    assert lengths.wanted(1, [seq]) == [0]
    tried = []
    for _ in range(60):
        say(seq, 7)
        tried += lengths.wanted(1, [seq])
    assert any(tried) and not any(tried[:40])


def test_without_a_pace_all_are_verified() -> None:
    lengths = DraftLengths(3, True)
    lengths.expect(None)
    seq = sequence()
    assert lengths.could_pay(64) and lengths.wanted(64, [seq]) == [3]
    assert lengths.verified(64, [(seq, [1, 2, 3])]) == [[1, 2, 3]]


def test_verdicts_are_counted_by_place() -> None:
    lengths = DraftLengths(3, False)
    for accepted in (0, 1, 3):
        lengths.verdict(3, accepted)
    stats = lengths.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (3, 9, 4)
    assert stats.accepted_at == [2, 1, 1]


def test_guesses_count_for_the_tokens_that_they_were_made_for() -> None:
    drafter, seq = ModelDrafter(), sequence()
    drafter.receive(seq, [1, 2])
    assert drafter.propose(seq) == [1, 2] and drafter.propose(seq) == []
    drafter.receive(seq, [1, 2])
    say(seq, 5)
    assert drafter.propose(seq) == []


def test_an_index_outlives_preemption() -> None:
    seq = sequence()
    drafter = NgramDrafter(3)
    say(seq, 50, 51, 52, 53, 50, 51)
    assert drafter.propose(seq) == [52, 53, 50]
    index = drafter._indexes[seq]
    seq.roll_back()
    assert drafter.propose(seq) == [52, 53, 50] and drafter._indexes[seq] is index
    assert index.num_tokens == seq.num_known_tokens


@pytest.mark.parametrize(("longest", "shortest"), [(3, 1), (5, 5), (2, 2), (8, 2)])
def test_ngrams_are_what_a_search_finds(longest: int, shortest: int) -> None:
    """The index against a search through all tokens, for all prefixes of a text that repeats itself."""
    text = [(i * i // 7) % 5 for i in range(300)] + [0, 0, 0, 1] * 10
    drafter, seq = NgramDrafter(4, longest, shortest), sequence(0 + 1)
    seq.request.prompt_token_ids[0] = text[0]
    for end in range(1, len(text) + 1):
        if end > 1:
            say(seq, text[end - 1])
        assert drafter.propose(seq) == _searched(text[:end], longest, shortest, 4), end


def _searched(tokens: list[int], longest: int, shortest: int, count: int) -> list[int]:
    for length in range(min(longest, len(tokens)), shortest - 1, -1):
        for begin in range(len(tokens) - length - 1, -1, -1):
            if tokens[begin : begin + length] == tokens[-length:]:
                return (tokens[begin + length :] * count)[:count]
    return []
