"""Every sampling setting against the reference, in batches whose rows all have other settings."""

import numpy as np
import pytest
import torch

from executors.contract import noise, reference_sampler
from executors.contract.batch import SamplingParams, SequenceStart
from executors.contract.token_history import TokenHistory
from executors.kernels.cpu import cpu_kernels, kernels_in_use, use_kernels
from executors.llm.sampling import sampler
from executors.llm.sampling.edits import EditsBuilder, SlotShapers
from executors.llm.sampling.sampler import Sampled, SamplingTable, sample
from tests.executors.chi_square import chi_square_p
from tests.executors.usable_isas import USABLE_ISAS
from tests.tiers import sweep

Ids = tuple[int, ...]


@pytest.fixture(params=["torch", USABLE_ISAS[0]])
def choosing(request):
    """Tokens are chosen by torch, or by the kernels."""
    before = kernels_in_use()
    use_kernels(None if request.param == "torch" else cpu_kernels(request.param))
    yield request.param
    use_kernels(before)


def some_ids(rng: np.random.Generator, width: int, most: int) -> Ids:
    return tuple(int(i) for i in np.unique(rng.integers(0, width, rng.integers(1, most + 1))))


def some_settings(rng: np.random.Generator, width: int, output: list[int]) -> SamplingParams:
    """Any of the settings, most of them neutral in any one row."""

    def maybe(value, neutral, chance=0.25):
        return value if rng.random() < chance else neutral

    words = [some_ids(rng, width, 1) for _ in range(2)]
    if len(output) > 2 and width > 3:
        words.append((output[-2], output[-1], int(rng.integers(0, width))))
        words.append((output[-1], int(rng.integers(0, width))))
        words.append((output[-3], int(rng.integers(0, width))))
    bias = tuple((i, float(rng.normal(0, 4))) for i in some_ids(rng, width, 9))
    return SamplingParams(
        temperature=float(rng.choice([0.0, 1e-5, 0.3, 0.8, 1.0, 2.5])),
        top_k=maybe(int(rng.choice([1, 3, 20, 64, 65, 100_000])), 0),
        top_p=maybe(float(rng.choice([0.01, 0.5, 0.9, 0.99])), 1.0),
        min_p=maybe(float(rng.choice([0.001, 0.05, 0.5, 1.0])), 0.0),
        typical_p=maybe(float(rng.choice([0.05, 0.5, 0.95])), 1.0),
        repetition_penalty=maybe(float(rng.choice([0.7, 1.05, 1.9])), 1.0),
        presence_penalty=maybe(float(rng.normal()), 0.0),
        frequency_penalty=maybe(float(rng.normal()), 0.0),
        logit_bias=maybe(bias, ()),
        bad_words=maybe(tuple(words), ()) if width > 3 else (),
        allowed_token_ids=maybe(some_ids(rng, width, 40), None, 0.15) if width > 3 else None,
        min_tokens=maybe(int(rng.integers(0, 8)), 0),
        stop_token_ids=some_ids(rng, width, 3) if width > 3 else (),
        seed=int(rng.integers(0, 2**63)),
        choice=int(rng.integers(0, 4)),
    )


def draw(
    logits: torch.Tensor, params: list[SamplingParams], prompts: list[list[int]], outputs: list[list[int]]
) -> Sampled:
    """One step over sequences that stand at these tokens."""
    shapers, slots = SlotShapers(), np.arange(len(params))
    for slot, one in enumerate(params):
        ids = (np.array(prompts[slot], np.int32), np.array(outputs[slot], np.int32))
        shapers.begin(SequenceStart(slot, slot, *ids, one))
    builder = EditsBuilder()
    for i in shapers.items(slots, np.ones(len(slots), np.int64)):
        tokens = prompts[i] + outputs[i]
        shapers.add_rows(builder, i, i, (len(tokens) - 1, tokens[-1:], None), 0)
    positions = np.array([len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)])
    return sample(logits, SamplingTable.of(params).rows(slots, positions), builder.build())


def is_on_the_edge(row: np.ndarray, params: SamplingParams, history: TokenHistory, token: int) -> bool:
    """True if `token` would be right for a u that differs by no more than float32 sums do."""
    weights = reference_sampler.probabilities(reference_sampler.edited(row, params, history), params)
    upto = np.cumsum(weights)[token]
    u = noise.uniform([params.seed], [params.choice], [len(history)])[0]
    return bool(weights[token] > 0 and upto - weights[token] - 1e-6 <= u <= upto + 1e-6)


CASES = [
    (1, 1.0, "float32", 1), (7, 1.0, "float32", 8), (7, 1.0, "bfloat16", 8), (64, 2.0, "float32", 3), (100, 2.0, "bfloat16", 3),
    (1000, 3.0, "float32", 6), (1000, 3.0, "bfloat16", 6), (4127, 2.0, "float32", 2), (9000, 0.5, "bfloat16", 2),
    (151_936, 3.0, "float32", 1),
]  # fmt: skip


@sweep(every=3)
@pytest.mark.parametrize(("width", "scale", "dtype", "rounds"), CASES)
@pytest.mark.usefixtures("choosing")
def test_mixed_settings_equal_the_reference(width, scale, dtype, rounds):
    rng, n, edges = np.random.default_rng(width), 64, 0
    for _ in range(rounds):
        tensor = torch.from_numpy(rng.normal(0, scale, (n, width)).astype(np.float32)).to(
            getattr(torch, dtype)
        )
        before = tensor.clone()
        prompts = [rng.integers(0, width, rng.integers(1, 30)).tolist() for _ in range(n)]
        # Likely tokens, too: a penalty matters where it meets one.
        likely = tensor.float().argmax(-1).tolist()
        outputs = [
            [*rng.integers(0, width, rng.integers(0, 9)).tolist(), *[likely[i]] * int(rng.integers(0, 3))]
            for i in range(n)
        ]
        params = [some_settings(rng, width, outputs[i]) for i in range(n)]
        got = draw(tensor, params, prompts, outputs)
        assert torch.equal(tensor, before), "the raw logits were changed"
        logits = tensor.float().numpy()
        for i in range(n):
            history = TokenHistory(prompts[i], outputs[i])
            try:
                expected = reference_sampler.choose(logits[i], params[i], len(history), history)
            except ValueError:
                assert got.bad[i]
                continue
            assert not got.bad[i], params[i]
            if got.tokens[i] != expected:
                assert is_on_the_edge(logits[i], params[i], history, int(got.tokens[i])), (i, params[i])
                edges += 1
    # Of a flat distribution over 152k tokens, float32 sums put about one draw in a hundred next door.
    assert edges <= (2 if width > 100_000 else 0)


STOCHASTIC = [
    {"min_p": 0.1}, {"min_p": 0.02, "top_p": 0.8}, {"typical_p": 0.6}, {"typical_p": 0.9, "top_k": 12, "temperature": 1.7},
    {"repetition_penalty": 1.6}, {"presence_penalty": 1.0, "frequency_penalty": 0.5}, {"logit_bias": ((3, 2.0), (4, -1.0))},
    {"bad_words": ((2,), (8, 9))}, {"allowed_token_ids": (1, 2, 3, 5, 8, 13)}, {"min_tokens": 9, "stop_token_ids": (0, 7)},
]  # fmt: skip


@sweep(every=3)
@pytest.mark.parametrize("settings", STOCHASTIC, ids=str)
@pytest.mark.usefixtures("choosing")
def test_the_distribution_is_the_processed_one(settings):
    row = np.random.default_rng(8).normal(0, 1.5, 30).astype(np.float32)
    n, prompt, output = 6_000, [1, 2, 3], [3, 3, 8]
    params = [SamplingParams(seed=seed, **settings) for seed in range(n)]
    tokens = draw(torch.from_numpy(row).expand(n, -1), params, [prompt] * n, [output] * n).tokens
    history = TokenHistory(prompt, output)
    edited = reference_sampler.edited(row, params[0], history)
    expected = reference_sampler.probabilities(edited, params[0]) * n
    counts = np.bincount(tokens, minlength=30)
    assert counts[expected == 0].sum() == 0
    common = expected > 5
    rare = expected[~common].sum()
    observed = np.append(counts[common], counts[~common].sum())[: None if rare > 1 else -1]
    wanted = np.append(expected[common], rare)[: None if rare > 1 else -1]
    assert chi_square_p(observed, wanted * observed.sum() / wanted.sum()) > 1e-3


def test_neutral_settings_cost_nothing(monkeypatch):
    """Greedy rows without edits see maxima only, and rows without edits are not copied."""
    shapers = SlotShapers()
    shapers.begin(
        SequenceStart(1, 0, np.zeros(1, np.int32), np.zeros(0, np.int32), SamplingParams(0.7, top_k=5))
    )
    assert not shapers, "a slot whose settings change no logits keeps nothing"
    monkeypatch.setattr(sampler, "draw", lambda *_: pytest.fail("a draw in a greedy step"))
    monkeypatch.setattr(noise, "uniform", lambda *_: pytest.fail("noise in a greedy step"))
    greedy = SamplingTable.of([SamplingParams(0.0)] * 3).rows(np.arange(3), np.arange(3))
    assert sampler.sample(torch.eye(3), greedy).tokens.tolist() == [0, 1, 2]


@pytest.mark.usefixtures("choosing")
def test_a_row_with_nothing_left_is_bad_alone():
    params = [
        SamplingParams(0.0),
        SamplingParams(seed=1, allowed_token_ids=(2,), bad_words=((2,),)),
        SamplingParams(seed=2),
    ]
    got = draw(torch.zeros(3, 9), params, [[1]] * 3, [[]] * 3)
    assert got.bad.tolist() == [False, True, False]


def test_logprobs_are_of_the_raw_logits():
    logits = torch.randn(2, 50, generator=torch.Generator().manual_seed(4))
    params = [
        SamplingParams(0.0, logit_bias=((7, 99.0),), repetition_penalty=2.0, logprobs=3),
        SamplingParams(0.0, logprobs=3),
    ]
    got = draw(logits, params, [[1, 2]] * 2, [[3]] * 2)
    assert got.tokens[0] == 7
    for i in range(2):
        expected = reference_sampler.describe(logits[i].numpy(), int(got.tokens[i]), 3)
        assert got.described[i].logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [t for t, _ in got.described[i].top_logprobs] == [t for t, _ in expected.top_logprobs]
