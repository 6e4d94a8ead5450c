"""Grammar masks on rows of logits, with every other setting, against the plain reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from executors.contract import reference_sampler
from executors.contract.batch import SamplingParams, SequenceStart
from executors.contract.token_history import TokenHistory
from executors.llm.sampling.edits import EditsBuilder, SlotShapers
from executors.llm.sampling.grammar import Mask, _set_bits
from executors.llm.sampling.sampler import Sampled, SamplingTable, sample
from tests.executors.llm.sampling.test_settings import is_on_the_edge, some_settings
from tests.tiers import examples


def some_mask(rng: np.random.Generator, width: int) -> Mask | None:
    """Nearly empty, nearly full, anything between, or none."""
    share = rng.choice([0.0, 0.0, 0.01, 0.3, 0.5, 1.0])
    count = max(1, min(int(width * share), width))
    ids = np.sort(rng.choice(width, count, replace=False)).astype(np.int64)
    return None if rng.random() < 0.2 else Mask(ids, bool(rng.random() < 0.5))


def allowed(mask: Mask | None, width: int) -> set[int]:
    if mask is None:
        return set(range(width))
    ids = set(mask.ids.tolist())
    return set(range(width)) - ids if mask.negated else ids


def step(
    logits: torch.Tensor, params: list[SamplingParams], prompts: list[list[int]], outputs: list[list[int]],
    masks: list[Mask | None],
) -> Sampled:  # fmt: skip
    shapers, builder = SlotShapers(), EditsBuilder()
    for i, one in enumerate(params):
        ids = (np.array(prompts[i], np.int32), np.array(outputs[i], np.int32))
        shapers.begin(SequenceStart(i, i, *ids, one, grammar=None if masks[i] is None else "g"))
    for i in shapers.items(np.arange(len(params)), np.ones(len(params), np.int64)):
        tokens = prompts[i] + outputs[i]
        shapers.add_rows(builder, i, i, (len(tokens) - 1, tokens[-1:], None), 0, [masks[i]])
    positions = np.array([len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)])
    return sample(logits, SamplingTable.of(params).rows(np.arange(len(params)), positions), builder.build())


def intersected(params: SamplingParams, mask: Mask | None, width: int) -> SamplingParams | None:
    """The mask as allowed ids; None if nothing is left."""
    ids = allowed(mask, width)
    if params.allowed_token_ids is not None:
        ids &= set(params.allowed_token_ids)
    if mask is None:
        return params
    return replace(params, allowed_token_ids=tuple(sorted(ids))) if ids else None


@pytest.mark.parametrize(
    ("width", "dtype", "rounds"),
    [
        (7, "float32", 8),
        (300, "bfloat16", 6),
        (1000, "float32", 6),
        (4127, "float16", 4),
        pytest.param(151_936, "float32", 1, marks=pytest.mark.long),
    ],
)
def test_masked_rows_equal_the_reference(width, dtype, rounds):
    rng, n, edges, num_bad = np.random.default_rng(width), 64, 0, 0
    for _ in range(rounds):
        scale = 3.0 if width > 100_000 else 1.5
        tensor = torch.from_numpy(rng.normal(0, scale, (n, width)).astype(np.float32)).to(
            getattr(torch, dtype)
        )
        before = tensor.clone()
        prompts = [rng.integers(0, width, rng.integers(1, 30)).tolist() for _ in range(n)]
        outputs = [rng.integers(0, width, rng.integers(0, 9)).tolist() for _ in range(n)]
        params = [some_settings(rng, width, outputs[i]) for i in range(n)]
        masks = [some_mask(rng, width) for _ in range(n)]
        got = step(tensor, params, prompts, outputs, masks)
        assert torch.equal(tensor, before), "the raw logits were changed"
        logits = tensor.float().numpy()
        for i in range(n):
            narrowed, history = intersected(params[i], masks[i], width), TokenHistory(prompts[i], outputs[i])
            try:
                assert narrowed is None or narrowed.allowed_token_ids != ()
                if narrowed is None:
                    raise ValueError
                expected = reference_sampler.choose(logits[i], narrowed, len(history), history)
            except ValueError:
                assert got.bad[i]
                num_bad += 1
                continue
            assert not got.bad[i], (i, params[i])
            if got.tokens[i] != expected:
                assert is_on_the_edge(logits[i], narrowed, history, int(got.tokens[i])), (i, params[i])
                edges += 1
    assert edges <= (2 if width > 100_000 else 0)
    assert num_bad < n * rounds / 2


@settings(max_examples=examples(200), deadline=None)
@given(
    words=st.lists(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**32 - 2, 0x0F0F0F0F]), min_size=1, max_size=9)
)
def test_set_bits_are_those_of_a_slow_loop(words):
    expected = [32 * i + bit for i, word in enumerate(words) for bit in range(32) if word >> bit & 1]
    assert _set_bits(np.array(words, np.uint32)).tolist() == expected


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_no_forbidden_token_is_ever_sampled(data):
    """Whatever the settings; and the rows without a mask sample what they do alone, in any company."""
    width, n = data.draw(st.integers(2, 2000)), data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    dtype = getattr(torch, data.draw(st.sampled_from(["float32", "bfloat16"])))
    logits = torch.from_numpy(rng.normal(0, 2, (n, width)).astype(np.float32)).to(dtype)
    params = [
        SamplingParams(float(rng.choice([0.0, 1.0, 9.0])), seed=int(rng.integers(99))) for _ in range(n)
    ]
    masks = [some_mask(rng, width) for _ in range(n)]
    prompts, outputs = [[0]] * n, [[]] * n
    got = step(logits, params, prompts, outputs, masks)
    for i, mask in enumerate(masks):
        ids = allowed(mask, width)
        assert got.bad[i] == (not ids)
        if ids:
            assert int(got.tokens[i]) in ids
        alone = step(logits[i : i + 1], [params[i]], prompts[:1], outputs[:1], [mask])
        assert alone.bad[0] == got.bad[i] and (got.bad[i] or alone.tokens[0] == got.tokens[i])


def test_logits_that_are_no_numbers_are_bad_wherever_they_stand():
    logits = torch.zeros(3, 400)
    logits[0, 7], logits[1, 7] = torch.nan, torch.inf
    few, most = Mask(np.array([3, 4]), False), Mask(np.array([3, 7]), True)
    for masks in ([few] * 3, [most] * 3):
        got = step(logits, [SamplingParams(0.0)] * 3, [[1]] * 3, [[]] * 3, masks)
        assert got.bad.tolist() == [True, True, False]


def test_logprobs_are_those_of_the_raw_logits():
    logits = torch.randn(2, 600, generator=torch.Generator().manual_seed(4))
    few = Mask(np.array([5, 9, 11]), False)
    most = Mask(np.sort(logits[1].topk(3).indices.numpy()), True)
    got = step(logits, [SamplingParams(0.0, logprobs=3)] * 2, [[1]] * 2, [[]] * 2, [few, most])
    for i in range(2):
        expected = reference_sampler.describe(logits[i].numpy(), int(got.tokens[i]), 3)
        assert got.described[i].logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert [t for t, _ in got.described[i].top_logprobs] == [t for t, _ in expected.top_logprobs]
        assert int(got.tokens[i]) not in [t for t, _ in expected.top_logprobs]
