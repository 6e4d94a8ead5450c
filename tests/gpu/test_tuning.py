"""The table of the kernels' numbers: what it says for the H200, what fits elsewhere, and that launchers read it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from executors.kernels.triton import few_rows, tuning
from executors.kernels.triton.decode_attention import tuned
from executors.kernels.triton.extend_attention import rows_per_tile
from executors.kernels.triton.few_rows import FewRowsWorkspace, cut
from executors.kernels.triton.lora import splits_of
from executors.kernels.triton.tuning import E4M3, FLOAT32, HALF, HEADS, INT8, Choice, choose, rows, trying
from executors.llm.attention.triton_attention import piece_rule
from executors.llm.kernel_support.kernel_check import MOST_SPLITS, border_lengths
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
    assert one.depth == (128 if narrow else 32 if pad == 256 and kind != HALF else usual)
    assert one.widened == narrow
    assert (one.warps, one.stages, one.merged) == ((8, 3, 4096) if wide else (4, 5, 8192))
    assert (one.programs, one.least) == (3, 64)
    assert rows_per_tile(2, head) == (64 if head > 128 else 128)
    many = choose("extend_attention", kind, tuning.head_class(head))
    assert many.depth == ((16 if pad > 64 else 32) if wide else 32 if pad > 128 else 64)
    assert many.warps == (16 if wide else 8 if pad <= 128 else 4)
    assert many.stages == (2 if wide or pad > 128 else 5)


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
        assert len({found["extend_attention", kind, head].rows for kind in (HALF, E4M3, INT8)}) == 1
    for kind in (HALF, FLOAT32):
        assert found["few_rows", HALF, ""].depth % found["few_rows", kind, ""].depth == 0, (
            "whole steps in a part"
        )
        shrinks = {
            (found["lora_shrink", kind, size].parts, found["lora_shrink", kind, size].least)
            for size in ("few", "many")
        }
        assert shrinks == {(8, 256), (2, 256)}
    changed = {key for key in found if found[key] != rows(tuning.TUNED_ON)[key]}
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
    assert done.returncode == 0, done.stderr[-3000:]
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
