"""gpu-check without a GPU: what it remembers, what it says of parts that end badly, and that every part works as a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.gpu_check import __main__ as command
from tools.gpu_check import check_agreement, check_steps, check_tests, report, serving, shapes, wheels
from tools.gpu_check.conduct import NO_TIME, Conductor
from tools.gpu_check.launch import Launcher, environment
from tools.gpu_check.plan import DEVICE, PARTS, ROOT, Failed, NotRun, Options, Part
from tools.gpu_check.record import PART_SOURCES, Outcome, Record, State, sources_digest, write_json

A, B, C = (Part(name, "none", 100.0, 10.0, f"part {name}") for name in "abc")
HERE = "tests.tools.gpu_parts"


class Machine:
    """A clock, and parts that take `seconds` and end as they are told: by default they pass."""

    def __init__(self, path: Path, **ends: Any) -> None:
        self.path, self.ends, self.now, self.ran = path, ends, 0.0, []
        self.device = "H200"

    def launch(self, part: Part, allowed: float) -> Outcome:
        self.ran.append(part.name)
        if part is DEVICE:
            self.now += 1.0
            return Outcome(State.PASS, 1.0, figures={"identity": {"device": self.device}})
        end = self.ends.get(part.name, (State.PASS, 20.0))
        if isinstance(end, BaseException):
            raise end
        state, seconds = end
        self.now += min(seconds, allowed)
        if seconds > allowed:
            return Outcome(State.FAIL, allowed, "killed", {"half": 1})
        return Outcome(state, seconds, "" if state is State.PASS else "why", {"whole": 1})

    def check(self, budget: float = 1000.0, sources: str = "1", of_b: str = "", **how: Any) -> Record:
        self.ran = []
        conductor = Conductor(
            (DEVICE, A, B, C), self.launch, self.path, {"sources": sources}, budget=budget, clock=lambda: self.now,
            say=lambda line: None, sources={"b": of_b},
        )  # fmt: skip
        return conductor.run(**how)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    return lambda **ends: Machine(tmp_path / "record.json", **ends)


def states(record: Record) -> dict[str, str]:
    return {name: str(outcome.state) for name, outcome in record.outcomes.items() if name != DEVICE.name}


def test_all_parts_run_in_order_and_a_second_call_runs_none_of_them(machine: Callable[..., Machine]) -> None:
    here = machine(b=(State.FAIL, 5.0), c=(State.NOT_RUN, 1.0))
    record = here.check()
    assert here.ran == ["device", "a", "b", "c"]
    assert states(record) == {"a": "pass", "b": "fail", "c": "not run"}
    assert record.seconds == 27.0
    again = here.check()
    assert here.ran == ["device"], "what failed or is absent is settled, too"
    assert states(again) == states(record)
    assert again.seconds == 28.0
    assert here.check(fresh=True) and here.ran == ["device", "a", "b", "c"]
    assert here.check(anew=["b"]) and here.ran == ["device", "b"]


def test_what_does_not_fit_is_left_for_the_next_call(machine: Callable[..., Machine]) -> None:
    here = machine(a=(State.PASS, 60.0), b=(State.PASS, 90.0))
    record = here.check(budget=100.0)
    # 100 less 5 for the end, 1 for the device and 60: 34 are left for b, which needs 90; then nothing for c.
    assert here.ran == ["device", "a", "b"]
    assert states(record) == {"a": "pass", "b": "not run", "c": "not run"}
    assert record.outcomes["b"].detail == record.outcomes["c"].detail == NO_TIME
    assert record.outcomes["b"].figures == {"half": 1}, "what was found until then is kept"
    assert report.exit_code(record, (DEVICE, A, B, C)) == 2
    record = here.check(budget=200.0)
    assert here.ran == ["device", "b", "c"]
    assert set(states(record).values()) == {"pass"}
    assert report.exit_code(record, (DEVICE, A, B, C)) == 0


def test_a_part_over_its_own_limit_has_failed(machine: Callable[..., Machine]) -> None:
    record = machine(a=(State.PASS, 101.0)).check()
    assert states(record) == {"a": "fail", "b": "pass", "c": "pass"}
    assert report.exit_code(record, (DEVICE, A, B, C)) == 1


def test_a_call_that_is_cut_off_keeps_what_was_settled(machine: Callable[..., Machine]) -> None:
    here = machine(b=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        here.check()
    here.ends.clear()
    assert set(states(here.check()).values()) == {"pass"}
    assert here.ran == ["device", "b", "c"]


def test_results_of_other_sources_or_of_another_device_do_not_count(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.check()
    here.check(sources="2")
    assert here.ran == ["device", "a", "b", "c"]
    here.device = "H100"
    assert here.check(sources="2").identity == {"sources": "2", "device": "H100"}
    assert here.ran == ["device", "a", "b", "c"]


def test_what_one_part_depends_on_settles_the_others_not_anew(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.check(of_b="1")
    assert here.ran == ["device", "a", "b", "c"]
    here.check(of_b="2")
    assert here.ran == ["device", "b"]
    here.check(of_b="2")
    assert here.ran == ["device"]


def test_a_broken_record_is_no_record(machine: Callable[..., Machine]) -> None:
    here = machine()
    for content in ("", "[]", '{"identity": {}, "outcomes": {"a": 1}, "seconds": 0}'):
        here.path.write_text(content)
        here.check()
        assert here.ran == ["device", "a", "b", "c"]


def test_without_a_device_nothing_is_run_and_nothing_passes(machine: Callable[..., Machine]) -> None:
    here = machine()
    play = here.launch
    absent = Outcome(State.NOT_RUN, 1.0, "torch finds no CUDA device")
    here.launch = lambda part, allowed: absent if part is DEVICE else play(part, allowed)  # type: ignore[method-assign]
    record = here.check()
    assert set(states(record).values()) == {"not run"}
    assert "torch finds no CUDA device" in record.outcomes["a"].detail
    assert report.exit_code(record, (DEVICE, A, B, C)) == 2
    here.launch = play  # type: ignore[method-assign]
    assert set(states(here.check()).values()) == {"pass"}, "it was not settled"


def test_a_device_that_is_away_for_once_takes_nothing_back(machine: Callable[..., Machine]) -> None:
    here = machine()
    here.check()
    play = here.launch
    for state in (State.NOT_RUN, State.FAIL):
        away = Outcome(state, 1.0, "CUDA error: out of memory")
        here.launch = lambda part, allowed, away=away: away  # type: ignore[method-assign]
        assert set(states(here.check()).values()) == {"not run"}
    here.launch = play  # type: ignore[method-assign]
    assert set(states(here.check()).values()) == {"pass"}
    assert here.ran == ["device"]


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("passes", State.PASS, ""),
        ("is_absent", State.NOT_RUN, "nothing is installed"),
        ("fails", State.FAIL, "wrong numbers"),
        ("raises", State.FAIL, "RuntimeError: CUDA error"),
        ("lacks_a_module", State.FAIL, "make gpu-wheels"),
        ("crashes", State.FAIL, "killed by signal 11"),
        ("leaves", State.FAIL, "exit code 0"),
    ],
)
def test_how_a_part_ends(name: str, state: State, words: str, tmp_path: Path) -> None:
    options = Options("cpu", tiny=True)
    launcher = Launcher(options, tmp_path, environment(options, None))
    outcome = launcher(Part(name, f"{HERE}:{name}", 60.0, 1.0, name), 60.0)
    assert outcome.state is state
    assert words in outcome.detail.splitlines()[0] if words else not outcome.detail
    if name == "passes":
        assert outcome.figures == {"identity": {"device": "made up"}, "tiny": True, "tokens_per_s": 12.0}
    if name == "crashes":
        assert outcome.figures == {"tokens_per_s": 3.0}
        assert "the last words" in outcome.detail


@pytest.mark.long
def test_a_part_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    options = Options("cpu")
    launcher = Launcher(options, tmp_path, environment(options, None))
    outcome = launcher(Part("hangs", f"{HERE}:hangs", 3.0, 1.0, "hangs"), 3.0)
    assert outcome.state is State.FAIL
    assert outcome.detail.startswith("killed after 3 s, its limit")
    assert outcome.figures["tokens_per_s"] == 2.0
    started = Path(f"/proc/{outcome.figures['pid']}/stat")
    deadline = time.monotonic() + 10.0
    while started.exists() and started.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)


CUT_OFF = f"""
import signal, sys
from tools.gpu_check import __main__ as command, conduct, plan
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started under
conduct.DEVICE = plan.Part("device", "{HERE}:waits", 60.0, 1.0, "waits")
sys.exit(command.main(["--device", "cpu", "--work", sys.argv[1]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_it_ends_the_part_that_runs(number: int, tmp_path: Path) -> None:
    """Which would hold the device for minutes, and be in the way of the next call."""
    found = tmp_path / "device.json"
    with subprocess.Popen(
        [sys.executable, "-c", CUT_OFF, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 30.0
        while not found.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert (
        said.splitlines()[-1]
        == f"cut off; what was settled is in {tmp_path}/record.json: call again to go on"
    )
    assert "Traceback" not in said
    assert not Path(f"/proc/{json.loads(found.read_text())['figures']['pid']}").exists()


def test_kernels_are_interpreted_on_a_cpu_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("COHORT_API_KEY", "secret")
    on_gpu, on_cpu = (environment(Options(device), tmp_path) for device in ("cuda", "cpu"))
    assert "TRITON_INTERPRET" not in on_gpu and on_cpu["TRITON_INTERPRET"] == "1"
    assert "COHORT_API_KEY" not in on_gpu
    assert on_gpu["PYTHONPATH"].split(os.pathsep)[:2] == [str(ROOT), str(tmp_path)]


# -- every measuring part, as a program ----------------------------------------------------------------------------------

SMOKE = """
import sys, sysconfig
from pathlib import Path
from tools.gpu_check import child, plan
before = set(sys.modules)
measuring = [part for part in plan.PARTS if part.name != "tests"]
for part in sorted(measuring, key=lambda part: part.name == "peer"):
    if part.name == "peer":
        import executors.llm.grammar, executors.process.child, executors.process.client, llguidance
        site = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
        files = {name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
        print(*sorted(name for name, file in files.items() if name not in before and file.startswith(site)))
    child.perform(part.target, plan.Options("cpu", True, mode="inline"), Path(sys.argv[1], part.name + ".json"))
"""
OF_TORCH = {"torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "yaml", "filelock",
            "setuptools", "pkg_resources", "psutil", "optree", "tqdm"}  # fmt: skip
"""What torch imports itself is there where torch is."""
SAYS = {
    "device": {"copy_gb_per_s", "bf16_tflops", "identity", "about", "versions", "python"},
    "agreement": {"sequences", "identical", "executor_notes"},
    "kernels": {"kernels", "copy_gb_per_s"},
    "offline-0.6b": {"output_tokens_per_s", "roofline_tokens_per_s", "share_of_roofline", "executor_notes", "seconds"},
    "single-0.6b": {"tokens_per_s", "share_of_roofline", "ttft_ms"},
    "cohort": {"together_ms", "limit_ms", "reached", "factor_over_serial", "factor_over_serial_eager"},
    "steps": {"step_ms", "engine_ms_per_step"},
    "offline-8b": {"output_tokens_per_s"},
    "single-8b": {"tokens_per_s"},
    "peer": {"output_tokens_per_s", "transformers"},
}  # fmt: skip


@pytest.mark.long
def test_every_measuring_part_works_as_a_program(tmp_path: Path) -> None:
    env = {**environment(Options("cpu"), None), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(SAYS) == {part.name for part in PARTS} - {"tests"}
    for name, figures in SAYS.items():
        found = json.loads((tmp_path / f"{name}.json").read_text())
        # A CPU has no device whose idle time could be profiled.
        assert found["state"] == ("not run" if name == "steps" else "pass"), (
            name,
            found["detail"],
            done.stderr,
        )
        assert figures <= set(found["figures"]), name
    imported = {name for name in done.stdout.splitlines()[-1].split() if not name.startswith("_")} - OF_TORCH
    assert imported <= {*wheels.NEEDED.values(), "triton", "numpy", "safetensors"}, "gpu-wheels must bring it"
    assert {"msgspec", "setproctitle", "triton"} <= imported
    rows = json.loads((tmp_path / "kernels.json").read_text())["figures"]["kernels"]
    assert "not run" in rows["attention, flash-attn, pages of 256"]
    assert all(row.get("us", 0) > 0 for row in rows.values() if "not run" not in row)
    assert not any("failed" in row for row in rows.values())


# -- what parts are made of ----------------------------------------------------------------------------------------------


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
    with pytest.raises(NotRun, match="saw no work"):
        check_steps.idle_figures([])


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
