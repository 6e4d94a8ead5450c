"""The lines beside each Triton kernel: bytes and operations that it needs, the least time for them, and the time measured.

    python -m tools.kernel_floors check | write

They are in executors/kernels/triton/times.md, beside the code and not in it: a part's record names digests of the code that it
ran, and would be out of date as soon as its figures were written there. Each is made from the newest record that
has it. Least is the larger of bytes over the copy's rate and operations over the matrix product's, both measured in the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu_check import log

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "executors" / "kernels" / "triton"
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PAGE = KERNELS / "times.md"
NOT_MEASURED = "not recorded on a GPU yet"
_HEAD = """# Times of the kernels

What each kernel has to read, write or multiply, the least time for that, and the time that was measured, with shapes of
Qwen3-0.6B in bf16. `python -m tools.kernel_floors write` makes it from the newest record of each row; a commit tells which
code ran.

| kernel | needs | least, us | measured, us | share | card, date, commit |
|---|---|---|---|---|---|"""
_ATTENTION = "triton, pages of 16"

ROWS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "decode_attention": (
        ("256 sequences of 1,024 keys", f"attention decode 256 x 1024, {_ATTENTION}"),
        ("1 sequence of 32,768 keys", f"attention decode 1 x 32768, {_ATTENTION}"),
    ),
    "extend_attention": (
        ("1 prompt of 8,192", f"attention extend 1 x 8192, {_ATTENTION}"),
        ("32 prompts of 128", f"attention extend 32 x 128, {_ATTENTION}"),
        ("8 chunks of 512 after 1,024", f"attention extend 8 x 512 after 1024, {_ATTENTION}"),
    ),
    "shared_extend": (
        ("64 new behind 7,000 keys", "extend 0.6B, 64 behind 7000, shared, no masks, base 2, near"),
        ("512 new behind 32,000 keys", "extend 0.6B, 512 behind 32000, shared, no masks, base 2, near"),
    ),
    "few_rows": (
        ("norm and qkv, 1 row", "norm and product qkv, 1 rows, in one launch"),
        ("norm, gate and up, 1 row", "norm and product gate and up and silu, 1 rows, in one launch"),
        ("o and add, 1 row", "product o and add, 1 rows, in one launch"),
        ("down and add, 16 rows", "product down and add, 16 rows, in one launch"),
    ),
    "norms": (("256 rows", "add and norm, 256 rows"), ("8,192 rows", "add and norm, 8192 rows")),
    "activation": (("256 rows", "silu and multiply, 256 rows"), ("8,192 rows", "silu and multiply, 8192 rows")),
    "rotary": (
        ("256 rows", "norm heads, rotate and write KV, 256 rows"),
        ("8,192 rows", "norm heads, rotate and write KV, 8192 rows"),
    ),
    "stored": (
        ("4096 x 4096 in Q4_K, 1 row", "product large in Q4_K, 1 rows"),
        ("the same, 4 rows", "product large in Q4_K, 4 rows"),
    ),
    "stored_tiles": (
        ("4096 x 4096 in Q4_K, 16 rows", "product o of 8B in Q4_K, 16 rows"),
        ("the same, 64 rows", "product o of 8B in Q4_K, 64 rows"),
    ),
    "sampling": (
        ("greedy, 256 rows", "sampling on the device, greedy, 256 rows"),
        ("top-k and top-p, 256 rows", "sampling on the device, top-k and top-p, 256 rows"),
    ),
    "experts": (),
    "fp8": (),
    "lora": (),
    "wide_rotary": (),
}  # fmt: skip
"""By file: a title, and the name of the record's row. Without rows: the part does not time these kernels."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A record of kernels. `copy` in bytes and `products` in operations a second; `rows` by name."""

    card: str
    date: str
    commit: str
    copy: float
    products: float
    rows: Mapping[str, Mapping[str, Any]]


def records(folder: Path = RESULTS) -> list[Measured]:
    """Return all records with times of kernels, lines of the log, the newest first."""
    found = [row for row in log.read(folder / "log.jsonl") if row.get("state") == "pass"]
    found.sort(key=lambda row: str(row["written"]), reverse=True)
    return [
        _measured(row)
        for row in found
        if {"kernels", "copy_gb_per_s", "bf16_tflops"} <= row["figures"].keys()
    ]


def _measured(row: Mapping[str, Any]) -> Measured:
    figures = row["figures"]
    return Measured(
        row["card"], str(row["written"])[:10], str(row.get("commit") or "unknown").split(",")[0],
        1e9 * figures["copy_gb_per_s"], 1e12 * figures["bf16_tflops"], figures["kernels"],
    )  # fmt: skip


def line(title: str, row: Mapping[str, Any], measured: Measured) -> str:
    """Return a row of a table. Raises ValueError for a time below the least, which no kernel reaches."""
    seconds = row["us"] / 1e6
    num_bytes, operations = row.get("gb_per_s", 0.0) * 1e9 * seconds, row.get("tflops", 0.0) * 1e12 * seconds
    times = {
        f"{_amount(num_bytes)}B at {measured.copy / 1e12:.2f} TB/s": num_bytes / measured.copy,
        f"{_amount(operations)}FLOP at {measured.products / 1e12:.0f} TFLOP/s": operations
        / measured.products,
    }
    why = max(times, key=lambda name: times[name])
    least = times[why]
    if least > seconds:
        raise ValueError(f"{title}: {1e6 * seconds:.1f} us are less than the least, {1e6 * least:.1f} us")
    on = f"{measured.card}, {measured.date}, {measured.commit}"
    return f"| {title} | {why} | {1e6 * least:.1f} | {1e6 * seconds:.1f} | {least / seconds:.0%} | {on} |"


def _amount(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.3g} k"


def page(found: Sequence[Measured]) -> str:
    """Return the page: each row from the first record that has it."""
    lines = [_HEAD]
    for name, rows in ROWS.items():
        own = []
        for title, row in rows:
            record = next((one for one in found if "us" in one.rows.get(row, {})), None)
            own += [line(f"`{name}.py`: {title}", record.rows[row], record)] if record is not None else []
        lines += own or [f"| `{name}.py` | | | {NOT_MEASURED} | | |"]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    """See the module."""
    made = page(records())
    if argv == ["write"]:
        PAGE.write_text(made, "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != made:
        print(f"{PAGE.name}: run python -m tools.kernel_floors write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
