"""What the compiler makes of every kernel for Hopper (sm_90), which takes no GPU. `make test-gpu` prints all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executors.kernels.triton.tuning import HALF, HEADS, choose
from tests.gpu.compiled import HOPPER, Compiled, spills

pytestmark = [pytest.mark.long(full=True), pytest.mark.timeout(900)]

SHARED_LIMIT = 227 * 1024
"""Bytes that a program may have."""
EXTENDING = ("_extend_kernel", "_shared_extend_kernel")
STORED = "_stored_tile_kernel"
MULTIPLYING = ("_split_kernel", *EXTENDING, "_product_kernel", "_few_rows_kernel", STORED)
"""Kernels that multiply matrices of any of the types, with what comes next on its way."""
LORA = ("_shrink_kernel", "_expand_kernel")
"""Those of adapters, which multiply matrices as well."""
Found = dict[str, Any]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """See `compiled.py`, in a process whose kernels are not interpreted."""
    path: Path = tmp_path_factory.mktemp("compiled") / "found.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.compiled", "--json", str(path)],
        capture_output=True, text=True, check=False, env=environment, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert path.exists(), done.stderr[-3000:]  # spilled registers are a test of their own
    print(done.stdout)
    found: Found = json.loads(path.read_text("utf-8"))
    return found


def wide(one: Found) -> bool:
    """Whether matrices of float32 are multiplied: no instruction does that exactly, and threads hold what they multiply."""
    return one["kernel"] in (*MULTIPLYING, *LORA) and one["products"] == "-"


def test_every_kernel_is_launched(compiled: Found) -> None:
    assert compiled["missing"] == []


def test_every_launch_compiles_and_fits(compiled: Found) -> None:
    assert len(compiled["kernels"]) > 100
    assert [one for one in compiled["kernels"] if one["error"]] == []
    assert [one for one in compiled["kernels"] if one["shared"] > SHARED_LIMIT or not one["resident"]] == []


def test_registers_are_not_spilled(compiled: Found) -> None:
    assert spills([Compiled(**one) for one in compiled["kernels"]], HOPPER.arch) == []


def test_what_comes_next_is_loaded_meanwhile(compiled: Found) -> None:
    """But for prompts with heads of 256 and 512, where registers do not do, and where four stages were chosen so that two
    programs have room."""
    late = [
        one for one in compiled["kernels"]
        if one["kernel"] in MULTIPLYING and one["products"] != "-"
        and one["ahead"] == 0
        and not (one["kernel"] in EXTENDING and (one["constants"]["DIM_PAD"] >= 256 or one["stages"] == 4))
    ]  # fmt: skip
    assert late == []


def test_splits_are_computed_in_one_wave(compiled: Found) -> None:
    """As many as `piece_rule` counts on. But two of three of heads of 256 in 8 bits, whose widening takes registers, of tiles of
    128 keys, which are faster for all that, and of 16 heads that share a key (GLM-4: 254 registers)."""
    splits = [
        one for one in compiled["kernels"]
        if one["kernel"] == "_split_kernel" and one["products"] != "-"
        and not (one["constants"]["DIM_PAD"] == 256 and {"fp8e4nv", "i8"} & {*one["types"].split()})
        and one["constants"]["TILE"] < 128 and one["constants"]["GROUP"] < 16
    ]  # fmt: skip
    assert splits
    programs = {head: choose("decode_attention", HALF, head).programs for head in HEADS}
    assert [one for one in splits if one["resident"] < programs[one["constants"]["DIM_PAD"]]] == []


def test_partial_results_are_seen_by_who_adds_them_up(compiled: Found) -> None:
    """Threads wait for each other before one of them counts the piece, and its count releases and acquires for the device."""
    for kernel in ("_split_kernel", "_shared_extend_kernel"):
        shared = [one for one in compiled["kernels"] if one["kernel"] == kernel]
        assert shared and all(one["counted"] == 1 for one in shared)
    for kernel in ("_few_rows_kernel", STORED):
        products = [one for one in compiled["kernels"] if one["kernel"] == kernel]
        assert max(one["constants"]["PARTS"] for one in products) > 1
        assert all(one["counted"] == (one["constants"]["PARTS"] > 1) for one in products)


def test_matrices_are_multiplied_by_matrix_instructions(compiled: Found) -> None:
    """Hopper's own take 64 rows or more: of stored weights those are outputs, and codes come from registers."""
    products = [
        one for one in compiled["kernels"]
        if ("PAGE" in one["constants"] or "ROWS" in one["constants"]) and "rotary" not in one["kernel"]
    ]  # fmt: skip
    narrow = [one for one in products if one["products"] != "-"]
    for one in narrow:
        assert one["products"] == (
            "wgmma" if one["constants"]["ROWS"] >= 64 or one["kernel"] == STORED else "mma.sync"
        ), one
        assert one["copies"] > 0, one  # 16 bytes a thread, past the registers
    assert {one["kernel"] for one in narrow} == set(MULTIPLYING)
    for one in compiled["kernels"]:
        if one["kernel"] == "_block_kernel":
            assert one["products"] != "-", one


def test_products_of_adapters(compiled: Found) -> None:
    """Tiles of 16 rows by the smallest matrix instruction, those of 64 by Hopper's own; A and x are loaded ahead, 16 bytes a
    thread."""
    products = [one for one in compiled["kernels"] if one["kernel"] in LORA and not wide(one)]
    assert {one["kernel"] for one in products} == set(LORA)
    for one in products:
        assert one["products"] == ("wgmma" if one["constants"]["TILE_ROWS"] >= 64 else "mma.sync"), one
        assert one["resident"] >= 2, one
        if one["kernel"] == "_shrink_kernel":
            assert one["copies"] > 0 and one["ahead"] > 0, one


def test_programs_share_a_multiprocessor(compiled: Found) -> None:
    """Decode attention, products of few rows, experts and sampling wait for memory: while one program does, another computes."""
    kernels = (
        "_split_kernel",
        "_product_kernel",
        "_few_rows_kernel",
        "tiles_kernel",
        "rows_kernel",
        "limits_kernel",
    )
    alone = [one for one in compiled["kernels"] if one["kernel"] in kernels and one["resident"] < 2]
    assert [one for one in alone if not wide(one)] == []
