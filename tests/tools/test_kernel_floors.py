"""The lines beside the kernels are those of the record, and say what the record says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools import kernel_floors
from tools.kernel_floors import KERNELS, NOT_MEASURED, PAGE, ROWS, Measured, line, page, records

ROW = {"us": 250.0, "gb_per_s": 4000.0}
FIGURES: dict[str, Any] = {
    "copy_gb_per_s": 5000.0,
    "bf16_tflops": 800.0,
    "kernels": {"add and norm, 256 rows": ROW},
}


def measured(**rows: Any) -> Measured:
    """Of a device that copies 5 TB/s and multiplies 800 TFLOP/s."""
    return Measured("A card", "2026-11-26", "abc1234", 5e12, 8e14, {**FIGURES["kernels"], **rows})


def log_line(written: str, **changes: Any) -> str:
    """As the log has them."""
    row = {
        "part": "kernels",
        "state": "pass",
        "card": "A card",
        "commit": None,
        "written": written,
        "figures": FIGURES,
    }
    return json.dumps(row | changes)


def test_the_page_is_that_of_the_record() -> None:
    assert kernel_floors.main(["check"]) == 0, "run python -m tools.kernel_floors write"


def test_each_kernel_has_a_row() -> None:
    launched = {
        path.stem for path in KERNELS.glob("*.py") if re.search(r"_kernel(?:\[|\()", path.read_text("utf-8"))
    }
    assert launched == ROWS.keys(), "a file of kernels without a row in tools/kernel_floors.py"
    assert all(f"| `{name}.py" in PAGE.read_text("utf-8") for name in ROWS)


def test_a_line_says_what_bounds_the_kernel() -> None:
    assert (
        line("a", ROW, measured())
        == "| a | 1 GB at 5.00 TB/s | 200.0 | 250.0 | 80% | A card, 2026-11-26, abc1234 |"
    )
    both = {"us": 250.0, "gb_per_s": 400.0, "tflops": 600.0}
    assert line("a", both, measured()).startswith("| a | 150 GFLOP at 800 TFLOP/s | 187.5 | 250.0 | 75% |")


def test_a_time_that_is_not_possible_is_no_line() -> None:
    with pytest.raises(ValueError, match=r"a: 250.0 us are less than the least, 275.0 us"):
        line("a", {"us": 250.0, "gb_per_s": 5500.0}, measured())


def test_a_row_that_was_not_measured_is_left_out() -> None:
    made = page([measured()])
    assert made.count("| 250.0 |") == 1 and f"| `rotary.py` | | | {NOT_MEASURED} | | |" in made
    failed = {"add and norm, 256 rows": {"failed": "no memory"}}
    assert page([measured(**failed)]).count(NOT_MEASURED) == page([]).count(NOT_MEASURED) == len(ROWS)


def test_a_row_is_that_of_the_newest_record_that_has_it() -> None:
    newer = Measured("Newer", "2026-12-01", "d", 5e12, 8e14, {"add and norm, 8192 rows": ROW})
    made = page([newer, measured()]).splitlines()
    assert [one.split("|")[-2].strip() for one in made if "`norms.py`" in one] == [
        "A card, 2026-11-26, abc1234", "Newer, 2026-12-01, d",
    ]  # fmt: skip


def test_an_old_page_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel_floors, "PAGE", tmp_path / "times.md")
    assert kernel_floors.main(["check"]) == 1 and "kernel_floors write" in capsys.readouterr().out
    assert kernel_floors.main(["write"]) == kernel_floors.main(["check"]) == 0
    (tmp_path / "times.md").write_text(
        (tmp_path / "times.md").read_text("utf-8").replace("97%", "99%"), "utf-8"
    )
    assert kernel_floors.main(["check"]) == 1


def test_records_are_lines_of_the_log_the_newest_first(tmp_path: Path) -> None:
    assert records(tmp_path) == []
    lines = [
        log_line("2026-11-25T05:00:00Z"), log_line("2026-11-27T05:00:00Z", state="fail"),
        log_line("2026-11-28T05:00:00Z", part="steps", figures={}), log_line("2026-11-26T05:00:00Z", part="kernels-all"),
    ]  # fmt: skip
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    assert [(one.date, one.commit, one.copy) for one in records(tmp_path)] == [
        ("2026-11-26", "unknown", 5e12), ("2026-11-25", "unknown", 5e12),
    ]  # fmt: skip
