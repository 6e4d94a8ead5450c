"""The sampler against the reference, which does one row at a time."""

import numpy as np
import pytest
import torch

from executors.contract import noise, reference_sampler
from executors.contract.batch import SamplingParams
from executors.llm.sampling.sampler import SamplingTable, sample
from tests.executors.chi_square import chi_square_p


def draw(logits: np.ndarray | torch.Tensor, params: list[SamplingParams], positions: list[int] | None = None):
    tensor = torch.as_tensor(logits)
    rows = SamplingTable.of(params).rows(
        np.arange(len(params)), np.array(positions or [0] * len(params), np.int64)
    )
    return sample(tensor, rows)


def some_params(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.0, 1e-5, 0.2, 0.7, 1.0, 1.0, 2.5])),
        top_k=int(rng.choice([0, 0, 1, 2, 20, 50, 100_000])),
        top_p=float(rng.choice([1.0, 1.0, 0.95, 0.5, 0.01])),
        seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
        choice=int(rng.integers(0, 4)),
        logprobs=[None, None, 0, 3][rng.integers(0, 4)],
    )


def is_on_the_edge(row: np.ndarray, params: SamplingParams, position: int, token: int) -> bool:
    """True if `token` would be right for a u that differs by rounding only, or with a nucleus that does."""
    for p in {params.top_p, params.top_p * (1 - 1e-6), min(1.0, params.top_p * (1 + 1e-6))}:
        weights = reference_sampler.probabilities(row, SamplingParams(params.temperature, params.top_k, p))
        upto = np.cumsum(weights)[token]
        u = noise.uniform([params.seed], [params.choice], [position])[0]
        if weights[token] > 0 and upto - weights[token] - 1e-5 <= u <= upto + 1e-5:
            return True
    return False


@pytest.mark.parametrize(("width", "scale", "dtype"), [
    (50, 2.0, "float32"), (211, 4.0, "float32"), (1537, 1.0, "float32"), (5000, 3.0, "float32"), (5000, 0.02, "float32"),
    (1024, 2.0, "bfloat16"), (20_000, 1.0, "bfloat16"),
])  # fmt: skip
def test_mixed_settings_equal_the_reference(width, scale, dtype):
    rng = np.random.default_rng(width)
    n = 96
    tensor = torch.from_numpy(rng.normal(0, scale, (n, width)).astype(np.float32)).to(getattr(torch, dtype))
    tensor[::7, rng.integers(0, width, width // 2)] = -torch.inf  # what a mask forbids
    logits = tensor.float().numpy()
    params = [some_params(rng) for _ in range(n)]
    positions = rng.integers(0, 10_000, n).tolist()
    got = draw(tensor, params, positions)
    assert not got.bad.any()
    differing = 0
    for i in range(n):
        expected = reference_sampler.sample(logits[i], params[i], positions[i])
        token = int(got.tokens[i])
        assert np.isfinite(logits[i, token])
        if token != expected.token_id:
            differing += 1
            assert is_on_the_edge(logits[i], params[i], positions[i], token), (i, params[i])
            continue
        if params[i].logprobs is None:
            assert i not in got.described
            continue
        described = got.described[i]
        assert described.token_id == token
        assert described.logprob == pytest.approx(expected.logprob, abs=1e-4)
        assert [t for t, _ in described.top_logprobs] == [t for t, _ in expected.top_logprobs]
        assert [x for _, x in described.top_logprobs] == pytest.approx(
            [x for _, x in expected.top_logprobs], abs=1e-4
        )
    assert differing <= 1


def test_rows_do_not_depend_on_their_neighbours():
    rng = np.random.default_rng(5)
    logits = rng.normal(0, 2, (40, 700)).astype(np.float32)
    params = [some_params(rng) for _ in range(40)]
    together = draw(logits, params).tokens
    for i in range(40):
        assert draw(logits[i : i + 1], [params[i]]).tokens[0] == together[i]


@pytest.mark.parametrize("params", [
    SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(top_k=7), SamplingParams(top_p=0.8),
    SamplingParams(temperature=1.5, top_k=12, top_p=0.7),
])  # fmt: skip
def test_the_distribution_is_the_processed_one(params):
    row = np.random.default_rng(8).normal(0, 1.5, 30).astype(np.float32)
    n = 20_000
    settings = SamplingTable.of([params]).rows(np.zeros(n, np.int64), np.arange(n))
    tokens = sample(torch.from_numpy(row).expand(n, -1), settings).tokens
    expected = reference_sampler.probabilities(row, params) * n
    counts = np.bincount(tokens, minlength=30)
    assert counts[expected == 0].sum() == 0
    common = expected > 5
    rare = max(expected[~common].sum(), 1e-9)
    observed = [*counts[common], counts[~common].sum()] if rare > 1 else counts[common]
    wanted = [*expected[common], rare] if rare > 1 else expected[common]
    wanted = np.array(wanted) * (np.sum(observed) / np.sum(wanted))
    assert chi_square_p(observed, wanted) > 1e-3


def test_extreme_temperatures_and_logits():
    logits = np.array([[1e30, -1e30, 0.0, 1e30], [3e38, -3e38, 0, 0], [1.0, 2.0, 3.0, 2.0]], np.float32)
    for temperature in (1e-45, 1e-20, 1e-5, 1.0, 1e10):
        tokens = draw(logits, [SamplingParams(temperature, seed=9)] * 3).tokens
        assert tokens[0] in (0, 3) and tokens[1] == 0
    assert draw(logits, [SamplingParams(1e-5, seed=s) for s in (1, 2, 3)]).tokens[2] == 2
    assert (
        draw(
            logits, [SamplingParams(1e-5, top_p=0.9), SamplingParams(1e-5, top_k=2), SamplingParams()]
        ).tokens[1]
        == 0
    )


def test_a_flat_row_needs_more_than_the_first_candidates():
    logits = torch.zeros(2, 6000)
    tied_with_the_kth = [SamplingParams(top_k=3, seed=s) for s in (1, 2)]
    expected = [reference_sampler.choose(logits[0].numpy(), p, 0) for p in tied_with_the_kth]
    assert draw(logits, tied_with_the_kth).tokens.tolist() == expected
    half = [SamplingParams(top_p=0.50005, seed=s) for s in (1, 2)]
    expected = [reference_sampler.choose(logits[0].numpy(), p, 0) for p in half]
    assert draw(logits, half).tokens.tolist() == expected


def test_greedy_takes_the_lowest_of_the_best():
    logits = np.zeros((2, 300), np.float32)
    logits[1, [37, 250]] = 4.0
    assert draw(logits, [SamplingParams(temperature=0.0)] * 2).tokens.tolist() == [0, 37]
    # Coarse numbers tie all the time; a vectorised maximum must not mind.
    coarse = torch.from_numpy(
        np.random.default_rng(2).integers(0, 9, (8, 20_011)).astype(np.float32)
    ).bfloat16()
    expected = coarse.float().numpy().argmax(-1).tolist()
    assert draw(coarse, [SamplingParams(temperature=0.0)] * 8).tokens.tolist() == expected


def test_rows_that_are_no_numbers_are_marked_and_others_stand():
    logits = np.random.default_rng(1).normal(size=(5, 40)).astype(np.float32)
    params = [SamplingParams(seed=i, top_k=i, logprobs=1) for i in range(5)]
    clean = draw(logits, params)
    logits[1, 3] = np.nan
    logits[2] = -np.inf
    logits[3, 0] = np.inf
    got = draw(logits, params)
    assert got.bad.tolist() == [False, True, True, True, False]
    assert sorted(got.described) == [0, 4]
    assert got.tokens[[0, 4]].tolist() == clean.tokens[[0, 4]].tolist()


def test_the_logits_are_left_as_they_were():
    logits = torch.randn(4, 1000)
    before = logits.clone()
    draw(
        logits,
        [
            SamplingParams(),
            SamplingParams(top_p=0.5),
            SamplingParams(top_k=3),
            SamplingParams(temperature=0.0),
        ],
    )
    assert torch.equal(logits, before)


@pytest.mark.parametrize("width", [49_152, 151_936])
def test_logprobs_of_a_long_row_are_the_same_bits_alone_and_among_others(width):
    """With two threads, between which torch would share the sum of one row."""
    logits = torch.randn(12, width, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = described(logits)
        assert [described(row[None])[0] for row in logits] == together
    finally:
        torch.set_num_threads(before)


def described(logits):
    got = draw(logits, [SamplingParams(temperature=0.0, logprobs=3)] * len(logits), [0] * len(logits))
    return list(got.described.values())
