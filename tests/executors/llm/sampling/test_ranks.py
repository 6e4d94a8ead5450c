"""The place of a prompt's token among all: the torch form against the plain one, ties included."""

import numpy as np
import pytest
import torch

from executors.contract import reference_sampler
from executors.llm.sampling.sampler import describe


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [7, 300])
def test_ranks_are_those_of_the_listed_order(dtype, width):
    rng = np.random.default_rng(width)
    # Few different values: every row has ties, also at its top.
    logits = torch.from_numpy(rng.integers(-3, 3, (40, width)).astype(np.float32)).to(dtype)
    tokens = rng.integers(0, width, 40)
    found = describe(logits, tokens, np.full(40, width), ranked=True)
    for row, token, told in zip(logits.float().numpy(), tokens, found, strict=True):
        expected = reference_sampler.describe(row, int(token), width, ranked=True)
        assert told.rank == expected.rank
        assert told.top_logprobs[told.rank - 1][0] == token
        assert [id_ for id_, _ in told.top_logprobs] == [id_ for id_, _ in expected.top_logprobs]


@pytest.mark.parametrize("equal", [0, 3, 40, 300])
def test_ties_behind_what_is_listed(equal):
    """Flat logits, a tie behind a few larger ones, and one as long as the row: always the lowest ids."""
    rng = np.random.default_rng(equal)
    logits = rng.standard_normal((6, 300)).astype(np.float32)
    for row in logits:
        row[rng.choice(300, equal, replace=False)] = row.max() + 0.5 if equal % 2 else 1.5
    counts = np.array([3, 1, 20, 5, 2, 7])
    tokens = logits.argmax(-1)
    for row, token, count, told in zip(
        logits, tokens, counts, describe(torch.from_numpy(logits), tokens, counts, ranked=True), strict=True
    ):
        expected = reference_sampler.describe(row, int(token), int(count), ranked=True)
        assert [id_ for id_, _ in told.top_logprobs] == [id_ for id_, _ in expected.top_logprobs]
        assert (told.rank, told.top_logprobs[0][0]) == (1, token)


def test_only_where_it_is_asked_for():
    logits = torch.zeros(1, 4)
    assert describe(logits, np.array([2]), np.array([1]))[0].rank is None
    assert describe(logits, np.array([2]), np.array([0]), ranked=True)[0].rank == 3
    assert reference_sampler.describe(np.zeros(4, np.float32), 2, 1).rank is None
