"""What is right is not learned again."""

import torch

from executors.tiny.batches import Batch
from executors.tiny.choice import Easy, scores
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
