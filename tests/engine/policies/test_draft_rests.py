"""Drafts compete with steps that are launched ahead: a played device, whose steps cost what rows cost and wait for the host."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.mailbox import Mailbox
from engine.policies import draft_rests
from engine.policies.draft_length import DraftLengths
from engine.sequence import Sequence
from executors.contract import Pace
from tests.engine.harness import request

STEP_S, ROW_S = 1e-3, 2e-5
"""Of a step, and of each row beyond the first."""
PACE = Pace(ROW_S, ((1, STEP_S), (8, STEP_S + 7 * ROW_S), (64, STEP_S + 63 * ROW_S)))
MOST = 4


def played(host_s: float, chance: float, tokens: int = 2000) -> tuple[float, DraftLengths]:
    """Tokens a second of one stream of which that share of drafts is right, and the policy. `host_s`: what the host takes
    between a step and the next, unless that was launched ahead."""
    lengths = DraftLengths(MOST, False)
    lengths.expect(PACE, overlaps=True)
    seq, at, time, ahead = Sequence(1, request(list(range(10)), 100_000), Mailbox(), 0), 0, 0.0, False

    def right(number: int) -> bool:
        return (number * 7919) % 1000 < 1000 * chance

    while at < tokens:
        if not lengths.could_pay(1):
            seconds = STEP_S
            time += seconds + (0.0 if ahead else host_s)
            lengths.observe(1, 0, seconds, 0.0 if ahead else host_s, ahead)
            ahead, came = True, 1
        else:
            guesses = [number if right(number) else -1 for number in range(at, at + MOST)]
            (part,) = lengths.verified(1, [(seq, guesses)])
            seconds = STEP_S + ROW_S * len(part)
            time += seconds + host_s
            lengths.observe(1, len(part), seconds, host_s)
            accepted = next((i for i, guess in enumerate(part) if guess < 0), len(part))
            ahead, came = False, 1 + accepted
        seq.commit(range(at, at + came))
        at += came
    return at / time, lengths


AHEAD = 1 / STEP_S


def test_drafts_that_are_wrong_cost_little_of_the_overlap() -> None:
    """Without rests each step would wait for the host."""
    rate, _ = played(1e-3, 0.0)
    assert rate > 0.93 * AHEAD


def test_drafts_that_are_right_are_verified() -> None:
    rate, _ = played(1e-3, 1.0)
    alone = (1 + MOST) / (STEP_S + MOST * ROW_S + 1e-3)
    assert rate > 0.9 * alone > 2 * AHEAD


@pytest.mark.parametrize("host_s", [1e-4, 1e-3, 4e-3])
def test_what_is_drafted_is_never_much_slower_than_steps_ahead(host_s: float) -> None:
    """Whatever the share of right drafts is: half of them right pays beside 0.1 ms of the host, not beside 4."""
    for chance in (0.1, 0.3, 0.5, 0.7, 0.9):
        rate, _ = played(host_s, chance)
        assert rate > 0.85 * AHEAD, chance


def test_half_of_the_drafts_right_pays_where_the_host_is_quick() -> None:
    assert played(1e-4, 0.5)[0] > 1.3 * AHEAD


def steps_until_drafted_again() -> int:
    """Steps until drafts are verified of a text that begins to repeat itself after a long time; 1000 if they are not."""
    lengths = DraftLengths(MOST, False)
    lengths.expect(PACE, overlaps=True)
    seq = Sequence(1, request(list(range(10)), 100_000), Mailbox(), 0)
    for number in range(3000):
        guesses = [] if number < 2000 else [1] * MOST
        drafting = lengths.could_pay(1)
        if drafting and any(lengths.verified(1, [(seq, guesses)])):
            return number - 2000
        lengths.observe(1, 0, STEP_S, 1e-4 if drafting else 0.0, not drafting)
    return 1000


def test_text_that_begins_to_repeat_itself_is_drafted_again() -> None:
    assert steps_until_drafted_again() <= draft_rests._LONGEST + 8


def ignored_host(patch: pytest.MonkeyPatch) -> None:
    """What the host takes is not counted."""
    observe = DraftLengths.observe
    patch.setattr(
        DraftLengths, "observe", lambda self, n, d, seconds, host=0.0, ahead=False: observe(self, n, d, seconds, 0.0, ahead)
    )  # fmt: skip


def no_rests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(draft_rests.DraftRests, "resting", lambda self, num_seqs: False)


def rests_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again: text that begins to repeat itself gains nothing."""
    rest = draft_rests.DraftRests._rest
    patch.setattr(draft_rests.DraftRests, "_rest", lambda self, size, steps: rest(self, size, 1 << 40))


@pytest.mark.parametrize(
    ("mutate", "judge"),
    [
        (ignored_host, lambda: played(4e-3, 0.7)[0] > 0.85 * AHEAD),
        (no_rests, lambda: played(1e-3, 0.0)[0] > 0.93 * AHEAD),
        (rests_for_ever, lambda: steps_until_drafted_again() < 1000),
    ],
)
def test_a_mutant_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], judge: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge()
    mutate(monkeypatch)
    assert not judge()


def test_steps_that_do_not_overlap_know_no_rests() -> None:
    lengths = DraftLengths(MOST, False)
    lengths.expect(PACE)
    seq = Sequence(1, request(list(range(10)), 100_000), Mailbox(), 0)
    for _ in range(100):
        assert lengths.could_pay(1)
        lengths.verified(1, [(seq, [])])
        lengths.observe(1, 0, STEP_S, 1.0)


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_prompt_that_the_drafter_still_reads_begins_no_rest(is_settled: bool) -> None:
    lengths = DraftLengths(4, False)
    lengths.expect(Pace(1e-5, ((1, 1e-3), (8, 1.1e-3))), overlaps=True)
    seq = Sequence(1, request([1, 2, 3], 50), Mailbox(), 0)
    for _ in range(8):
        lengths.verified(1, [(seq, [])], is_settled)
        lengths.step_landed()
    assert lengths.could_pay(1) is not is_settled


def test_without_a_pace_batches_are_whole_and_rest_without_drafts() -> None:
    """Nothing says then whether drafts pay, but whether there are any is seen."""
    lengths = DraftLengths(MOST, False)
    lengths.expect(None, overlaps=True)
    assert lengths.overlaps
    seq, rested = Sequence(1, request([1, 2, 3], 50), Mailbox(), 0), list[bool]()
    for guesses in ([], [5] * MOST):
        rested.append(False)
        for _ in range(24):
            if lengths.could_pay(1):
                assert lengths.verified(1, [(seq, guesses)]) == [guesses]
            else:
                rested[-1] = True
            lengths.step_landed()
        for _ in range(draft_rests._LONGEST):  # a rest that has begun ends
            lengths.step_landed()
    assert rested == [True, False]
