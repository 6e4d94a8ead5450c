"""The fakes' closed form equals the reference sampler on the full rows, and their histories are sensitive to everything."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.contract import reference_sampler
from executors.contract.batch import SamplingParams
from executors.testing.fakes import oracle
from executors.testing.fakes.oracle import History, expected_logits, expected_tokens

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 2.5, 40.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 8, 9, 60]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.01]),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 7),
)


@given(st.integers(0, 2**64 - 1), params, st.integers(0, 4096), st.sampled_from([16, 17, 100, 1000]))
def test_closed_form_equals_the_reference(
    digest: int, chosen: SamplingParams, position: int, vocab: int
) -> None:
    digests = np.array([digest], np.uint64)
    row = oracle.logits_rows(digests, vocab)[0]
    fast = oracle.sample_tokens(digests, oracle.OracleRows.of([chosen]), np.array([position]), vocab)
    assert int(fast[0]) == reference_sampler.choose(row, chosen, position)
    assert np.count_nonzero(row) == oracle.NUM_FAVOURITES


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20), st.integers(1, 6), params)
def test_expected_tokens_is_the_reference_applied_step_by_step(
    prompt: list[int], n: int, chosen: SamplingParams
) -> None:
    history = list(prompt)
    for _ in range(n):
        history.append(reference_sampler.choose(expected_logits(history), chosen, len(history)))
    assert expected_tokens(prompt, n, chosen) == history[len(prompt) :]


@given(st.lists(st.integers(0, 99), min_size=2, max_size=12), st.data())
def test_any_change_of_history_changes_the_digest(tokens: list[int], data: st.DataObject) -> None:
    digest = History.of(tokens).digest
    i = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens[:i], tokens[i] + 1, *tokens[i + 1 :]]
    changed = History.of(other).digest
    assert (changed[: i + 1] == digest[: i + 1]).all() and (changed[i + 1 :] != digest[i + 1 :]).all()
    assert History.of(tokens, salt=5).digest[-1] != digest[-1]
    # What lies in a later token's cell depends on what came before it, as real keys and values do.
    assert (np.diff(changed)[i + 1 :] != np.diff(digest)[i + 1 :]).all()


def test_known_tokens() -> None:
    """Recorded runs and benchmarks compare with these."""
    assert expected_tokens([1, 2, 3], 4) == [519, 812, 808, 503]
    assert expected_tokens([1, 2, 3], 4, SamplingParams(seed=3)) == [160, 309, 740, 733]
    assert expected_tokens([1, 2, 3], 4, adapter_digest="abc") != expected_tokens([1, 2, 3], 4)


@pytest.mark.parametrize("vocab", [16, 1000])
def test_tokens_spread_over_the_vocabulary(vocab: int) -> None:
    tokens = expected_tokens([5], 40 * vocab if vocab < 100 else 2000, vocab_size=vocab)
    assert min(tokens) >= 0 and max(tokens) < vocab
    assert len(set(tokens)) > 0.8 * vocab
