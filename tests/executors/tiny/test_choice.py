"""What is right is not learned again, and what was wrong comes back until it is."""

import torch

from executors.tiny.batches import Batch
from executors.tiny.choice import _POOL, Again, Easy, scores
from executors.tiny.model import Apart


def _weighed(*rows: list[float]) -> Batch:
    """Return a batch whose tokens weigh so much; the first of a row has nothing before it."""
    weights = torch.tensor(rows)
    ids = torch.zeros_like(weights, dtype=torch.long)
    return Batch(ids, weights, Apart.none(ids))


def test_what_is_right_already_is_not_learned_again() -> None:
    batch = _weighed([0, 0.5, 0.5, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5])
    losses = torch.tensor([[0.5, 0.25, 0], [0.125, 0, 0], [0, 0, 1.0]])
    each = scores(batch, losses)
    assert each.tolist() == [0.75, 0.125, 1.0]
    assert Easy(limit=0.5, share=1.0).learned(batch, each).tolist() == [True, False, True]
    assert Easy(limit=0.8, share=1.0).learned(batch, each).tolist() == [False, False, True]
    assert Easy(limit=0.0, share=1.0).learned(batch, each).all()


def test_stories_are_learned_whatever_their_loss() -> None:
    """Who the hero of a story is comes from a draw: it stays unlikely, and is no mistake."""
    story = 100**-0.5
    batch = _weighed([0, story, story, 0], [0, story, 0.5, 0], [0, 0.5, 0.5, 0])
    losses = torch.tensor([[9.0, 9, 0], [9, 0.25, 0], [0.25, 0.25, 0]])
    each = scores(batch, losses)
    assert each.tolist() == [0, 0.25, 0.5]
    assert Easy(limit=0.3, share=0.0).learned(batch, each).tolist() == [False, False, True]
    assert Easy(limit=0.2, share=0.0).learned(batch, each).tolist() == [False, True, True]
    assert Easy(limit=9, share=1.0).learned(batch, each).tolist() == [True, True, False]


def _numbered(numbers: range, width: int) -> Batch:
    """Return a batch of conversations of 5 to `width` tokens, known by their second; each ends with a token that counts."""
    ids = torch.zeros(len(numbers), width, dtype=torch.long)
    weights = torch.zeros(len(numbers), width)
    apart = Apart(torch.arange(len(numbers)) % 3, torch.zeros_like(ids))
    for row, number in enumerate(numbers):
        end = 5 + number % (width - 5)
        ids[row, :end] = torch.arange(end) + 7
        ids[row, 1] = number
        weights[row, 2], weights[row, end - 1] = 0.25, 0.5
        apart.skipped[row, 3:end] = number % 2
    return Batch(ids, weights, apart)


def test_what_was_wrong_comes_back_whole_so_many_times() -> None:
    again = Again(tokens=200, times=2, seed=0)
    wrong = torch.arange(40) % 4 == 0
    for first in range(0, 4 * _POOL, 40):
        assert again.take(9) == []
        again.add(_numbered(range(first, first + 40), 30), wrong)
    for times in (1, 2):
        back = again.take(10_000)
        assert again.take(1) == []
        assert {batch.times for batch in back} == {times}
        assert sum(len(batch.ids) for batch in back) == _POOL
        for batch in back:
            assert len(batch.ids) <= 40
            for row, number in enumerate(batch.ids[:, 1].tolist()):
                one = _numbered(range(number, number + 1), 30)
                end = 5 + number % 25
                assert torch.equal(batch.ids[row, :end], one.ids[0, :end])
                assert not batch.ids[row, end:].any()
                assert torch.equal(batch.weights[row, :end], one.weights[0, :end])
                assert not batch.weights[row, end:].any()
                assert torch.equal(batch.apart.skipped[row, :end], one.apart.skipped[0, :end])
                assert int(batch.apart.shared[row]) == number % 40 % 3
            again.add(batch, torch.ones(len(batch.ids), dtype=torch.bool))
    assert again.take(1) == []


def test_what_is_right_by_then_does_not_come_back() -> None:
    again = Again(tokens=200, times=3, seed=0)
    for first in range(0, _POOL, 40):
        again.add(_numbered(range(first, first + 40), 30), torch.ones(40, dtype=torch.bool))
    for batch in again.take(10_000):
        again.add(batch, torch.zeros(len(batch.ids), dtype=torch.bool))
    assert again.take(1) == []
