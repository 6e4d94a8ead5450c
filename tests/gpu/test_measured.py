"""The part `kernels` at its full sizes, of which a CPU's tiny run shows nothing: it makes all its rows, and the compiler takes
what it launches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import extend, weights

SHARED_LIMIT = 227 * 1024
"""Bytes that a program may have."""


def measured(folder: Path, *options: str) -> dict[str, Any]:
    """See `measured.py`, in a process whose kernels are not interpreted."""
    path = folder / "measured.json"
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.measured", "--json", str(path), *options],
        capture_output=True, text=True, env=env, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


@pytest.mark.long
def test_all_rows_are_made(tmp_path: Path) -> None:
    found = measured(tmp_path)
    rows = found["rows"]
    assert not any("not run" in row or "failed" in row for row in rows.values())
    for shape in extend.SHAPES:
        for new, past in (*extend.CHUNKS, extend.LONG):
            title = f"extend {shape}, {new} behind {past}"
            ways = {
                name.removeprefix(f"{title}, shared, ")
                for name in rows
                if name.startswith(f"{title}, shared, ")
            }
            loops = {*extend.LOOPS} if shape == "0.6B" else {*extend.LOOPS_OF_OTHERS}
            assert f"{title}, today" in rows and ways == loops | ({*extend.PROGRAMS} if past else set())
            # A chunk of 64 keeps 8 programs busy without pieces; with them as many as there are multiprocessors.
            if past:
                assert rows[f"{title}, shared, no masks, base 2, near"]["pieces"] == 16
    products = [name for name in rows if name.startswith("product ") and "in one launch" not in name]
    assert len(products) == len(weights.PRODUCTS) * len(weights.ROWS) * (3 + len(weights.STORED))
    assert sum(name.startswith("experts") for name in rows) == len(weights.ROWS) + 1
    names = {one["kernel"] for one in found["kernels"]}
    assert {
        "_extend_kernel",
        "_shared_extend_kernel",
        "_link_kernel",
        "_block_kernel",
        "_word_row_kernel",
        "_stored_tile_kernel",
    } <= names
    # With and without weights, with and without the launch attribute.
    assert sum(one["kernel"] == "_link_kernel" for one in found["kernels"]) == 4


@pytest.mark.long(full=True)
@pytest.mark.timeout(300)
def test_all_launches_compile_and_fit(tmp_path: Path) -> None:
    found = measured(tmp_path, "--compile")["kernels"]
    assert len(found) >= 30
    assert [one for one in found if one["error"] or one["shared"] > SHARED_LIMIT or not one["resident"]] == []
    # Tiles of 128 keys leave no register: a variant, to be timed.
    assert [one for one in found if one["spilled"] > (8 if one["constants"].get("TILE") == 128 else 0)] == []
