"""What gpu-check reckons its figures from, and what it makes of them: verdicts, a table, a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import profiled, serving, shapes
from benchmarks.gpu import steps as check_steps
from tests.gpu import agreement as check_agreement
from tests.gpu import session as check_tests
from tools.gpu_check import __main__ as command
from tools.gpu_check import evidence, report
from tools.gpu_check.plan import PARTS, ROOT, Failed, NotRun, Options, Part
from tools.gpu_check.record import PART_SOURCES, Outcome, Record, State, sources_digest, write_json

HERE = "tests.tools.gpu_parts"


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
    assert "5.0% between steps by events" in report.headline(Outcome(State.PASS, figures=figures))
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


def test_the_result_is_a_file_for_device_and_sources(tmp_path: Path) -> None:
    record = Record({"sources": "abc", "device": "NVIDIA H200"})
    record.outcomes = {
        "device": Outcome(
            State.PASS, 3.0, figures={"about": {}, "copy_gb_per_s": 4300.0, "bf16_tflops": 790.0}
        ),
        "offline-0.6b": Outcome(State.PASS, 60.0, figures={"output_tokens_per_s": 26_000.0, "reached": True}),
        "cohort": Outcome(
            State.PASS, 60.0, figures={"together_ms": 40.0, "limit_ms": 12.0, "reached": False}
        ),
        "peer": Outcome(State.PASS, 60.0, figures={"output_tokens_per_s": 6_500.0}),
        "tests": Outcome(State.FAIL, 9.0, "3 of 9 tests failed\na log"),
        "steps": Outcome(State.NOT_RUN, 1.0, "the profiler saw no work"),
    }
    path = report.write(record, PARTS, tmp_path / "out")
    assert path.name == "nvidia-h200-abc.json"
    kept = json.loads(path.read_text())
    assert kept["output_tokens_per_s_over_transformers"] == 4.0
    assert kept["targets_missed"] == ["cohort"]
    assert kept["parts"]["tests"]["state"] == "fail"
    assert kept["parts"]["single-8b"] == {
        "what": "one sequence, Qwen3-8B", "state": "not run", "seconds": 0.0, "detail": "not begun", "figures": {},
    }  # fmt: skip
    lines = {line.split()[0]: line for line in report.table(record, PARTS).splitlines()}
    assert "26,000 output tokens/s; target reached" in lines["offline-0.6b"]
    assert "TARGET MISSED" in lines["cohort"]
    assert "3 of 9 tests failed" in lines["tests"] and "a log" not in lines["tests"]
    assert "not run" in lines["steps"] and "pass" not in lines["steps"]
    assert report.exit_code(record, PARTS) == 1


def test_result_record_and_evidence_name_no_paths_of_the_machine(tmp_path: Path) -> None:
    log = f'File "{ROOT}/tools/x.py", line 1; /usr/lib/libcuda.so; /mnt/models/m'
    record = Record({"device": "H200"}, {PARTS[0].name: Outcome(State.FAIL, detail=f"{log}\nmore")})
    result = report.write(record, PARTS, tmp_path)
    record.save(tmp_path / "record.json")
    evidence.write(record, PARTS, tmp_path, tmp_path / "evidence.txt")
    for name in (result.name, "record.json", "evidence.txt"):
        text = (tmp_path / name).read_text().replace('\\"', '"')
        assert 'File "tools/x.py", line 1; /usr/lib/libcuda.so; .../m' in text, name
        assert str(ROOT) not in text and "/mnt" not in text, name
    assert Record.load(tmp_path / "record.json").identity == record.identity, "a later call goes on with it"


def test_where_results_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(command.OUT_VARIABLE, raising=False)
    assert command.out_folder(command.parse([])) == ROOT / "benchmarks" / "results" / "gpu"
    assert command.out_folder(command.parse(["--device", "cpu"])) == command.WORK, (
        "a CPU gives no result of a GPU"
    )
    monkeypatch.setenv(command.OUT_VARIABLE, "/somewhere")
    assert command.out_folder(command.parse([])) == Path("/somewhere")
    assert command.out_folder(command.parse(["--out", "/else"])) == Path("/else")


def test_the_whole_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (
        Part("device", f"{HERE}:passes", 60.0, 1.0, "stands in"),
        Part("tests", f"{HERE}:is_absent", 60.0, 1.0, "too"),
    )
    monkeypatch.setattr("tools.gpu_check.conduct.DEVICE", parts[0])
    given = command.parse(
        ["--device", "cpu", "--tiny", "--work", str(tmp_path), "--wheels", str(tmp_path / "none")]
    )
    assert command.check(given, Options("cpu", tiny=True), parts) == 0
    said = capsys.readouterr().out
    assert "tests          not run" in said and "nothing is installed" in said
    assert (tmp_path / "record.json").exists() and (tmp_path / "device.log").exists()
    assert len(list(tmp_path.glob("made-up-*.json"))) == 1


def test_the_digest_is_of_the_sources_alone(tmp_path: Path) -> None:
    source = tmp_path / "engine" / "a.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    first = sources_digest(tmp_path)
    (tmp_path / "engine" / "notes.txt").write_text("no code")
    assert sources_digest(tmp_path) == first
    source.write_text("x = 2\n")
    assert sources_digest(tmp_path) != first
    assert sources_digest(tmp_path, ("engine/a.py",)) == sources_digest(tmp_path, ("engine",))


def test_what_parts_depend_on_is_there() -> None:
    """A name that is mistyped has the digest of nothing, which never changes."""
    nothing = sources_digest(names=())
    for names in PART_SOURCES.values():
        assert all(sources_digest(names=(name,)) != nothing for name in names)


def test_json_replaces_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": State.PASS})
    assert json.loads(path.read_text()) == {"a": "pass"}
    assert [one.name for one in path.parent.iterdir()] == ["a.json"]
