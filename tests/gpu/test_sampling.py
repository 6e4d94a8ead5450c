"""The sampling kernels against `executors/contract/reference_sampler.py`, row by row.

Where they differ, the reference itself must give the kernels' token once its noise, top-p or min-p are moved by `NEAR`: the
kernels add float32 weights. Such rows are counted, and must be few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from executors.contract import noise
from executors.contract.batch import SamplingParams
from executors.contract.reference_sampler import probabilities
from executors.llm.sampling.columns import SamplingColumns
from executors.llm.sampling.triton_sampler import MAX_WIDTH, TritonSampler

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:overflow encountered in")]
"""Infinity is what the kernels count on there."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
NEAR = 2e-6
"""Share of the whole weight by which the kernels' sums may be off."""
GREEDY = SamplingParams(temperature=0.0)
PADDING = None
U_LAST = 1.0
"""What the largest number that the noise is made of rounds to."""


def settings_of(params: Sequence[SamplingParams | None], u: np.ndarray) -> SamplingColumns[torch.Tensor]:
    """Columns for some rows; None is padding."""

    def column(name: str, otherwise: float, dtype: torch.dtype) -> torch.Tensor:
        values = [otherwise if one is None else getattr(one, name) for one in params]
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    return SamplingColumns(
        temperature=column("temperature", -1.0, torch.float32),
        top_k=column("top_k", 0, torch.int32),
        top_p=column("top_p", 1.0, torch.float32),
        min_p=column("min_p", 0.0, torch.float32),
        u=torch.from_numpy(u).to(DEVICE),
    )


def run(
    logits: torch.Tensor, params: Sequence[SamplingParams | None], u: np.ndarray, capacity: int = 4096
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and bad flags; -7 and 9 where nothing was written."""
    n, width = logits.shape
    tokens = torch.full((n + 1,), -7, dtype=torch.int32, device=DEVICE)
    bad = torch.full((n + 1,), 9, dtype=torch.int8, device=DEVICE)
    sampler = TritonSampler(max(n, 1), width, DEVICE, capacity=capacity)
    sampler.sample(logits.to(DEVICE), settings_of(params, u), tokens, bad)
    assert int(tokens[n]) == -7 and int(bad[n]) == 9
    return tokens[:n].cpu().numpy(), bad[:n].cpu().numpy()


def expected(row: np.ndarray, params: SamplingParams, u: float) -> int:
    """What `reference_sampler.choose` gives for noise `u`."""
    weights = probabilities(row, params)
    token = int(np.searchsorted(np.cumsum(weights), u, side="right"))
    return min(token, int(np.flatnonzero(weights)[-1]))


def possible(row: np.ndarray, params: SamplingParams, u: float, token: int) -> bool:
    """Whether the reference gives `token` for noise and limits within `NEAR` of these."""
    for p in (1 - NEAR, 1.0, 1 + NEAR):
        for m in (1 - NEAR, 1.0, 1 + NEAR):
            moved = replace(params, top_p=min(1.0, params.top_p * p), min_p=min(1.0, params.min_p * m))
            weights = probabilities(row, moved)
            if weights[token] > 0:
                low, high = (expected(row, moved, min(1.0, max(0.0, u + d))) for d in (-NEAR, NEAR))
                if low <= token <= high:
                    return True
    return False


def check(
    logits: torch.Tensor, params: Sequence[SamplingParams], u: np.ndarray, capacity: int = 4096
) -> np.ndarray:
    """Tokens, each of them right or near a border; returns those."""
    tokens, bad = run(logits, params, u, capacity)
    assert not bad.any()
    near = 0
    for i, (row, one) in enumerate(zip(logits.float().numpy(), params, strict=True)):
        wanted = expected(row, one, u[i])
        if tokens[i] != wanted:
            near += 1
            assert possible(row, one, u[i], int(tokens[i])), (i, one, u[i], tokens[i], wanted)
    assert near <= 1, near
    return tokens


def single(value: float) -> float:
    """As float32 has it: the settings are given so."""
    return float(np.float32(value))


def random_params(rng: np.random.Generator, width: int) -> SamplingParams:
    """A greedy row, an unlimited one, or any limits together."""
    kind = rng.integers(0, 8)
    if kind == 0:
        return GREEDY
    temperature = single(rng.choice([1e-8, 0.3, 0.6, 1.0, 1.7, 100.0]))
    if kind == 1:
        return SamplingParams(temperature)
    top_k = int(rng.choice([0, 1, 2, 20, width // 2, width - 1, width, width + 5])) if kind & 1 else 0
    return SamplingParams(
        temperature,
        top_k,
        single(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])) if kind & 2 else 1.0,
        min_p=single(rng.choice([1e-3, 0.05, 0.4, 1.0])) if kind & 4 else 0.0,
    )


def random_logits(rng: np.random.Generator, n: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """[n, width]: broad, steep, of a few values only, some masked; both signs of zero among them."""
    rows = rng.normal(0.0, 3.0, (n, width))
    for i, row in enumerate(rows):
        if i % 4 == 1:
            row[rng.integers(0, width, 1 + width // 50)] += 10.0
        elif i % 4 == 2:
            rows[i] = np.round(row / 3.0) * 2.0
            rows[i][rng.random(width) < 0.1] = -0.0
        elif i % 4 == 3:
            row[(rng.random(width) < 0.6) & (np.arange(width) != width // 2)] = -np.inf
    return torch.from_numpy(rows).to(dtype)


def noise_of(n: int, seed: int) -> np.ndarray:
    return noise.uniform([seed] * n, [0] * n, list(range(n)))


@pytest.mark.long(every=4)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("width", "capacity", "rows"), [(50, 4096, 16), (300, 16, 12), (1000, 4096, 12), (5000, 128, 6)]
)
def test_random_settings(dtype: torch.dtype, width: int, capacity: int, rows: int) -> None:
    """Greedy and drawn rows mixed; candidates that fit, and rows with more of them than are taken out."""
    rng = np.random.default_rng(width)
    logits = random_logits(rng, rows, width, dtype)
    check(logits, [random_params(rng, width) for _ in range(rows)], noise_of(rows, width), capacity)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("capacity", [4096, 16])
def test_ties(capacity: int) -> None:
    """All logits equal, or all of two values: limits cut within a tie by the ids' order, or keep it whole."""
    width, u = 130, np.array([2.0**-54, 0.4321, U_LAST])
    params = [
        GREEDY, SamplingParams(1.0), SamplingParams(1.0, 1), SamplingParams(1.0, 40), SamplingParams(1.0, 0, 0.25),
        SamplingParams(0.5, 0, 0.75, min_p=1.0), SamplingParams(0.5, 70, 0.51), SamplingParams(100.0, 70, 0.51, min_p=0.5),
    ]  # fmt: skip
    equal = torch.full((1, width), -2.5).expand(len(u) * len(params), width)
    all_params = [one for one in params for _ in u]
    check(equal, all_params, np.tile(u, len(params)), capacity)
    two = torch.where(torch.arange(width) % 3 == 1, 1.0, 0.0)[None].expand(len(u) * len(params), width)
    check(two, all_params, np.tile(u, len(params)), capacity)


def test_limits_that_leave_one() -> None:
    logits = torch.tensor([[0.5, 3.0, -1.0, 2.9999, 3.0, -torch.inf]] * 6)
    params = [
        SamplingParams(1e-9), SamplingParams(1.0, 0, single(1e-6)), SamplingParams(1e-9, 1), SamplingParams(1.0, 1),
        SamplingParams(100.0, min_p=1.0), GREEDY,
    ]  # fmt: skip
    low, high = (run(logits, params, np.full(6, u))[0].tolist() for u in (1e-9, 1 - 1e-9))
    assert low == [1] * 6
    assert high == [4, 1, 4, 4, 4, 1], "top-p takes the lower id of a tie, top-k and min-p both"


def test_both_zeros_are_one_number() -> None:
    zeros = torch.where(torch.arange(60) % 2 == 0, 0.0, -0.0)
    params = [
        GREEDY,
        SamplingParams(1.0, 1),
        SamplingParams(1.0, 0, single(0.26)),
        SamplingParams(1.0, min_p=1.0),
    ]
    assert run(zeros.expand(4, 60), params, np.full(4, U_LAST))[0].tolist() == [0, 59, 15, 59]


@pytest.mark.parametrize("capacity", [4096, 16])
def test_a_tie_longer_than_what_is_compared_at_a_time(capacity: int) -> None:
    """What a limit leaves of it ends in the second piece; a likelier token comes after it."""
    row = torch.zeros(3000)
    row[2999] = 3.0
    params = [SamplingParams(1.0, 0, single(0.4))] * 3
    assert check(row.expand(3, 3000), params, np.array([0.4, 0.97, U_LAST]), capacity)[2] == 2999


def test_min_p_may_leave_fewer_than_top_k() -> None:
    row = torch.arange(60) * 0.125
    tokens = check(row.expand(3, 60), [SamplingParams(1.0, 20, min_p=0.5)] * 3, np.array([0.01, 0.5, U_LAST]))
    assert tokens[[0, 2]].tolist() == [54, 59]


def test_unusable_rows_are_named_and_hurt_no_other() -> None:
    good = torch.linspace(-3.0, 3.0, 70)
    logits = torch.stack([good, good, good, good, torch.full((70,), -torch.inf), good, good])
    logits[1, 69], logits[2, 3] = torch.nan, torch.inf
    logits[3] = torch.nan
    logits[5, 1:] = -torch.inf
    for one in (
        GREEDY,
        SamplingParams(1.0),
        SamplingParams(1.0, 5, 0.5, min_p=0.1),
        SamplingParams(1.0, 0, 0.5),
    ):
        tokens, bad = run(logits, [one] * 7, np.full(7, 0.5))
        assert bad.tolist() == [0, 1, 1, 1, 1, 0, 0]
        assert tokens[[1, 2, 3, 4, 5]].tolist() == [0] * 5
        assert tokens[[0, 6]].tolist() == [expected(good.numpy(), one, 0.5)] * 2


def test_a_vocabulary_of_one_token() -> None:
    params = [GREEDY, SamplingParams(1.0), SamplingParams(1.0, 1, 0.5, min_p=1.0)]
    assert run(torch.full((3, 1), -4.0), params, np.full(3, 0.9))[0].tolist() == [0, 0, 0]


def test_extreme_logits() -> None:
    """Masks of -1e30 as other code writes them, beside numbers near float32's end: nothing overflows into a NaN."""
    row = torch.full((90,), -1e30)
    row[[5, 60]] = torch.tensor([3.0e38, 2.9e38])
    params = [SamplingParams(t, k, p) for t in (0.5, 100.0) for k, p in ((0, 1.0), (3, 1.0), (0, 0.5))]
    assert run(row.expand(6, 90), params, np.full(6, U_LAST))[0].tolist() == [5] * 6


def test_padding_is_neither_read_nor_written() -> None:
    logits = torch.full((4, 40), float("nan"))
    logits[[0, 2]] = torch.arange(40.0)
    tokens, bad = run(logits, [GREEDY, PADDING, SamplingParams(1.0, 3), PADDING], np.full(4, U_LAST))
    assert tokens.tolist() == [39, -7, 39, -7]
    assert bad.tolist() == [0, 9, 0, 9]


def test_a_row_is_the_same_alone_and_in_any_batch() -> None:
    """And in logits whose rows lie apart, behind what belongs to nobody; and whatever the workspace held before."""
    rng = np.random.default_rng(5)
    rows, width = 8, 700
    params = [random_params(rng, width) for _ in range(rows)]
    logits, u = random_logits(rng, rows, width, torch.float16), noise_of(rows, 3)
    together, _ = run(logits, params, u)
    wide = torch.full((rows, width + 17), float("nan"), dtype=torch.float16, device=DEVICE)
    wide[:, :width] = logits.flip(0).to(DEVICE)
    sampler = TritonSampler(rows + 3, width, DEVICE)
    tokens = torch.empty(rows, dtype=torch.int32, device=DEVICE)
    bad = torch.ones(rows, dtype=torch.bool, device=DEVICE)
    sampler.sample(wide[:, :width], settings_of(params[::-1], u[::-1].copy()), tokens, bad)
    assert tokens.tolist() == together[::-1].tolist() and not bad.any()
    for i in range(rows):
        sampler.sample(logits[i : i + 1].to(DEVICE), settings_of([params[i]], u[i : i + 1]), tokens, bad)
        assert int(tokens[0]) == together[i]


@pytest.mark.long(every=2)
@pytest.mark.parametrize("params", [SamplingParams(1.5), SamplingParams(0.8, 15, single(0.9))])
def test_shares_of_evenly_spread_noise_are_the_probabilities(params: SamplingParams) -> None:
    """The inverse of the cumulative distribution hits a token of probability p with n p of n even steps, or one off."""
    n, width = 40, 24
    row = torch.from_numpy(np.random.default_rng(2).normal(0.0, 2.0, width)).float()
    tokens, _ = run(row.expand(n, width), [params] * n, (np.arange(n) + 0.5) / n)
    assert (np.diff(tokens) >= 0).all()
    counts = np.bincount(tokens, minlength=width)
    assert np.abs(counts - n * probabilities(row.numpy(), params)).max() < 1.0 + n * NEAR


def test_what_it_cannot_sample_it_says() -> None:
    for rows, width in ((1, MAX_WIDTH + 1), (1 << 16, 8)):
        with pytest.raises(ValueError, match="can be sampled"):
            TritonSampler(rows, width, "cpu")
    sampler, settings = TritonSampler(2, 8, "cpu"), settings_of([GREEDY] * 3, np.zeros(3))
    tokens, bad = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int8)
    for logits, message in (
        (torch.zeros(3, 8), "made for 2"), (torch.zeros(2, 9), "made for 8"), (torch.zeros(8, 2).T, "made for 8"),
        (torch.zeros(2, 8, dtype=torch.float64), "float64"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            sampler.sample(logits, settings, tokens, bad)
    sampler.sample(torch.zeros(0, 8), settings, tokens, bad)
