"""The table of the kernels' numbers: what it says for the H200, what fits elsewhere, and that launchers read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from executors.kernels.triton import extend_attention, few_rows, shared_extend, tuning
from executors.kernels.triton.decode_attention import tuned
from executors.kernels.triton.extend_attention import MASKED, is_plain, rows_per_tile
from executors.kernels.triton.few_rows import FewRowsWorkspace, cut
from executors.kernels.triton.lora import splits_of
from executors.kernels.triton.tuning import E4M3, FLOAT32, HALF, HEADS, INT8, Choice, choose, rows, trying
from executors.llm.attention.triton_attention import piece_rule
from executors.llm.kernel_support.kernel_check import MOST_SPLITS, border_lengths
from executors.llm.memory.kv_cache import KvCache
from executors.llm.model.caches import KvSpec

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


@pytest.mark.parametrize("head", [9, 16, 64, 80, 128, 192, 256])
@pytest.mark.parametrize(
    ("kind", "dtype", "stored"), [(HALF, BF16, BF16), (E4M3, BF16, FP8), (FLOAT32, torch.float32, FP8)]
)
def test_attention_on_an_h200_has_the_numbers_that_were_measured(
    head: int, kind: str, dtype: torch.dtype, stored: torch.dtype
) -> None:
    """As formulas, which the launchers had before."""
    pad, wide = max(16, 1 << (head - 1).bit_length()), kind == FLOAT32
    one = tuned(head, dtype, stored)
    narrow = kind == E4M3 and pad == 128
    usual = max(16, min(64, 16384 // pad if kind != HALF else 4096 // pad))
    assert one.depth == (128 if narrow and head == pad else 32 if pad == 256 and kind != HALF else usual)
    assert one.widened == narrow
    assert tuned(head, dtype, stored, 30.0).depth == min(64, one.depth), "a cap takes registers"
    assert (one.warps, one.stages, one.merged) == ((8, 3, 4096) if wide else (4, 5, 8192))
    assert (one.programs, one.least) == (3, 64)
    assert rows_per_tile(2, head) == (64 if head > 128 else 128)
    assert rows_per_tile(2, head, torch.float32) == (64 if pad > 64 else 128)
    many = choose("extend_attention", kind, tuning.head_shape(head))
    narrowed = kind == HALF and 128 < head < pad  # with 32 keys they spill
    assert many.depth == ((16 if pad > 64 else 32) if wide else 16 if narrowed else 32 if pad > 128 else 64)
    assert many.warps == (8 if pad == 128 else 16) if wide else many.warps == (8 if pad <= 128 else 4)
    assert many.stages == (1 if wide and pad == 256 else 2 if wide or pad > 128 else 5)


def test_products_on_an_h200_have_the_numbers_that_were_measured() -> None:
    def numbers(*key: str | int) -> tuple[int, ...]:
        one = rows(90)[key]  # type: ignore[index]
        return one.warps, one.stages, one.rows, one.outputs, one.depth

    assert numbers("few_rows", HALF, "") == (4, 5, 0, 32, 128) and numbers("few_rows", FLOAT32, "") == (
        4,
        2,
        0,
        32,
        32,
    )
    assert [numbers("one_row", "", f"{size}{gated}")[:4:3] for size in ("short", "long") for gated in ("", " gated")] == [
        (1, 2), (1, 1), (2, 4), (1, 2),
    ]  # fmt: skip
    assert [numbers("block_product", E4M3, size)[:4] for size in (16, 32, 64, 128)] == [
        (4, 6, 0, 32), (4, 6, 0, 32), (4, 4, 0, 64), (8, 3, 0, 128),
    ]  # fmt: skip
    assert numbers("experts", HALF, "many") == (8, 3, 128, 128, 64)
    assert numbers("lora_shrink", HALF, "few") == (4, 4, 0, 16, 128)
    assert numbers("lora_expand", FLOAT32, "") == (4, 2, 0, 64, 32)
    assert numbers("stored_row", "", "table") == (2, 0, 0, 4, 16)


@pytest.mark.parametrize("architecture", [75, *tuning.SHARED_KIB])
def test_every_architecture_has_every_row(architecture: int) -> None:
    found = rows(architecture)
    assert found.keys() == rows(tuning.TUNED_ON).keys()
    for head in HEADS:
        # Queries of one dtype have one size of tiles, whatever their keys are stored in.
        shapes = (head, f"{head} plain", f"{head} filled")
        assert (
            len({found["extend_attention", kind, one].rows for kind in (HALF, E4M3, INT8) for one in shapes})
            == 1
        )
        assert len({found["extend_attention", FLOAT32, one].rows for one in shapes}) == 1
        for kind in (HALF, E4M3, INT8, FLOAT32):
            rules = {
                (row.parts, row.least, row.programs)
                for row in (found["shared_extend", kind, one] for one in shapes)
            }
            assert len(rules) == 1, "keys are cut before a launch chooses its row"
    for kind in (HALF, FLOAT32):
        assert found["few_rows", HALF, ""].depth % found["few_rows", kind, ""].depth == 0, (
            "whole steps in a part"
        )
        shrinks = {
            (found["lora_shrink", kind, size].parts, found["lora_shrink", kind, size].least)
            for size in ("few", "many")
        }
        assert shrinks == {(8, 256), (2, 256)}
    named = tuning._ROWS.keys() | tuning._HOPPER.keys()
    changed = {key for key in named if found[key] != rows(tuning.TUNED_ON)[key]}
    for kernel, kind, shape in found.keys() - named:
        assert found[kernel, kind, shape] == found[kernel, kind, int(str(shape).partition(" ")[0])]
    less = tuning.SHARED_KIB.get(architecture, 0) < 148
    wide = {(f"{kernel}_attention", FLOAT32, head) for kernel in ("decode", "extend") for head in (256, 512)}
    stored = {("stored_tile", HALF, size) for size in (16, 32, 64)}
    wanted = wide | {("stored_tile", HALF, 64)} if less else set()
    if architecture in (100, 103):  # Blackwell's own matrix instructions take no codes from registers
        wanted |= stored | tuning._BLACKWELL.keys()
    if architecture in (80, 86, 87, 89, 120, 121):
        wanted |= tuning._OWN_REGISTERS.keys()
    if architecture != tuning.TUNED_ON:  # what was measured for Hopper holds for others by chance only
        same = {key for key, row in tuning._HOPPER.items() if found[key] == row}
        wanted = (wanted | tuning._HOPPER.keys()) - same
        assert len(same) <= 2
    assert changed == wanted


def test_the_check_at_the_start_knows_the_largest_tile() -> None:
    """Lengths that end at, before and behind a border of a tile, and one with a tile for each of its pieces."""
    spec = KvSpec(1, 16, 8, 128, BF16, torch.device("cpu"), 0.1, None, (None,), torch.float8_e4m3fn)
    key = "decode_attention", E4M3, 128
    with trying({key: replace(choose(*key), depth=64)}):
        smaller = border_lengths(spec, 16)
    assert smaller[0] == MOST_SPLITS * 64 and {127, 128, 129} <= {*smaller}
    usual = border_lengths(spec, 16)
    assert usual[0] == MOST_SPLITS * 128 and {255, 256, 257} <= {*usual}


def test_a_launcher_reads_the_row_and_a_trial_ends() -> None:
    key = "decode_attention", HALF, 128
    with trying({key: replace(choose(*key), depth=64, programs=5, least=128)}):
        spec = KvSpec(1, 16, 8, 128, BF16, torch.device("cpu"), 0.1, None, (None,))
        rule = piece_rule(spec, 100, False)
        assert (rule.programs, rule.tile, rule.least) == (100 * 5 // 8, 64, 128)
    assert choose(*key).depth == 32
    with pytest.raises(KeyError, match="no kernel reads"), trying({("decode", HALF, 128): Choice(1)}):
        pass
    with pytest.raises(KeyError):
        choose("few_rows", HALF, "many")


def test_shape_classes_of_heads() -> None:
    assert [tuning.head_shape(dim) for dim in (9, 16, 80, 128, 192, 512)] == [
        "16 filled", 16, "128 filled", 128, "256 filled", 512,
    ]  # fmt: skip
    assert tuning.head_shape(128, True) == "128 plain" and tuning.head_shape(112, True) == "128 filled"
    # A trial of a padded size holds for each class of it that has none of its own.
    key = "extend_attention", HALF, 128
    tried, other = replace(choose(*key), depth=16), replace(choose(*key), depth=32)
    with trying({key: tried, ("extend_attention", HALF, "128 plain"): other}):
        assert [choose("extend_attention", HALF, shape) for shape in (128, "128 filled", "128 plain")] == [
            tried, tried, other,
        ]  # fmt: skip


def _plain(tokens: int = 512, heads: int = 16, kv_heads: int = 8, dim: int = 128, **not_plain: Any) -> bool:
    usual = {"window": None, "softcap": None, "sinks": False}
    return is_plain(tokens, heads, kv_heads, dim, BF16, **{**usual, **not_plain})


def test_prompts_of_plain_heads_take_larger_tiles_of_keys_on_hopper() -> None:
    for kernel in ("extend_attention", "shared_extend"):
        assert [choose(kernel, HALF, shape).depth for shape in ("128 plain", 128, "128 filled")] == [
            128, 64, 64,
        ]  # fmt: skip
        assert all(choose(kernel, kind, "128 plain").depth == 64 for kind in (E4M3, INT8))
        for number in tuning.SHARED_KIB.keys() - {90}:
            assert rows(number)[kernel, HALF, "128 plain"].depth <= 64
    # The queries of 512 rows of 16 heads, of 256 rows of 32, fill 64 tiles; one less is few.
    assert _plain() and not _plain(511) and not _plain(64)
    assert _plain(256, 32) and not _plain(255, 32) and _plain(64, 128, 16)
    assert [kv for kv in (2, 4, 8, 16, 32) if _plain(8192, 32, kv)] == [4, 8, 16, 32]
    assert not _plain(8192, 28, 4), "a group of seven"
    assert not any(_plain(8192, **one) for one in ({"window": 4096}, {"softcap": 50.0}, {"sinks": True}))


@pytest.mark.parametrize(
    ("changes", "tile"),
    [
        ({}, 128), ({"tokens": 255}, 64), ({"window": 4096}, 64), ({"softcap": 50.0}, 64), ({"loop": MASKED}, 64),
        ({"kv_heads": 2}, 64), ({"dim": 112}, 64), ({"stored": torch.int8}, 64), ({"steady": True}, 64),
    ],
)  # fmt: skip
def test_a_launch_for_many_queries_reads_the_row_for_plain_heads(
    changes: dict[str, Any], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`steady`: tiles of one size, whatever is beside a query. Keys that programs share take those, too."""
    tokens, kv_heads, dim, stored = (
        changes.get(name, usual)
        for name, usual in (("tokens", 256), ("kv_heads", 8), ("dim", 128), ("stored", BF16))
    )
    how = {name: one for name, one in changes.items() if name in ("window", "softcap", "loop", "steady")}
    launched: list[int] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *_, TILE, **__: launched.append(TILE)

    monkeypatch.setattr(extend_attention, "_extend_kernel", Kernel())
    monkeypatch.setattr(shared_extend, "_shared_extend_kernel", Kernel())
    spec = KvSpec(
        1,
        32,
        kv_heads,
        dim,
        BF16,
        torch.device("cpu"),
        0.1,
        None,
        (None,),
        None if stored == BF16 else stored,
    )
    kv, peaks = KvCache(spec, 1, 16).parts(0)
    q, ints = torch.empty(tokens, 32, dim, dtype=BF16), torch.zeros(2, 6, dtype=torch.int32)
    given = (q, kv, q, ints)
    items = (ints[0], ints[0], ints[0], ints, 0.1)
    extend_attention.extend_attention(*given, *items, peaks=peaks, **how)
    if "steady" not in how:
        workspace = shared_extend.ExtendWorkspace(1, 32, kv_heads, dim, torch.device("cpu"), BF16)
        shared_extend.shared_extend_attention(*given, ints, *items, workspace, peaks=peaks, **how)
    assert set(launched) == {tile}


def test_programs_are_as_many_as_the_devices_processors() -> None:
    """Narrow products share their depth until each processor has a program."""
    assert cut(1024, 3072) == cut(1024, 3072, 132) == (32, 5, 640)
    assert cut(1024, 3072, 58) == (32, 2, 1536) and cut(1024, 3072, 170)[1] == 6
    assert splits_of(4, 2, 4096, True) == 8 and splits_of(4, 2, 4096, True, 16) == 2
    assert tuning.processors(torch.device("cpu")) == tuning.PROCESSORS == 132


def test_a_workspace_cuts_by_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "processors", lambda device: 58)
    workspace = FewRowsWorkspace([(1024, 3072)], torch.device("cpu"))
    assert workspace.cuts == {(1024, 3072): (32, 2, 1536)}
    assert len(workspace.partial) == 32 * 2 * 16 * 32
    with pytest.raises(KeyError):  # a weight that the workspace may be too small for
        few_rows.added_product(torch.zeros(2, 3072), torch.zeros(2048, 3072), torch.zeros(2, 2048), workspace)


@pytest.mark.long(full=True)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("architecture", [89])
def test_every_tile_fits_into_shared_memory(architecture: int, tmp_path: Path) -> None:
    """Of the smallest there is, which sm_86 and sm_120 have as well; compiled, because buffers are the compiler's choice."""
    path = tmp_path / "found.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [
        "-m",
        "tests.gpu.compiled",
        "--json",
        str(path),
        "--architecture",
        str(architecture),
        "--of-each-size",
    ]
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, env=environment,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert path.exists(), done.stderr[-3000:]
    found = json.loads(path.read_text("utf-8"))["kernels"]
    kernels = {one["kernel"] for one in found}
    assert {
        "_split_kernel",
        "_extend_kernel",
        "_few_rows_kernel",
        "_block_kernel",
        "_product_kernel",
    } <= kernels
    assert [one for one in found if one["error"]] == []
    limit = 1024 * tuning.SHARED_KIB[architecture]
    largest = sorted(found, key=lambda one: -one["shared"])
    print(*((one["shared"], one["kernel"], one["types"]) for one in largest[:5]), sep="\n")
    assert 0.8 * limit < largest[0]["shared"] <= limit, largest[0]
