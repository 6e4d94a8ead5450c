"""bf16 is as exact as transformers' bf16: a short form of `benchmarks.quality`, on random weights and on cohort-tiny's.

Both sides are measured against fp32 on the machine that the test runs on, so it holds for whatever kernels that one takes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.quality_measures import (
    RATIO,
    Comparison,
    Pair,
    bf16_pairs,
    bf16_spacing,
    compare,
    joined,
    summary,
)
from benchmarks.quality_models import RANDOM_SHAPES, WAYS, Way, forced_texts, prompts, random_checkpoint
from executors.kernels.cpu import kernels_in_use
from executors.tiny import weights_dir

SMALL = RANDOM_SHAPES["mini"] | {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 32, "vocab_size": 640,
}  # fmt: skip
SEEDS = range(3)
PROMPTS, TOKENS = 5, 16


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """By name, one for each seed."""
    folder = tmp_path_factory.mktemp("accuracy")
    small = [random_checkpoint(SMALL, folder / str(seed), seed) for seed in SEEDS]
    return {"random weights": small, "cohort-tiny": [weights_dir() for _ in SEEDS]}


async def measured(directory: Path, seed: int, served: Path | None = None) -> dict[Way, Pair]:
    # One thread: threads that wait for each other on a busy machine make small tests ten times slower.
    torch.set_num_threads(1)
    return await bf16_pairs(directory, prompts(directory, PROMPTS, seed), TOKENS, threads=1, served=served)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", ["random weights", "cohort-tiny"])
async def test_bf16_errs_no_more_than_transformers(checkpoints, record_property, name):
    found = [
        await measured(directory, seed) for seed, directory in zip(SEEDS, checkpoints[name], strict=True)
    ]
    for way in WAYS:
        result = summary([pairs[way] for pairs in found])
        record_property("accuracy", f"{name} {way} {result['ratio']:.3f}")
        ours = result["ours"]
        assert result["ratio"] <= RATIO, (way, result)
        if name == "cohort-tiny" and kernels_in_use() is not None:
            # One rounding more than there must be shows: keys rounded before their norm made it 0.58, now it is 0.50.
            assert result["ratio"] <= 0.55, (way, result)
        # Random weights know no best token: of 2,560 rows with many near ties one was lost, with our bf16 and none with
        # theirs. Such an accident may happen to any kernel; a fault shows in more rows, and in cohort-tiny's.
        accidents = 1 if name == "random weights" else 0
        assert ours["wrong_beyond_rounding"] <= accidents, (way, result)
        # Of cohort-tiny's 240 rows one is lost that leads by 4.6 errors, half of what two neighbours in bf16 differ by there.
        assert name == "random weights" or ours["wrong"] <= 1, (way, result)
        assert ours["decided"] > result["rows"] / 2, "too few rows for the rule to mean anything"


@pytest.mark.long
async def test_weights_that_lost_a_bit_are_noticed(checkpoints, tmp_path):
    """The measure's own test: what our executor serves here keeps one bit of the mantissa less than bf16."""
    directory = checkpoints["random weights"][0]
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors")
    coarse = {name: (one.view(torch.int16) & ~1).view(torch.bfloat16) for name, one in tensors.items()}
    save_file(coarse, tmp_path / "model.safetensors")
    for way, pair in (await measured(directory, 0, served=tmp_path)).items():
        assert pair.ratio > RATIO, way


def judged(reference: list[list[float]], logits: list[list[float]]) -> Comparison:
    targets = np.zeros(len(logits), np.int64)
    return compare([np.array(logits, np.float32)], [np.array(reference, np.float32)], [targets])


def test_the_argmax_rule_tells_ties_from_faults():
    exact = np.random.default_rng(0).normal(size=(8, 100))
    exact[:, 0], exact[:, 1] = 5.0, 4.99
    exact[4:, 1] = 4.0
    swapped = exact + 0.01
    swapped[:, 1] += 0.02  # two that are as good as equal may change places
    tie = judged(exact.tolist(), swapped.tolist())
    assert tie.agreement == 0.5 and not tie.wrong().any()
    swapped[5, 1] += 1.5
    fault = judged(exact.tolist(), swapped.tolist())
    assert np.flatnonzero(fault.wrong()).tolist() == np.flatnonzero(fault.wrong(rounded=True)).tolist() == [5]
    assert fault.widest_wrong == pytest.approx(1.0 / fault.rms)
    near = exact.copy()
    near[:4, 1] = 5.02  # less than a spacing of bf16 beside 5, which is 1/32
    rounding = judged(exact.tolist(), (near + 0.001).tolist())
    assert rounding.wrong().sum() == 4 and not rounding.wrong(rounded=True).any()
    with pytest.raises(ValueError, match="not finite"):
        judged([[0.0, 1.0]], [[0.0, float("nan")]])


def test_spacing_of_bf16():
    assert bf16_spacing(np.array([1.0, 1.99, 5.0, -20.0])).tolist() == [2**-7, 2**-7, 2**-5, 2**-3]
    one = torch.tensor(5.0, dtype=torch.bfloat16)
    assert float(torch.nextafter(one, torch.tensor(9.0, dtype=torch.bfloat16)) - one) == 2**-5


def test_more_rows_than_are_compared_at_a_time():
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(30, 50)).astype(np.float32)
    logits = (reference + 0.1 * rng.normal(size=(30, 50))).astype(np.float32)
    targets = rng.integers(0, 50, 30)
    whole = compare([logits], [reference], [targets])
    alone = [compare([logits[i : i + 1]], [reference[i : i + 1]], [targets[i : i + 1]]) for i in range(30)]
    assert len(whole.kl) == 30 and whole.kl.tolist() == joined(alone).kl.tolist()
    assert whole.best.tolist() == logits.argmax(-1).tolist()
    spread = np.exp(logits.astype(np.float64))
    chosen = (spread / spread.sum(-1, keepdims=True))[np.arange(30), targets]
    assert whole.perplexity == pytest.approx(np.exp(-np.log(chosen).mean()))


def test_texts_are_compared_up_to_their_last_token():
    for whole, end in zip(forced_texts(weights_dir()), forced_texts(weights_dir(), 48), strict=True):
        assert len(whole.rows) == len(whole.ids) - 1 and whole.prompt_length == 1
        assert whole.targets.tolist() == whole.ids[1:]
        assert end.targets.tolist() == whole.ids[-48:] and end.prompt_length == len(whole.ids) - 48


def test_figures_by_hand():
    reference = np.log(np.array([[0.5, 0.25, 0.25]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25]], np.float32))
    found = compare([other], [reference], [np.array([1])])
    assert found.rms == pytest.approx(np.log(2) * (2 / 3) ** 0.5)
    assert found.perplexity == pytest.approx(2.0)
    assert found.expected_perplexity == pytest.approx(4.0)
    assert found.flipped_gap == pytest.approx(np.log(2))
    assert found.kl[0] == pytest.approx(0.25 * np.log(2))
    assert found.agreement == 0.0
