"""Faults put into kernels on purpose, each of which the checks of this folder notice: a counter that is not reset, a mask that is
stale, a piece of keys that is missing, programs that nothing orders."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.errors import InterpreterError

from executors.kernels.triton import (
    decode_attention,
    extend_attention,
    few_rows,
    shared_extend,
    stored_tiles,
)
from executors.kernels.triton.extend_attention import FASTEST
from executors.llm.attention.key_pieces import PieceRule
from executors.llm.attention.tile_pieces import TileRule
from tests.gpu import test_attention, test_few_rows, test_memcheck, test_shared_extend, test_stored_tiles
from tests.gpu.memcheck import checked
from tests.gpu.test_attention import Batch, check, fresh

pytestmark = [
    pytest.mark.long,
    pytest.mark.interpreted,
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]
_small_parts = test_few_rows._small_parts
_short_parts = test_stored_tiles._short_parts


def mutated(module: ModuleType, folder: Path, *changes: tuple[str, str]) -> Any:
    """The module with pieces of its text replaced; each stands there once."""
    assert module.__file__ is not None
    text = Path(module.__file__).read_text()
    for before, after in changes:
        assert text.count(before) == 1, (
            f"{before!r} stands there {text.count(before)} times: change the mutant, too"
        )
        text = text.replace(before, after)
    name = f"mutant_{module.__name__.rpartition('.')[2]}_{abs(hash(changes))}"
    file = folder / f"{name}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(made)
    finally:
        del sys.modules[name]
    return made


def decode_17() -> None:
    test_memcheck.decode(17, False)


def decode_3() -> None:
    """Pieces of several tiles."""
    test_memcheck.decode(3, False)


def extend() -> None:
    test_attention.test_extend(torch.float32, (4, 2), 64, 16, None, None)


def windowed() -> None:
    """A window of more than a tile of keys behind which others lie, and one that ends within a tile."""
    batch = Batch([70, 9], [120, 40], (4, 2), 64, 16, torch.float32, 4)
    for window in (70, 33):
        out = fresh(batch)
        batch.extend(np.arange(2), window, None, out, loop=FASTEST)
        check(out, batch.expected(window, None), torch.float32)


def fast() -> None:
    """Whole tiles of keys before the diagonal, on it and behind it."""
    batch = Batch([70, 33, 9], [0, 64, 130], (4, 2), 64, 16, torch.float32, 4)
    out = fresh(batch)
    batch.extend(np.arange(3), None, None, out, loop=FASTEST)
    check(out, batch.expected(None, None), torch.float32)


def shared(sinks: bool = False) -> None:
    """Keys of tiles in three pieces of whole numbers of keys, in either order of programs."""
    batch = Batch([70, 5], [130, 61], (4, 2), 32, 16, torch.float32, 1, sinks=sinks)
    tiles = test_shared_extend.Shared(batch, np.arange(2))
    pieces = TileRule(1, 32, count=3).cut(tiles.keys)
    for order in (slice(None), slice(None, None, -1)):
        check(tiles.attend(pieces[order].copy(), None, None), batch.expected(None, None), torch.float32)


def sunk() -> None:
    shared(sinks=True)


def few_parts() -> None:
    test_few_rows.test_a_sum_behind(16, 96, 640, True, 0.3, (3, 5, 128), torch.float32)


def stored_parts() -> None:
    """Five tiles of the depth, of which two programs take three and two, and a depth that ends within a tile."""
    test_stored_tiles.check("Q4_K", 70, 1280, 16, False, 1)
    test_stored_tiles.check("Q4_0", 45, 352, 5, True, 2)


def stored_ordered() -> None:
    """Two and three tiles of the depth, of activations in the order of the words."""
    test_stored_tiles.check("Q4_K", 70, 512, 17, False, 1)
    test_stored_tiles.check("Q4_0", 45, 352, 33, True, 2)


def stored_whole() -> None:
    test_stored_tiles.check("Q4_K", 70, 512, 5, False, 1)


def stored_five_bits() -> None:
    test_stored_tiles.check("Q5_K", 33, 256, 6, False, 3)


ORDER = 'sem="acq_rel", scope="gpu"'
MUTANTS: dict[str, tuple[ModuleType, str, str, Callable[[], None]]] = {
    "decode: a counter not reset": (
        decode_attention, "tl.store(counter, 0)", "tl.store(counter, count)", decode_17,
    ),
    "decode: the mask of the first tile": (
        decode_attention, "there = place < end", "there = begin + tl.arange(0, TILE) < end", decode_3,
    ),
    "decode: the last piece is not added": (
        decode_attention, "there = number < count", "there = number < count - 1", decode_17,
    ),
    "decode: added up before all have come": (
        decode_attention, "== count - 1:", "== count - 2:", decode_17,
    ),
    "decode: counted without order": (decode_attention, ORDER, 'sem="relaxed", scope="gpu"', decode_17),
    "extend: the mask of the first tile": (
        extend_attention, "there = place < last", "there = begin + tl.arange(0, TILE) < last", extend,
    ),
    "extend: later keys are seen": (
        extend_attention, "place[None, :] <= own[:, None])", "place[None, :] <= own[:, None] + 1)", extend,
    ),
    "extend: the diagonal takes no masks": (
        extend_attention, "common = tl.minimum(last, first + 1)", "common = last", fast,
    ),
    "extend: a key less without masks": (
        extend_attention, "        low = middle\n", "        low = middle + 1\n", fast,
    ),
    "extend: the first keys of a window take no masks": (
        extend_attention, "hidden = after - window", "hidden = first - window", windowed,
    ),
    "extend: a tile of keys of a window is read twice": (
        extend_attention, "            low = tl.maximum(low, middle)\n", "", windowed,
    ),
    "extend: powers of 2 of a logarithm to e": (
        extend_attention, "key_factor * loop.base(softcap)", "key_factor", fast,
    ),
    "shared: the mask of another query": (
        shared_extend, "head, offset + query,", "head, offset + query + 1,", shared,
    ),
    "shared: the keys of another piece": (
        shared_extend, "low, last = tl.load(piece + 1), ", "low, last = tl.load(piece + 1 + 6), ", shared,
    ),
    "shared: a piece is missing": (
        shared_extend, "for number in range(count):", "for number in range(count - 1):", shared,
    ),
    "shared: a piece is added twice": (
        shared_extend, "at = ((first + number)", "at = ((first + tl.minimum(number, count - 2))", shared,
    ),
    "shared: the results of another tile": (
        shared_extend, "first, count, head, real, KV_HEADS", "first + 1, count, head, real, KV_HEADS", shared,
    ),
    "shared: added up before all have come": (
        shared_extend, "== count - 1:", "== count - 2:", shared,
    ),
    "shared: a counter not reset": (
        shared_extend, "tl.store(counter, 0)", "tl.store(counter, count)", shared,
    ),
    "shared: counted without order": (shared_extend, ORDER, 'sem="relaxed", scope="gpu"', shared),
    "shared: a sink in each piece": (shared_extend, "if count == 1:  # else once", "if count > 0:  # else once", sunk),
    "few rows: a counter not reset": (
        few_rows, "tl.store(arrived + tile, 0)", "tl.store(arrived + tile, PARTS)", few_parts,
    ),
    "few rows: added up before all have come": (few_rows, "== PARTS - 1:", "== PARTS - 2:", few_parts),
    "few rows: counted without order": (few_rows, ORDER, 'sem="relaxed", scope="gpu"', few_parts),
    "stored: a counter not reset": (
        stored_tiles, "tl.store(arrived + tile, 0)", "tl.store(arrived + tile, PARTS)", stored_parts,
    ),
    "stored: added up before all have come": (stored_tiles, "== PARTS - 1:", "== PARTS - 2:", stored_parts),
    "stored: counted without order": (stored_tiles, ORDER, 'sem="relaxed", scope="gpu"', stored_parts),
    "stored: the factor of the block before": (
        stored_tiles, "start + TILE_K, COLUMNS, EXTRA", "start, COLUMNS, EXTRA", stored_whole,
    ),
    "stored: tiles beyond the last": (
        stored_tiles, "COLUMNS == PARTS * STEPS * TILE_K", "COLUMNS % TILE_K == 0", stored_parts,
    ),
    "stored: columns beyond the last": (
        stored_tiles, "(start + column < COLUMNS)[:, None]", "(column < COLUMNS)[:, None]", stored_parts,
    ),
    "stored: codes of other columns": (stored_tiles, "start + 4 * n, mask", "start + 28 - 4 * n, mask", stored_parts),
    "stored: activations of other codes": (
        stored_tiles, "+ 4 * n + word % 4", "+ 28 - 4 * n + word % 4", stored_ordered,
    ),
    "stored: activations of another tile": (
        stored_tiles, "x_at + start * ROWS + n", "x_at + begin * (ROWS * TILE_K) + n", stored_ordered,
    ),
    "stored: the scale of another place in the mantissa": (
        stored_tiles, "addend16 if even", "addend12 if even", stored_parts,
    ),
    "stored: the fifth bit of a neighbour": (
        stored_tiles, "(place + 4 - n * each)) &", "(place + 5 - n * each)) &", stored_five_bits,
    ),
}  # fmt: skip
USERS = {
    decode_attention: (test_attention, "decode_attention"),
    extend_attention: (test_attention, "extend_attention"),
    few_rows: (test_few_rows, "added_product"),
    shared_extend: (test_shared_extend, "shared_extend_attention"),
    stored_tiles: (test_stored_tiles, "tile_matmul"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, before, after, run = MUTANTS[name]
    user, function = USERS[module]
    with checked():
        run()
    mutant = mutated(module, tmp_path, (before, after))
    monkeypatch.setattr(user, function, getattr(mutant, function))
    with checked(), pytest.raises((AssertionError, InterpreterError)):
        run()


@pytest.mark.long(every=2)
@pytest.mark.parametrize("lost", ["a piece", "a tile of a piece"])
def test_keys_that_are_in_no_piece_are_missed(lost: str) -> None:
    batch = Batch([1] * 3, [511, 99, 3], (4, 2), 64, 16, torch.float32, 3)
    pieces = PieceRule(1, 64, count=17).cut(batch.lengths)
    whole = fresh(batch)
    batch.decode(np.arange(3), pieces.copy(), None, None, whole)
    check(whole, batch.expected(None, None), torch.float32)
    last = np.flatnonzero((pieces[:, 0] == 0) & (pieces[:, 2] == 512))
    if lost == "a piece":
        pieces[last] = -1
    else:
        pieces[last, 2] -= 16
    out = fresh(batch)
    with checked(), pytest.raises(AssertionError):
        batch.decode(np.arange(3), pieces, None, None, out)
        check(out, batch.expected(None, None), torch.float32)
