"""Which candidate for the kernels' table is taken, and the tool in its smallest form."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import interpreted

interpreted.prepare()

import torch  # noqa: E402

from benchmarks.gpu import tuning  # noqa: E402
from benchmarks.gpu.tuning import Place, Trial, Tuned, Work, attempt, best, distance, gain, variants  # noqa: E402
from executors.kernels.triton.tuning import HALF, Choice, choose, rows  # noqa: E402
from tools import gpu_tune  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KEY = "decode_attention", HALF, 128
USUAL = Trial(Choice(4), (1.0, 2.0))


def test_the_fastest_that_is_right_is_taken() -> None:
    faster, wrong = Trial(Choice(8), (0.9, 1.9)), Trial(Choice(2), (), "off by 1")
    fastest = Trial(Choice(16), (0.5, 1.9))
    assert best([USUAL, faster, wrong, fastest]) is fastest
    assert gain(fastest, USUAL) == pytest.approx((0.5 + 0.05) / 2)
    assert best([USUAL, wrong]) is USUAL
    assert best([USUAL, Trial(Choice(8), (0.5, 3.4))]) is USUAL, (
        "half of one problem's time is lost at the other"
    )
    with pytest.raises(ValueError, match="as it stands: off"):
        best([wrong, faster])


def test_noise_changes_no_row() -> None:
    assert best([USUAL, Trial(Choice(8), (0.985, 1.97))]) is USUAL


def test_the_row_as_it_stands_comes_first_and_once() -> None:
    made = variants(KEY, depth=(16, 32, 64), warps=(4, 8))
    assert made[0] == choose(*KEY) and len(made) == len(set(made)) == 6
    assert [(one.depth, one.warps) for one in made[-2:]] == [(16, 8), (64, 8)], (
        "those that differ in both come last"
    )


def work(result: torch.Tensor, seen: list[int]) -> Work:
    """Expects ones."""

    def bind() -> Any:
        seen.append(choose(*KEY).depth)
        return [lambda: None], lambda: result

    return Work("a problem", torch.ones(2, 3), bind)


@pytest.mark.parametrize("wrong", [1.01, float("nan"), float("inf"), 0.0])
def test_a_result_that_differs_is_not_timed(wrong: float) -> None:
    seen: list[int] = []
    row = replace(choose(*KEY), depth=64)
    clock: Any = lambda calls: 1.0  # noqa: E731
    right = attempt(row, Tuned(KEY, (), list), [work(torch.ones(2, 3), seen)], clock)
    assert right.seconds == (1.0,) and seen == [64], "the candidate is in force while it is bound"
    result = torch.ones(2, 3)
    result[1] *= wrong
    found = attempt(row, Tuned(KEY, (), list), [work(result, seen)], clock)
    assert not found.seconds and "the result is off by" in found.fault
    assert choose(*KEY).depth == 32


def test_a_candidate_that_does_not_fit_is_passed_over() -> None:
    def clock(calls: list[Any]) -> float:
        raise RuntimeError("out of resource: shared memory\nRequired: 131072")

    found = attempt(choose(*KEY), Tuned(KEY, (), list), [work(torch.ones(2, 3), [])], clock)
    assert found.fault == "RuntimeError: out of resource: shared memory"


def test_distance_is_that_of_the_worst_row() -> None:
    expected = torch.ones(3, 4)
    actual = expected.clone()
    actual[2, 0] = 3.0
    assert distance(actual, expected) == pytest.approx(1.0) and distance(expected, expected) == 0


def test_time_that_is_up_leaves_candidates_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(gpu_tune.time, "monotonic", lambda: float(next(now)))
    tuned = [Tuned(KEY, variants(KEY, depth=(16, 32, 64)), lambda: [work(torch.ones(2, 3), [])])] * 2
    monkeypatch.setattr(tuning, "all_tuned", lambda place: iter(tuned))
    report = gpu_tune.tune(None, "", 3.0, lambda calls: 1.0)
    assert (report["tried"], report["untried"]) == (2, 4) and len(report["rows"]) == 1


def test_a_row_can_be_put_into_the_table() -> None:
    for key, choice in rows(90).items():
        text = gpu_tune.row_text(key, choice)
        names = {"HALF": "half", "E4M3": "e4m3", "INT8": "int8", "FLOAT32": "float32", "Choice": Choice}
        assert eval(f"{{{text}}}", names) == {key: choice}


def test_every_tuned_row_is_one_of_the_table() -> None:
    place = Place(torch.device("cpu"), torch.bfloat16, False)
    for tuned in tuning.all_tuned(place):
        assert (
            tuned.key in rows(90) and tuned.candidates[0] == choose(*tuned.key) and len(tuned.candidates) >= 3
        )


@pytest.mark.long
@pytest.mark.timeout(150)  # a candidate that has begun is tried to its end, on however busy a machine
def test_the_tool_in_its_smallest_form(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [
        sys.executable,
        "-m",
        "tools.gpu_tune",
        "--device",
        "cpu",
        "--tiny",
        "--seconds",
        "16",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=140, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(out.read_text("utf-8"))
    assert report["tiny"] and report["architecture"] == 90
    assert report["wrong"] == [], "interpreted, every candidate is right"
    # As many as this machine gets to; those of one kernel at least.
    assert report["tried"] >= 2 and "decode_attention" in {row["key"][0] for row in report["rows"]}
    assert all(us > 0 for row in report["rows"] for us in row["us"])
    assert "candidates tried" in done.stdout and "Choice(warps=" in done.stdout
