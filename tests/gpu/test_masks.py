"""Masks of grammars in the device's samplers, Triton's interpreted and torch's, against the reference over masked logits. Faults
put into the reading of masks on purpose: the same check notices each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from executors.contract.batch import SamplingParams
from executors.kernels.shaping_layout import ALIGN, HEADER, result_words, row_words
from executors.kernels.triton import sampling, shaping
from executors.llm.sampling.device_sampler import DeviceSampler, TorchDeviceSampler
from executors.llm.sampling.device_shaping import RowShaping
from executors.llm.sampling.row_masks import RowMasks, mask_words, masked
from executors.llm.sampling.triton_sampler import TritonSampler
from tests.gpu.test_kernel_mutants import mutated
from tests.gpu.test_sampling import (
    DEVICE,
    GREEDY,
    expected,
    noise_of,
    possible,
    random_logits,
    random_params,
    settings_of,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:overflow encountered in", "ignore:invalid value encountered in"),
]
NONE = -1


def packed(allowed: np.ndarray) -> np.ndarray:
    """int32 [m, mask_words] of bool [m, width]."""
    m, width = allowed.shape
    padded = np.zeros((m, 32 * mask_words(width)), np.bool_)
    padded[:, :width] = allowed
    return np.packbits(padded, axis=1, bitorder="little").view("<i4")


def random_masks(rng: np.random.Generator, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Masks bool [m, width] in random order, and int32 [n]: that of each row, or `NONE`. Nearly empty, nearly full and between;
    each leaves its row a finite logit."""
    n, width = logits.shape
    rows = np.where(rng.random(n) < 0.3, NONE, 0)
    own = np.flatnonzero(rows == 0)
    places = rng.permutation(len(own))
    allowed = np.zeros((len(own), width), np.bool_)
    for row, place in zip(own.tolist(), places.tolist(), strict=True):
        finite = np.flatnonzero(torch.isfinite(logits[row].float()).numpy())
        allowed[place] = rng.random(width) < rng.choice([0.0, 0.01, 0.5, 0.99])
        allowed[place, rng.choice(finite)] = True
        rows[row] = place
    return allowed, rows.astype(np.int32)


def chosen(
    sampler: DeviceSampler, logits: torch.Tensor, params: list[SamplingParams], u: np.ndarray, allowed: np.ndarray,
    rows: np.ndarray, shaped: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Tokens and bad flags. With `shaped` every other row is shaped, by settings that change nothing."""
    n, width = logits.shape
    tokens = torch.full((n,), -7, dtype=torch.int32, device=DEVICE)
    bad = torch.full((n,), 9, dtype=torch.int8, device=DEVICE)
    masks = RowMasks(
        *(torch.from_numpy(np.ascontiguousarray(one)).to(DEVICE) for one in (packed(allowed), rows))
    )
    table = torch.zeros(n + 1, row_words(width), dtype=torch.int32, device=DEVICE)
    table[:, HEADER + -(-width // ALIGN) * ALIGN :] = -1  # NaN, for what no kernel has written
    table[:, 0] = 9
    table.view(torch.float32)[:, 1] = 1.0
    names = torch.arange(n, dtype=torch.int32, device=DEVICE)
    names[torch.arange(n) % 2 == (0 if shaped else 1)] = -1
    names = names if shaped else torch.full_like(names, -1)
    ones = torch.ones_like(names)
    sampler.sample(
        logits.to(DEVICE),
        settings_of(params, u),
        tokens,
        bad,
        RowShaping(
            table, names, 9 * ones, ones, 0 * ones, torch.zeros(1, result_words(width), device=DEVICE)
        ),
        masks,
    )
    return tokens.cpu().numpy(), bad.cpu().numpy()


def check_random(capacity: int, width: int, dtype: torch.dtype, shaped: bool, kind: str = "triton") -> None:
    rng = np.random.default_rng(width + capacity)
    n = 10
    logits = random_logits(rng, n, width, dtype)
    params = [GREEDY if i % 5 == 0 else random_params(rng, width) for i in range(n)]
    allowed, rows = random_masks(rng, logits)
    sampler: DeviceSampler = TorchDeviceSampler()
    if kind == "triton":
        sampler = TritonSampler(n, width, DEVICE, capacity=capacity)
    u = noise_of(n, width)
    tokens, bad = chosen(sampler, logits, params, u, allowed, rows, shaped)
    assert not bad.any()
    near = 0
    for i, (row, one) in enumerate(zip(logits.float().numpy(), params, strict=True)):
        left = row if rows[i] == NONE else np.where(allowed[rows[i]], row, -np.inf)
        assert rows[i] == NONE or allowed[rows[i], tokens[i]], f"row {i}: a token that its mask forbids"
        if tokens[i] != (wanted := expected(left, one, u[i])):
            near += 1
            assert possible(left, one, u[i], int(tokens[i])), (i, one, u[i], tokens[i], wanted)
    assert near <= 1


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize(
    ("width", "capacity", "dtype"),
    [
        (50, 4096, torch.float32),
        (300, 16, torch.float16),
        (1000, 4096, torch.float32),
        (5003, 128, torch.float16),
    ],
)
def test_random_masks_give_what_the_reference_gives(
    width: int, capacity: int, dtype: torch.dtype, shaped: bool
) -> None:
    check_random(capacity, width, dtype, shaped)


@pytest.mark.parametrize("shaped", [False, True])
def test_torch_gives_the_same(shaped: bool) -> None:
    check_random(4096, 300, torch.float32, shaped, "torch")


@pytest.mark.parametrize("kind", ["triton", "torch"])
def test_a_mask_hides_no_fault_and_what_it_leaves_nothing_of_is_named(kind: str) -> None:
    """A NaN among forbidden tokens is the model's fault, as the host's sampler has it; 2: the grammar's."""
    width = 70
    logits = torch.linspace(-3.0, 3.0, width).repeat(6, 1)
    logits[1, 5], logits[2, 6] = torch.nan, torch.inf
    allowed = np.zeros((2, width), np.bool_)
    allowed[0, 40:45] = True
    rows = np.array([0, 0, 0, 1, NONE, 0], np.int32)
    for one in (GREEDY, SamplingParams(1.0), SamplingParams(1.0, 20, 0.9), SamplingParams(1.0, 0, 0.9)):
        sampler: DeviceSampler = TorchDeviceSampler()
        if kind == "triton":
            sampler = TritonSampler(6, width, DEVICE)
        tokens, bad = chosen(sampler, logits, [one] * 6, np.full(6, 0.999), allowed, rows)
        assert bad.tolist() == [0, 1, 1, 2, 0, 0]
        assert tokens[[0, 5]].tolist() == [44, 44] and 0 <= tokens[3] < width
        assert tokens[4] == width - 1 or one != GREEDY


def test_the_last_bit_of_a_word_and_raw_logits_stay() -> None:
    allowed = np.zeros((1, 64), np.bool_)
    allowed[0, [31, 63]] = True
    logits = torch.arange(64, 0, -1).float()[None]
    left = masked(logits, RowMasks(torch.from_numpy(packed(allowed)), torch.zeros(1, dtype=torch.int32)))
    assert torch.isfinite(left).nonzero()[:, 1].tolist() == [31, 63] and left[0, 31] == 33.0
    tokens, _ = chosen(
        TritonSampler(1, 64, DEVICE), logits, [GREEDY], np.zeros(1), allowed, np.zeros(1, np.int32)
    )
    assert tokens.tolist() == [31] and logits[0, 0] == 64.0


MUTANTS = {
    "a mask that its neighbour reads": ("tl.load(masked + row)", "tl.load(masked + tl.maximum(row, 1) - 1)"),
    "the first mask for all": ("masks + tl.maximum(mask, 0).to(tl.int64) * masks_stride", "masks"),
    "a bit of the next token": ("(at & 31)", "((at + 1) & 31)"),
    "a word of other tokens": ("(at >> 5)", "(at >> 6)"),
    "a mask for rows without one": ("mask >= 0", "mask >= -1"),
    "no mask": ("allowed > 0", "allowed >= 0"),
}


@pytest.mark.interpreted
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = mutated(shaping, tmp_path, MUTANTS[name])
    for function in ("row_shape", "load_logits"):
        monkeypatch.setattr(sampling, function, getattr(mutant, function))
    with pytest.raises((AssertionError, InterpreterError)):
        check_random(4096, 50, torch.float32, False)
        check_random(16, 300, torch.float32, False)
