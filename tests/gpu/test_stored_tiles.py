"""Products of 5 to 64 rows with stored weights by matrix instructions: against float64 of the formats' own dequantization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from executors.kernels.device_layouts import LAYOUTS, DeviceRows, in_words
from executors.kernels.triton import stored, stored_tiles, tuning
from executors.kernels.triton.stored_tiles import MOST_ROWS, cut, takes, tile_matmul
from tests.executors.kernels.blocks import block_size
from tests.gpu.test_stored import rows_of
from tests.tiers import sweep

pytestmark = pytest.mark.long
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KINDS = sorted(kind for kind, how in LAYOUTS.items() if how.by_words)
DTYPE = torch.float16
"""The interpreter has no bfloat16."""


@pytest.fixture(autouse=True)
def _short_parts() -> Iterator[None]:
    """Depths of tests are short, and are cut into parts of some tiles all the same."""
    keys: list[tuning.Key] = [("stored_tile", tuning.HALF, rows) for rows in (16, 32, 64)]
    with tuning.trying({key: replace(tuning.choose(*key), least=512) for key in keys}):
        yield


def product(held: DeviceRows, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Into the middle of longer rows, nothing beside which changes."""
    out = torch.full((len(x), held.rows + 5), -7.0, dtype=x.dtype, device=DEVICE)
    tile_matmul(x, held, bias, out[:, 2 : held.rows + 2])
    assert (out[:, :2] == -7).all() and (out[:, held.rows + 2 :] == -7).all()
    return out[:, 2 : held.rows + 2]


def check(kind: str, outputs: int, columns: int, rows: int, with_bias: bool, seed: int) -> None:
    held, exact = rows_of(kind, outputs, columns)
    drawn = torch.Generator().manual_seed(seed)
    x = (torch.randn(rows, columns, generator=drawn) / 64).to(DTYPE)
    bias = torch.randn(outputs, generator=drawn).to(DTYPE) if with_bias else None
    found = product(held, x.to(DEVICE), None if bias is None else bias.to(DEVICE)).cpu().double()
    assert held.arrived is not None and not held.arrived.any()
    weights = exact.double()
    expected, size = x.double() @ weights.T, x.double().abs() @ weights.abs().T
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.double().abs()
    # A weight is rounded to 11 bits, and so is the sum; before it is within 2^-13 of its scale, of which it is some multiple.
    error = (found - expected).abs() / (size + 1e-6)
    assert error.max() < 2**-10, (kind, outputs, columns, rows, float(error.max()))
    assert (found - expected).norm() / expected.norm() < 1e-3


@pytest.mark.long(every=3)
@sweep(every=4)
@pytest.mark.parametrize("rows", [5, 16, 17, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_format(kind: str, rows: int) -> None:
    """Depths that are whole tiles, of which a part has one less, and some that end within a tile."""
    size = block_size(kind)
    columns = 1280 if size == 256 else 1280 + size
    check(kind, 45, columns, rows, rows != 16, rows)


@pytest.mark.long(every=3)
@sweep(every=4)
@pytest.mark.parametrize("seed", range(12))
def test_shapes_drawn_at_random(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    kind = ("Q4_0", "Q4_K", "Q6_K", "Q5_K", "uint4-g128", "int4-g64")[seed % 6]
    unit = max(32, block_size(kind))
    columns = unit * int(drawn.integers(1, 1 + 2400 // unit))
    rows, outputs = int(drawn.integers(1, MOST_ROWS + 1)), int(drawn.integers(1, 200))
    check(kind, outputs, columns, rows, bool(seed % 2), seed)


@pytest.mark.long(every=3)
@sweep(every=4)
@pytest.mark.parametrize("seed", range(16))
def test_each_tile_takes_activations_in_either_order(seed: int) -> None:
    """Those of the table, with the other order than theirs, and tiles of 128 and of 256 columns."""
    drawn = np.random.default_rng(100 + seed)
    kind = ("Q4_K", "Q6_K", "Q5_K", "Q2_K", "Q4_1", "uint4-g128", "int4-g64", "Q3_K")[seed % 8]
    rows, outputs = int(drawn.integers(5, MOST_ROWS + 1)), int(drawn.integers(1, 300))
    columns = max(32, block_size(kind)) * int(drawn.integers(1, 1 + 1800 // max(32, block_size(kind))))
    changed: dict[tuning.Key, tuning.Choice] = {}
    for tile_rows in (16, 32, 64):
        key: tuning.Key = ("stored_tile", tuning.HALF, tile_rows)
        row = tuning.choose(*key)
        changed[key] = replace(row, ordered=not row.ordered, depth=(128, 256)[seed // 8])
    with tuning.trying(changed):
        check(kind, outputs, columns, rows, bool(seed % 2), seed)


def test_many_rows_go_this_way_and_more_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = rows_of("Q4_K", 20, 256)
    taken: list[int] = []
    monkeypatch.setattr(stored, "tile_matmul", lambda x, *_: taken.append(len(x)))
    monkeypatch.setattr(stored, "_matmul_in_parts", lambda x, *_: taken.append(-len(x)))
    for rows, dtype in ((5, DTYPE), (64, DTYPE), (65, DTYPE), (5, torch.float32)):
        x = torch.zeros(rows, 256, dtype=dtype, device=DEVICE)
        stored.matmul(x, held, None, None, torch.empty(rows, 20, dtype=dtype, device=DEVICE))
    assert taken == [5, 64, -65, -5]
    assert [takes(8, LAYOUTS[kind], DTYPE) for kind in ("Q4_0", "IQ4_XS", "Q8_0")] == [True, False, False]
    assert not takes(0, LAYOUTS["Q4_0"], DTYPE)


@pytest.mark.parametrize("rows", [9, 35])
def test_a_row_does_not_know_the_others(rows: int) -> None:
    """One that is no number stays alone, and padding is not written."""
    held, _ = rows_of("Q4_K", 70, 1280)
    x = torch.randn(rows, 1280, generator=torch.Generator().manual_seed(1)).to(DTYPE).to(DEVICE)
    whole = product(held, x, None)
    spoilt = x.clone()
    spoilt[4] = torch.nan
    others = torch.arange(rows, device=DEVICE) != 4
    found = product(held, spoilt, None)
    assert found[4].isnan().all() and torch.equal(found[others], whole[others])


def test_a_weight_without_counters_is_not_shared() -> None:
    held, exact = rows_of("Q4_0", 40, 1056)
    x = torch.randn(6, 1056, generator=torch.Generator().manual_seed(1)).to(DTYPE)
    shared = product(held, x.to(DEVICE), None)
    held.arrived = None
    alone = product(held, x.to(DEVICE), None)
    expected = x.double() @ exact.double().T
    for found in (shared, alone):
        assert (found.cpu().double() - expected).norm() / expected.norm() < 1e-3


def test_cuts() -> None:
    """Programs for two a multiprocessor, and no part without a tile; those of 8B's products on an H200."""
    keys: list[tuning.Key] = [("stored_tile", tuning.HALF, rows) for rows in (16, 32, 64)]
    with tuning.trying({key: tuning.rows(tuning.TUNED_ON)[key] for key in keys}):
        assert cut(4096, 4096, 16, 264) == (64, 4, 4) and cut(4096, 12288, 16, 264) == (64, 5, 10)
        assert cut(24576, 4096, 16, 264) == (384, 1, 16) and cut(4096, 4096, 64, 264) == (32, 8, 4)
        assert cut(24576, 4096, 64, 264) == (192, 2, 16) and cut(64, 288, 16, 264) == (1, 1, 2)
        for outputs in range(32, 5000, 487):
            for columns in range(32, 13_000, 352):
                for rows, depth in ((16, 256), (64, 128)):
                    _, parts, steps = cut(outputs, columns, rows, 264)
                    assert (parts - 1) * steps * depth < columns <= parts * steps * depth


def test_codes_lie_in_words() -> None:
    """The words of a block, by their definition."""
    numbers = torch.from_numpy(np.random.default_rng(0).integers(0, 16, (3, 64), dtype=np.uint8))
    halves = numbers.view(3, 2, 2, 16)
    words = in_words((halves[:, :, 0] | halves[:, :, 1] << 4).reshape(3, 32)).view(torch.int32).view(3, 2, 4)
    for n in range(8):
        for word in range(4):
            found = words[:, :, word] >> 4 * n & 15
            assert torch.equal(found.to(torch.uint8), numbers.view(3, 2, 32)[:, :, 4 * n + word])


def test_the_table_has_tiles_that_the_counters_suffice_for() -> None:
    for architecture in (*tuning.SHARED_KIB, 75):
        for rows in (16, 32, 64):
            one = tuning.rows(architecture)["stored_tile", tuning.HALF, rows]
            assert one.outputs >= stored_tiles.LEAST_OUTPUTS and one.depth in (128, 256)
