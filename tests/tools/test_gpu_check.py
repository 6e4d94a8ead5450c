"""gpu-check without a GPU: which parts a call runs, what it appends, and what it passes over from earlier calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.part import Options
from tools.gpu_check import __main__ as command
from tools.gpu_check import call, log, meaning, process, sources
from tools.gpu_check import parts as table
from tools.gpu_check.log import ROOT
from tools.gpu_check.parts import AGAIN, BUDGETS, CALLS, DEVICE, DROPPED, MARGIN, PARTS, GpuPart

A, B, C = (GpuPart(name, ("-c", "pass"), 100.0, 10.0, f"part {name}") for name in "abc")
ONCE_MORE = GpuPart(AGAIN, (), 40.0, 10.0, "what failed")


class Machine:
    """A clock, a card and parts that take so many seconds and end in a state: 20 s and "pass" if nothing else is set."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.ran, self.ends, self.card = folder, 0.0, [], {}, "H200"
        self.code = dict.fromkeys("abc", "1")
        self.figures: dict[str, Any] = {"whole": 1}
        self.device_state = "pass"
        patch.setattr(command, "PARTS", (A, B, C))
        patch.setattr(call, "PARTS", (A, B, C))
        patch.setattr(command, "CALLS", {1: (A, B, C), 2: (ONCE_MORE, C)})
        patch.setattr(table, "DROPPED", ("b", "c"))
        patch.setattr(call.process, "run", self.run)
        patch.setattr(call.time, "monotonic", lambda: self.now)
        patch.setattr(
            sources,
            "changed",
            lambda recorded, root: [one for one in recorded if recorded[one] != self.code[one]],
        )

    def run(
        self, part: GpuPart, options: Options, work: Path, env: Any, allowed: float, figures: Path
    ) -> dict[str, Any]:
        work.mkdir(exist_ok=True)
        (work / f"{part.name}.log").write_text(f"printed by {part.name} in {ROOT}/tools\n")
        if part is DEVICE:
            self.now += 1.0
            identity = {"identity": {"device": self.card, "torch": "2.11", "triton": "3.6"}}
            found = dict.fromkeys(meaning.SAYS["device"], 1) | identity
            return {"state": self.device_state, "seconds": 1.0, "detail": "", "figures": found, "sources": {}}
        self.ran.append(part.name)
        state, seconds = self.ends.get(part.name, ("pass", 20.0))
        self.now += min(seconds, allowed)
        ran = {"sources": {part.name: self.code[part.name]}}
        if seconds > allowed:
            return {"state": "fail", "seconds": allowed, "detail": "killed", "figures": {"half": 1}, **ran}
        return {
            "state": state,
            "seconds": seconds,
            "detail": "" if state == "pass" else "why",
            "figures": self.figures,
            **ran,
        }

    def call(self, *words: str) -> int:
        self.ran = []
        return command.main(["--out", str(self.folder / "out"), "--work", str(self.folder / "work"), *words])

    @property
    def rows(self) -> list[tuple[str, str]]:
        rows = log.read(self.folder / "out" / "log.jsonl")
        return [(row["part"], row["state"]) for row in rows if row["part"] != "device"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.delenv(command.OUT_VARIABLE, raising=False)
    return Machine(tmp_path, monkeypatch)


def test_parts_run_in_order_and_what_passed_is_passed_over(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.ends["b"] = ("fail", 5.0)
    assert machine.call("--device-kind", "some-h200") == 1 and machine.ran == ["a", "b", "c"]
    assert machine.rows == [("a", "pass"), ("b", "fail"), ("c", "pass")]
    row = log.read(machine.folder / "out" / "log.jsonl")[1]
    assert (row["card"], row["kind"], row["torch"], row["figures"]) == (
        "H200",
        "some-h200",
        "2.11",
        {"whole": 1},
    )
    assert (
        row["options"]["device"] == "cuda" and row["sources"] == {"a": "1"} and row["written"].endswith("Z")
    )
    evidence = machine.folder / "out" / "evidence.txt"
    assert "printed by b in" in evidence.read_text() and str(ROOT) not in evidence.read_text()
    assert "printed by a" not in evidence.read_text()

    machine.ends.clear()
    assert machine.call() == 0 and machine.ran == ["b"] and not evidence.exists()
    assert "a: passed 20" in capsys.readouterr().out
    assert machine.call() == 0 and machine.ran == []
    assert machine.call("--only", "c") == 0 and machine.ran == ["c"], "named: again"
    assert machine.call("--fresh") == 0 and machine.ran == ["a", "b", "c"]
    assert len(machine.rows) == 8, "nothing is taken back"


def test_figures_that_no_rule_can_read_fail_their_part_and_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(part: str, *rest: Any) -> list[str]:
        return [] if part != "a" else [][1]

    monkeypatch.setattr(meaning, "faults", breaks)
    assert machine.call() == 1 and machine.rows == [("a", "fail"), ("b", "pass"), ("c", "pass")]
    row = log.read(machine.folder / "out" / "log.jsonl")[1]
    assert "no rule can read them: IndexError" in row["detail"] and row["figures"] == {"whole": 1}


def test_few_files_come_back_however_many_parts_fail(machine: Machine) -> None:
    """A machine may give back eight, and of more the log may be the one that is missing."""
    machine.ends.update(dict.fromkeys("abc", ("fail", 5.0)))
    assert machine.call() == 1
    assert {path.name for path in (machine.folder / "out").iterdir()} == {"log.jsonl", "evidence.txt"}
    text = (machine.folder / "out" / "evidence.txt").read_text()
    assert [text.count(f"printed by {name} in") for name in "abc"] == [1, 1, 1]
    machine.ends["a"] = ("pass", 5.0)
    assert machine.call() == 1
    text = (machine.folder / "out" / "evidence.txt").read_text()
    assert [text.count(f"printed by {name} in") for name in "abc"] == [0, 1, 1], "each part's newest alone"


def test_what_is_absent_is_tried_again_and_no_failure(machine: Machine) -> None:
    machine.ends["a"] = ("not run", 1.0)
    assert machine.call() == 0 and machine.call() == 0 and machine.ran == ["a"]


def test_other_code_card_or_options_are_run_anew(machine: Machine) -> None:
    machine.call()
    machine.code["b"] = "2"
    assert machine.call() == 0 and machine.ran == ["b"], "an edit voids the parts that run it, no others"
    assert machine.call("--block-size", "32") == 0 and machine.ran == ["a", "b", "c"]
    machine.card = "H100"
    assert machine.call() == 0 and machine.ran == ["a", "b", "c"]
    machine.card = "H200"
    assert machine.call() == 0 and machine.ran == [], "and none of it is forgotten"


def test_a_call_that_is_late_drops_parts_in_the_stated_order(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    # 5 of 36 are for the end, 1 is the device's: 30 are left for three parts of 10, of which a takes 20.
    machine.ends["a"] = ("pass", 10.5)
    assert machine.call("--budget", "36") == 2 and machine.ran == ["a", "c"]
    assert "b: left out, 20 s are left for 2 parts" in capsys.readouterr().out
    assert machine.rows == [("a", "pass"), ("c", "cut off")], "c needed 20 s and had the 19.5 that were left"
    assert machine.call("--budget", "46") == 0 and machine.ran == ["b", "c"], "what passed takes no time"


def test_what_the_calls_end_cuts_off_is_left_for_the_next_call(machine: Machine) -> None:
    machine.ends.update(a=("pass", 60.0), b=("pass", 90.0))
    # 100 less 5 for the end, 1 for the device and 60: 34 are left for b, which needs 90; then nothing for c.
    assert machine.call("--budget", "100") == 2 and machine.ran == ["a", "b"]
    assert machine.rows == [("a", "pass"), ("b", "cut off")], "nothing is known against it"
    last = log.read(machine.folder / "out" / "log.jsonl")[-1]
    assert last["figures"] == {"half": 1} and last["detail"] == "the call's time ended after 34 s"
    assert machine.call("--budget", "200") == 0 and machine.ran == ["b", "c"]


def test_a_part_over_its_own_limit_has_failed(machine: Machine) -> None:
    machine.ends["a"] = ("pass", 101.0)
    assert machine.call() == 1 and machine.rows == [("a", "fail"), ("b", "pass"), ("c", "pass")]


def test_without_a_device_nothing_is_run(machine: Machine) -> None:
    machine.device_state = "not run"
    assert machine.call() == 2 and machine.ran == [] and machine.rows == []


def test_figures_that_cannot_be_are_a_failure(machine: Machine) -> None:
    machine.figures = {"share_of_roofline": 1.2}
    assert machine.call("--only", "a") == 1 and machine.rows == [("a", "fail")]
    row = log.read(machine.folder / "out" / "log.jsonl")[-1]
    assert row["detail"] == "figures that cannot be: share_of_roofline is 1.2, a share of at most 1.05"
    assert row["figures"] == machine.figures, "they are kept as they are"


def test_the_second_call_runs_once_more_what_failed_in_the_first(machine: Machine) -> None:
    machine.ends.update(a=("fail", 5.0), b=("fail", 25.0))
    assert machine.call() == 1 and machine.ran == ["a", "b", "c"]
    machine.ends["a"] = ("pass", 25.0)
    assert machine.call("--call", "2") == 2 and machine.ran == ["a", "b"], "c has passed; nothing else failed"
    assert machine.rows[-2:] == [("a", "pass"), ("b", "cut off")], "40 s are the most for all of them"
    machine.ends.clear()
    assert machine.call("--call", "2") == 0 and machine.ran == ["b"]
    machine.card = "H100"
    assert machine.call("--call", "2") == 0 and machine.ran == ["c"], "nothing failed on this card"


def test_what_failed_in_the_same_call_is_not_run_once_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CALLS", {2: (A, ONCE_MORE)})
    machine.ends["a"] = ("fail", 5.0)
    assert machine.call("--call", "2") == 1 and machine.ran == ["a"]
    assert machine.call("--call", "2") == 1 and machine.ran == ["a", "a"]


def test_what_a_call_knows_outlives_its_folder_of_results(machine: Machine) -> None:
    """Which is a new, empty one at each call on a lent machine."""
    machine.ends["a"] = ("fail", 5.0)
    assert machine.call() == 1
    for file in (machine.folder / "out").iterdir():
        file.unlink()
    machine.ends.clear()
    assert machine.call("--call", "2") == 0 and machine.ran == ["a"], (
        "a failed in the first call, c has passed"
    )
    assert machine.rows == [("a", "pass")]


def test_logs_are_merged_by_time_and_each_line_is_there_once(tmp_path: Path) -> None:
    a, b = (
        {"part": part, "state": "pass", "written": f"2026-12-0{day}T00:00:00Z"}
        for part, day in (("a", 2), ("b", 1))
    )
    log.append(tmp_path / "1", a)
    log.append(tmp_path / "2", a)
    log.append(tmp_path / "2", b)
    assert [row["part"] for row in log.merged(tmp_path / "1", tmp_path / "2", tmp_path / "none")] == [
        "b",
        "a",
    ]


def test_a_call_that_was_killed_left_what_its_part_had_found(machine: Machine) -> None:
    """Nothing ends it in order: its machine was taken away."""
    begun = log.begin(machine.folder / "out", {"part": "b", "card": "H200", "commit": "1234567"})
    with begun.open("a") as file:
        file.write('{"rate": 3.0}\n{"rate": 4.0}\n{"oth')
    assert machine.call("--only", "a") == 0
    row = log.read(machine.folder / "out" / "log.jsonl")[0]
    assert (row["part"], row["state"], row["figures"]) == ("b", "cut off", {"rate": 4.0})
    assert (row["card"], row["commit"], row["sources"]) == ("H200", "1234567", None)
    assert not list((machine.folder / "out").glob("*.begun.jsonl"))


# -- the plan ---------------------------------------------------------------------------------------------------------------


def test_each_call_fits_its_budget() -> None:
    for number, parts in CALLS.items():
        assert DEVICE.expected + sum(part.expected for part in parts) + MARGIN <= BUDGETS[number]
        assert all(part.why for part in parts), "an estimate has a reason"
    # Start and transfers take a minute, the ends twenty seconds.
    assert 60 + sum(BUDGETS.values()) + 20 <= 15 * 60
    assert max(BUDGETS.values()) <= 9.5 * 60 and BUDGETS[2] <= 1.8 * 60


def test_a_part_that_hangs_leaves_time_for_others() -> None:
    assert all(part.expected < part.limit for part in PARTS)
    for number, parts in CALLS.items():
        assert all(part.limit < BUDGETS[number] / 2 for part in parts)
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert set(DROPPED) <= {part.name for parts in CALLS.values() for part in parts}


def test_whatever_is_late_the_first_parts_are_run() -> None:
    for number, parts in CALLS.items():
        names = [part.name for part in parts]
        for left in range(0, int(BUDGETS[number]), 7):
            fits = table.fitting(parts, left)
            assert [name for name in names if name in {part.name for part in fits}] == [
                part.name for part in fits
            ]
            dropped = [name for name in DROPPED if name in names and name not in {part.name for part in fits}]
            assert dropped == [name for name in DROPPED if name in names][: len(dropped)], (
                "in the stated order"
            )


def test_the_plan_is_printed_and_nothing_run(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--plan"]) == 0 and machine.ran == []
    printed = capsys.readouterr().out
    for part in (*CALLS[1], *CALLS[2]):
        [line] = [line for line in printed.splitlines() if line.startswith(f"{part.name} ")]
        assert line.endswith(part.why) and line.split()[1:3] == [f"{part.expected:.0f}", f"{part.limit:.0f}"]


# -- the log ----------------------------------------------------------------------------------------------------------------


def test_a_line_names_no_paths_of_the_machine(tmp_path: Path) -> None:
    log.append(
        tmp_path / "log.jsonl",
        {
            "part": "a",
            "state": "fail",
            "detail": f'File "{ROOT}/tools/x.py"; /usr/lib/libcuda.so; /mnt/models/m',
        },
    )
    [row] = log.read(tmp_path / "log.jsonl")
    assert row["detail"] == 'File "tools/x.py"; /usr/lib/libcuda.so; .../m'


def test_lines_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert log.read(path) == log.unreadable(path) == []
    lines = ["[]", '{"part": 3, "state": "pass"}', '{"part": "a", "state": "pass"}', '{"part": "b", "state": "odd"}',
             '{"part": "b", "state": "pass", "sources": {"engine": 3}}', '{"part": "b", "sta']  # fmt: skip
    path.write_text("\n".join(lines))
    assert log.read(path) == [{"part": "a", "state": "pass", "figures": {}, "sources": None}]
    assert log.unreadable(path) == [1, 2, 4, 5, 6]


def test_a_part_is_passed_over_as_long_as_the_files_that_it_ran_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "engine" / name).write_text("x = 1\n")
    (tmp_path / "modules").write_text("engine.a\n")
    ran = sources.of_modules(tmp_path / "modules", root=tmp_path)
    about = dict.fromkeys(("part", "card", "torch", "triton", "options"), 1)
    good = about | {"state": "pass", "sources": ran}
    rows = [
        good | {"n": 1},
        good | {"n": 2},
        good | {"state": "fail"},
        good | {"torch": 2},
        good | {"sources": None},
    ]
    assert log.passed(rows, about, tmp_path) == rows[1] and log.passed(rows[2:], about, tmp_path) is None
    (tmp_path / "engine" / "b.py").write_text("x = 2\n")
    assert log.passed(rows, about, tmp_path) == rows[1], "another file"
    (tmp_path / "engine" / "a.py").write_text("x = 2\n")
    assert log.passed(rows, about, tmp_path) is None


@pytest.mark.parametrize(("said", "commit"), [("1234567", "1234567"), ("", None), (None, None)])
def test_a_tree_without_a_history_has_the_commit_that_it_is_told(
    said: str | None, commit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv(log.COMMIT_VARIABLE, raising=False)
    if said is not None:
        monkeypatch.setenv(log.COMMIT_VARIABLE, said)
    assert log.commit() == commit


def test_a_line_behind_one_that_was_cut_off_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log.append(path, {"part": "a", "state": "pass", "figures": {}, "sources": None})
    path.write_text(path.read_text() + '{"part": "b", "sta')
    log.append(path, {"part": "c", "state": "pass", "figures": {"x": 1}, "sources": None})
    assert [row["part"] for row in log.read(path)] == ["a", "c"] and log.unreadable(path) == [2]


def test_the_newest_line_that_passed_is_found() -> None:
    rows = [{"part": "a", "state": state, "card": card, "n": n} for n, (state, card) in
            enumerate((("pass", "H200"), ("pass", "H100"), ("fail", "H200")))]  # fmt: skip
    assert log.newest(rows, "a") == rows[1] and log.newest(rows, "a", "H200") == rows[0]
    assert log.newest(rows, "b") is None


# -- what is told -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 2 * process.EACH_END, 2 * process.EACH_END + 1, 40 * process.EACH_END])
def test_the_first_and_the_last_of_an_output_are_kept(size: int, tmp_path: Path) -> None:
    data = b"".join(b"%09d\n" % line for line in range(size // 10 + 1))[:size]
    (tmp_path / "a").write_bytes(data)
    kept = process.ends_of(tmp_path / "a").encode()
    if size <= 2 * process.EACH_END:
        assert kept == data
    else:
        assert kept.startswith(data[: process.EACH_END]) and kept.endswith(data[-process.EACH_END :])
        assert f"{size - 2 * process.EACH_END:,} bytes are left out".encode() in kept


def test_a_line_tells_what_was_found_and_missed() -> None:
    figures = {
        "tokens_per_s": 1018.4,
        "reached": False,
        "kernels": {},
        "fell_back": "graphs: none",
        "not_run": {"x": "absent"},
    }
    told = call.headline({"detail": "", "figures": figures})
    assert told == "; tokens_per_s 1,018.4; TARGET MISSED; THE SLOW WAY: graphs: none; not run: x"
    assert call.headline({"detail": "why", "figures": {"reached": True}}) == "; why; target reached"


def test_where_the_log_goes(monkeypatch: pytest.MonkeyPatch) -> None:
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
    device, tests = (
        GpuPart(name, ("-m", "benchmarks.gpu", f"tests.tools.gpu_parts:{does}"), 60.0, 1.0, "stands in")
        for name, does in (("device", "passes"), ("tests", "is_absent"))
    )
    monkeypatch.setattr(call, "DEVICE", device)
    monkeypatch.setattr(command, "CALLS", {1: (tests,)})
    monkeypatch.setattr(meaning, "SAYS", {})
    words = ["--device", "cpu", "--tiny", "--work", str(tmp_path), "--wheels", str(tmp_path / "none")]
    assert command.main(words) == 0
    output = capsys.readouterr().out
    assert "tests: not run" in output and "nothing is installed" in output
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["part"], row["card"]) for row in rows] == [("device", "made up"), ("tests", "made up")]
