import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.contract import noise
from executors.contract.batch import SamplingParams
from executors.contract.reference_sampler import choose, describe, log_softmax, probabilities, sample, verify

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -np.inf, 0.0], np.float32)


def kept(**params: float) -> list[int]:
    return np.flatnonzero(probabilities(LOGITS, SamplingParams(**params))).tolist()  # type: ignore[arg-type]


def test_what_is_kept() -> None:
    assert kept() == [0, 1, 2, 3, 5]
    assert kept(temperature=0) == [1], "the lowest id of a tie"
    assert kept(top_k=1) == [1, 3], "ties with the k-th stay"
    assert kept(top_k=3) == [1, 2, 3]
    assert kept(top_k=100) == kept(top_k=0)
    assert kept(top_p=1e-9) == [1], "at least one"
    assert kept(top_p=0.5) == [1, 3]
    assert kept(top_p=1.0) == [0, 1, 2, 3, 5]


def test_temperature_and_renormalising() -> None:
    soft = probabilities(LOGITS, SamplingParams(temperature=2.0, top_k=3))
    assert soft.sum() == pytest.approx(1.0)
    assert soft[1] / soft[2] == pytest.approx(math.exp(1 / 2.0))
    # top_p acts on what top_k left: of three tokens the third begins at about 0.84.
    assert np.flatnonzero(probabilities(LOGITS, SamplingParams(top_k=3, top_p=0.84))).tolist() == [1, 3]
    assert np.flatnonzero(probabilities(LOGITS, SamplingParams(top_k=3, top_p=0.85))).tolist() == [1, 2, 3]


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 5000),
    st.floats(0.1, 5.0),
    st.integers(0, 8),
    st.floats(0.01, 1.0),
)
def test_choice_is_the_inverse_of_the_cumulative_distribution(
    seed: int, position: int, temperature: float, top_k: int, top_p: float
) -> None:
    params = SamplingParams(temperature, top_k, top_p, seed, choice=2)
    weights = probabilities(LOGITS, params)
    u = noise.uniform([seed], [2], [position])[0]
    token = choose(LOGITS, params, position)
    assert weights[token] > 0
    assert weights[:token].sum() <= u + 1e-12 and u < weights[: token + 1].sum() + 1e-12


def test_frequencies_follow_probabilities() -> None:
    params = SamplingParams(temperature=1.5, seed=9)
    tokens = [choose(LOGITS, params, position) for position in range(4000)]
    shares = np.bincount(tokens, minlength=6) / 4000
    np.testing.assert_allclose(shares, probabilities(LOGITS, params), atol=0.03)


@pytest.mark.parametrize("bad", [[np.nan, 1], [np.inf, 1], [-np.inf, -np.inf]])
def test_unusable_logits_raise(bad: list[float]) -> None:
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="not finite"):
            choose(np.array(bad, np.float32), SamplingParams(temperature), 0)


def test_logprobs_are_of_the_raw_logits() -> None:
    row = log_softmax(LOGITS)
    assert row.dtype == np.float32
    assert np.exp(row.astype(np.float64)).sum() == pytest.approx(1.0)
    token = sample(LOGITS, SamplingParams(temperature=9.0, top_k=1, seed=4, logprobs=3), 0)
    assert token.logprob == float(row[token.token_id])
    assert [i for i, _ in token.top_logprobs] == [1, 3, 2]
    assert describe(LOGITS, 5, 0).top_logprobs == () and describe(LOGITS, 5, None).logprob is None


def test_verify_stops_at_the_first_draft_that_is_wrong() -> None:
    rows = np.eye(4, dtype=np.float32)[[2, 0, 1]]
    greedy = SamplingParams(0.0)

    def tokens(*drafts: int) -> list[int]:
        return [t.token_id for t in verify(rows[: len(drafts) + 1], greedy, drafts, 10)]

    assert tokens(2, 0) == [2, 0, 1]
    assert tokens(2, 3) == [2, 0]
    assert tokens(1, 0) == [2]
    assert tokens() == [2]
