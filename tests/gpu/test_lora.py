"""The kernels of LoRA adapters against float64, and the form by torch that stands in for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from executors.kernels import lora_tiles
from executors.kernels.lora_tiles import (
    FEW_ROWS,
    MANY_ROWS,
    LoraMatrix,
    LoraTiles,
    in_tiles,
    most_tiles,
    tile_rows,
)
from executors.kernels.triton import tuning
from executors.kernels.triton.lora import add_lora, splits_of
from executors.llm.lora.device import add_by_torch
from tests.gpu.lora_matrices import Ranks, expected, lora_matrix, tiles_of
from tests.tiers import sweep

pytestmark = pytest.mark.long
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
"""Without a GPU no bf16: the interpreter cuts where it has to round."""
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
MIXED: Ranks = [
    (1, 8, 64),
    (16, 0, 3),
    (0, 0, 0),
    (256, 1, 17),
    (64, 256, 16),
    (2, 2, 0),
    (8, 16, 1),
    (5, 33, 255),
]
"""Ranks of q, k and v of eight adapters; one has none of them."""


def places_of(rows: int, adapters: int, seed: int = 0) -> np.ndarray:
    """Random adapters, or none."""
    return np.random.default_rng(seed).integers(-1, adapters, rows)


def check(
    matrix: LoraMatrix, places: np.ndarray, dtype: torch.dtype, tiles: LoraTiles | None = None,
    add: Callable[..., None] = add_lora, wide: bool = False,
) -> None:  # fmt: skip
    """Raises AssertionError if a row is wrong, or one without an adapter is touched."""
    drawn = torch.Generator().manual_seed(len(places))
    x = torch.randn(len(places), matrix.inputs, generator=drawn).to(dtype).to(DEVICE)
    out = (
        torch.randn(len(places), matrix.outputs, generator=drawn)
        .to(torch.float32 if wide else dtype)
        .to(DEVICE)
    )
    before, wanted = out.clone(), expected(matrix, places, x, out)
    add(matrix, tiles_of(places, DEVICE) if tiles is None else tiles, x, out)
    error = (out.cpu().double() - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert error.max() < TOLERANCE[dtype], int(error.argmax())
    alone = torch.from_numpy(places < 0).to(DEVICE)
    assert torch.equal(out[alone], before[alone])


@sweep(every=3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 40, 70])
def test_ranks_of_1_to_256_side_by_side(rows: int, dtype: torch.dtype) -> None:
    matrix = lora_matrix(MIXED, 96, (0, 40, 56), 75, 256, dtype, DEVICE)
    check(matrix, places_of(rows, len(MIXED)), dtype)


@pytest.mark.parametrize("rank", [1, 8, 16, 64, 256])
def test_one_rank(rank: int) -> None:
    matrix = lora_matrix([(rank,)] * 2, 64, (0,), 48, rank, torch.float32, DEVICE)
    check(matrix, places_of(5, 2), torch.float32)


@sweep(every=2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("begins", "outputs"), [((0,), 130), ((0, 130), 260), ((0, 128, 256), 384), ((0, 1, 3), 200)]
)
def test_outputs_of_parts_begin_and_end_anywhere(
    begins: tuple[int, ...], outputs: int, dtype: torch.dtype
) -> None:
    """Wider than a program's outputs, and narrower."""
    ranks: Ranks = [(3, 8, 16)[: len(begins)], (16, 0, 5)[: len(begins)]]
    check(lora_matrix(ranks, 40, begins, outputs, 16, dtype, DEVICE), places_of(9, 2), dtype)


@sweep(every=2)
@pytest.mark.parametrize("inputs", [1024, 1000, 2 * 256 + 8, 4096])
def test_programs_share_the_depth(inputs: int) -> None:
    matrix = lora_matrix([(4, 0), (9, 2)], inputs, (0, 16), 32, 16, torch.float32, DEVICE)
    tiles = tiles_of(places_of(6, 2), DEVICE)
    assert splits_of(tiles.count, 2, inputs, True) > 1
    check(matrix, places_of(6, 2), torch.float32, tiles)


def test_many_rows_have_large_tiles() -> None:
    places = places_of(lora_tiles.FEW_TOKENS + 80, 3)
    assert tile_rows(len(places)) == MANY_ROWS and tile_rows(lora_tiles.FEW_TOKENS) == FEW_ROWS
    matrix = lora_matrix([(70, 1), (16, 16), (0, 100)], 48, (0, 24), 40, 100, torch.float32, DEVICE)
    check(matrix, places, torch.float32)


@pytest.mark.parametrize("add", [add_lora, add_by_torch])
def test_tiles_that_are_not_used_and_adapters_without_rows(add: Callable[..., None]) -> None:
    """As in a graph: rows of adapters 0 and 2 of four, and tiles to spare; results in float32."""
    matrix = lora_matrix([(4, 2), (9, 9), (16, 0), (1, 1)], 64, (0, 20), 40, 16, torch.float32, DEVICE)
    places = np.array([2, -1, 0, 0, -1, 2, 2])
    check(matrix, places, torch.float32, tiles_of(places, DEVICE, idle=3), add=add, wide=True)
    check(matrix, np.full(4, -1), torch.float32, tiles_of(np.full(4, -1), DEVICE, idle=2), add=add)


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_stands_in(dtype: torch.dtype) -> None:
    matrix = lora_matrix(MIXED, 96, (0, 40, 56), 75, 256, dtype, DEVICE)
    check(matrix, places_of(40, len(MIXED)), dtype, add=add_by_torch)


def test_the_same_inputs_give_the_same_bits_in_any_order_of_rows() -> None:
    matrix = lora_matrix(MIXED, 600, (0, 40, 56), 75, 256, torch.float32, DEVICE)
    places, x = places_of(30, len(MIXED)), torch.randn(30, 600, device=DEVICE)
    order = np.random.default_rng(1).permutation(30)
    found, other = torch.zeros(30, 75, device=DEVICE), torch.zeros(30, 75, device=DEVICE)
    add_lora(matrix, tiles_of(places, DEVICE), x, found)
    add_lora(matrix, tiles_of(places[order], DEVICE), x[order].contiguous(), other)
    assert torch.equal(found[order], other)


@pytest.mark.parametrize(("rows", "adapters"), [(1, 1), (17, 3), (70, 8), (600, 5), (3, 9)])
def test_tiles(rows: int, adapters: int) -> None:
    """Each row with an adapter is in one tile, which is its adapter's, and there are never more than `most_tiles`."""
    for seed in range(20):
        places = places_of(rows, adapters, seed)
        size = tile_rows(rows)
        found, owners = in_tiles(places, size)
        assert len(owners) <= most_tiles(rows, adapters) and len(found) == size * len(owners)
        listed = [(row, owner) for row, owner in zip(found, np.repeat(owners, size), strict=True) if row >= 0]
        assert sorted(listed) == [(row, place) for row, place in enumerate(places) if place >= 0]
    assert most_tiles(rows, 0) == 0
    worst = np.arange(min(rows, adapters)).repeat(1)
    left = np.concatenate((worst, np.zeros(rows - len(worst), np.int64)))
    assert len(in_tiles(left, tile_rows(rows))[1]) <= most_tiles(rows, adapters)


@pytest.mark.interpreted
def test_nothing_is_launched_where_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Counter[str]()
    run = interpreter.GridExecutor.__call__

    def counted(executor: Any, *given: Any, **named: Any) -> None:
        launched[executor.fn.__name__] += 1
        run(executor, *given, **named)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", counted)
    matrix = lora_matrix([(4,)], 64, (0,), 32, 16, torch.float32, DEVICE)
    add_lora(matrix, tiles_of(np.full(3, -1), DEVICE), torch.ones(3, 64), torch.ones(3, 32))
    assert not launched
    add_lora(matrix, tiles_of(np.array([0, -1, 0]), DEVICE), torch.ones(3, 64), torch.ones(3, 32))
    assert launched == {"_shrink_kernel": 1, "_expand_kernel": 1}


# -- mutants -----------------------------------------------------------------------------------------------------------------


def next_place(matrix: LoraMatrix, tiles: LoraTiles, x: Any, out: Any) -> None:
    """Takes each tile for the next adapter's."""
    count = -(-matrix.a.numel() // matrix.stride)
    owners = torch.where(tiles.owners < 0, -1, (tiles.owners + 1) % count)
    add_lora(matrix, replace(tiles, owners=owners), x, out)


def without_scale(matrix: LoraMatrix, tiles: LoraTiles, x: Any, out: Any) -> None:
    """Drops the scales."""
    add_lora(replace(matrix, scales=torch.ones_like(matrix.scales)), tiles, x, out)


def one_scale(matrix: LoraMatrix, tiles: LoraTiles, x: Any, out: Any) -> None:
    """Gives all parts the scale of the first."""
    scales = matrix.scales.clone()
    for place in range(-(-matrix.a.numel() // matrix.stride)):
        scales[place * matrix.words + 1 : place * matrix.words + 3] = scales[place * matrix.words]
    add_lora(replace(matrix, scales=scales), tiles, x, out)


def beyond_its_rank(matrix: LoraMatrix, tiles: LoraTiles, x: Any, out: Any) -> None:
    """Reads what an adapter of a higher rank left at its place."""
    add_lora(replace(matrix, ranks=torch.where(matrix.ranks > 0, matrix.most, 0).int()), tiles, x, out)


def one_row_on(matrix: LoraMatrix, tiles: LoraTiles, x: Any, out: Any) -> None:
    """Reads each row's neighbour."""
    rows = torch.where(tiles.rows < 0, -1, (tiles.rows + 1) % len(x))
    add_lora(matrix, replace(tiles, rows=rows), x, out)


def first_split(matrix: LoraMatrix, tiles: LoraTiles, x: torch.Tensor, out: Any) -> None:
    """Adds up the first part of the depth alone."""
    x = x.clone()
    x[:, x.shape[1] // 2 :] = 0
    add_lora(matrix, tiles, x, out)


@pytest.mark.parametrize(
    "mutant", [next_place, without_scale, one_scale, beyond_its_rank, one_row_on, first_split]
)
def test_a_wrong_one_is_caught(mutant: Callable[..., None]) -> None:
    matrix = lora_matrix([(4, 2, 1), (9, 9, 0), (3, 16, 2)], 600, (0, 20, 30), 40, 16, torch.float32, DEVICE)
    check(matrix, places_of(9, 3), torch.float32)
    with pytest.raises(AssertionError):
        check(matrix, places_of(9, 3), torch.float32, add=mutant)


def test_a_kernel_that_is_compiled_wrong_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the depth are added up, all of them."""
    matrix = lora_matrix([(4, 2)], 1024, (0, 20), 40, 16, torch.float32, DEVICE)
    one = replace(tuning.choose("lora_shrink", tuning.HALF, "few"), parts=1)
    with tuning.trying({("lora_shrink", tuning.HALF, "few"): one}):
        assert splits_of(1, 1, 4096, True) == 1
        check(matrix, places_of(9, 1), torch.float32)
