"""What gpu-check reckons its figures from, and what it makes of them: verdicts, a table, a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import profiled, serving, shapes
from benchmarks.gpu import steps as check_steps
from benchmarks.gpu.part import Failed, NotRun
from tests.gpu import agreement as check_agreement
from tests.gpu import session as check_tests
from tools.gpu_check.call import headline


def test_the_offline_workload_is_the_common_one() -> None:
    work = shapes.offline(256, 100, 1024, 10_000)
    assert (sum(map(len, work.prompts)), work.output_tokens) == (142_827, 133_966)
    # At 4.3 TB/s and 790 TFLOP/s it is bounded at 36,600 and 13,100 tokens a second, attention of prompts included.
    bounds = [
        work.output_tokens / shapes.least_seconds(name, work, 4.3e12, 790e12)
        for name in (shapes.SMALL, shapes.LARGE)
    ]
    assert bounds == pytest.approx([36_600, 13_100], rel=0.1)


def test_idle_time_is_what_no_interval_covers() -> None:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "kernel", "ts": 100.0, "dur": 50.0},
        {"ph": "X", "cat": "kernel", "ts": 120.0, "dur": 10.0},  # beside the first
        {"ph": "X", "cat": "gpu_memcpy", "ts": 152.0, "dur": 8.0},  # 2 us later: inside a step
        {"ph": "X", "cat": "kernel", "ts": 200.0, "dur": 100.0},  # 40 us later
        {"ph": "X", "cat": "cpu_op", "ts": 0.0, "dur": 1000.0},
        {"ph": "i", "cat": "kernel", "ts": 5.0},
    ]
    figures = check_steps.idle_figures(check_steps.device_intervals(events))
    assert figures["idle_share"] == pytest.approx(42 / 200)
    assert figures["idle_share_between_steps"] == pytest.approx(40 / 200)
    assert figures["longest_gap_us"] == pytest.approx(40)
    assert figures["reached"] is False
    assert "kernels" in figures["judged_by"]
    with pytest.raises(NotRun, match="saw no work"):
        check_steps.idle_figures([])


STEPS = [(0.0, 0.010), (0.012, 0.020), (0.0199, 0.030), (0.030, 0.040)]
"""One comes 2 ms late; another seems to begin before the end of the one before it, as far as events are exact."""


def test_idle_time_is_known_without_the_profiler() -> None:
    """Whose library may see nothing, which it says nowhere."""
    figures = check_steps.idle_figures([], STEPS)
    assert figures["idle_share_by_events"] == pytest.approx(2 / 40)
    assert figures["longest_gap_by_events_us"] == pytest.approx(2_000)
    assert figures["steps_by_events"] == 4
    assert figures["reached"] is False
    assert check_steps.idle_figures([], [*STEPS, (0.040, 0.050)])["reached"] is True
    assert "events" in figures["judged_by"] and "profiler saw no work" in figures["judged_by"]
    assert "idle_share_between_steps" not in figures
    assert "idle_share_by_events 0.05" in headline({"detail": "", "figures": figures})
    with pytest.raises(NotRun, match="saw no work"):
        check_steps.idle_figures([], STEPS[:1])


@pytest.mark.parametrize(("end", "reached"), [(0.005, True), (0.001, False)])
def test_the_profiler_judges_where_it_saw_kernels(end: float, reached: bool) -> None:
    figures = check_steps.idle_figures([(0.0, end), (0.0065, 0.1)], STEPS)
    assert figures["idle_share_between_steps"] == pytest.approx(0.065 - 10 * end)
    assert figures["idle_share_by_events"] == pytest.approx(2 / 40)
    assert figures["reached"] is reached
    assert "kernels" in figures["judged_by"]


@pytest.mark.parametrize(
    ("files", "judged_by", "problem"),
    [
        ({"TRACE": "kernels", "STEPS": "steps"}, "kernels", ""),
        ({"TRACE": "nothing", "STEPS": "steps"}, "events", ""),
        ({"STEPS": "steps", "PROBLEM": "x\nRuntimeError: CUPTI\n"}, "events", "RuntimeError: CUPTI"),
        ({"TRACE": "kernels", "PROBLEM": "x\nRuntimeError: events\n"}, "kernels", "RuntimeError: events"),
        ({"TRACE": "nothing", "STEPS": "none"}, NotRun, ""),
        ({"TRACE": "nothing", "PROBLEM": "RuntimeError: events\n"}, Failed, "RuntimeError: events"),
    ],
)
def test_one_way_that_fails_leaves_the_other(
    files: dict[str, str], judged_by: Any, problem: str, tmp_path: Path
) -> None:
    kernels = [{"ph": "X", "cat": "kernel", "ts": 100.0 * n, "dur": 99.0} for n in range(3)]
    contents = {
        "kernels": json.dumps({"traceEvents": kernels}), "nothing": json.dumps({"traceEvents": []}),
        "steps": json.dumps(STEPS), "none": "[]",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / getattr(profiled, name)).write_text(contents.get(content, content))
    if isinstance(judged_by, str):
        figures = check_steps.answered(tmp_path)
        assert judged_by in figures["judged_by"] and figures.get("problem", "") == problem
    else:
        with pytest.raises(judged_by, match=problem or "saw no work"):
            check_steps.answered(tmp_path)


def test_a_steps_time_is_summed_by_kernel() -> None:
    events: list[dict[str, Any]] = [{"ph": "X", "cat": "cpu_op", "name": "no", "ts": 0.0, "dur": 9_999.0}]
    for _ in range(2):  # steps
        events += [{"ph": "X", "cat": "kernel", "name": "gemm" + "x" * 500, "ts": 0.0, "dur": 30.0}] * 4
        events += [
            {"ph": "X", "cat": "kernel", "name": f"k{n}", "ts": 0.0, "dur": 1.0 + n / 100} for n in range(20)
        ]
        events += [
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 0.0, "dur": 2.0}
        ]
        events += [
            {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 0.0, "dur": 3.0}
        ]
    figures = check_steps.kernels_of_a_step(events)
    rows = figures["kernels_of_a_step"]
    assert figures["profiled_steps"] == 2 and len(rows) == 15
    assert rows[0] == {
        "kernel": "gemm" + "x" * 116, "us": 120.0, "launches": 4.0,
        "share": pytest.approx(120 / figures["device_us_per_step"]),
    }  # fmt: skip
    assert [row["kernel"][:11] for row in rows[1:3]] == ["Memcpy DtoH", "Memcpy HtoD"]
    assert rows[3]["kernel"] == "k19" and rows[3]["us"] == pytest.approx(1.19)
    listed = sum(row["us"] for row in rows)
    assert figures["device_us_per_step"] == pytest.approx(120 + 20 + 1.9 + 5)
    assert listed + figures["other_kernels_us"] == pytest.approx(figures["device_us_per_step"])
    assert check_steps.kernels_of_a_step(events[:1]) == {}


def test_an_executor_is_waited_for_while_it_captures() -> None:
    assert serving.capturing(("attention: x", "graphs: 3 of 35 captured"))
    assert not serving.capturing(("graphs: 35 of 35 captured",))
    assert not serving.capturing(("graphs: 3 of 35 captured; no more: out of memory",))
    assert not serving.capturing(("graphs: none", "attention: x"))


def test_other_tokens_are_found() -> None:
    expected = [[1, 2, 3]] * 40
    assert check_agreement.compare([[1, 2, 4], *expected[1:]], expected) == {"sequences": 40, "identical": 39}
    with pytest.raises(Failed, match="3 of 40 sequences differ from the plain way, number 1 at 2"):
        check_agreement.compare([expected[0], *[[1, 2, 4]] * 3, *expected[4:]], expected)


def test_failed_tests_are_named(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    assert check_tests.counts(path)["passed"] == 0
    path.write_text(
        '<testsuites><testsuite><testcase classname="m" name="a"/><testcase classname="m" name="b">'
        '<failure message="a  b"/></testcase>'
        '<testcase classname="m" name="c"><skipped/></testcase>'
        '<testcase classname="m" name="d"><properties><property name="not run" value="absent"/></properties></testcase>'
        "</testsuite></testsuites>"
    )
    assert check_tests.counts(path) == {
        "tests": 4, "passed": 1, "skipped": 1, "not_run": {"d": "absent"}, "failed": ["m::b: a b"],
    }  # fmt: skip
