"""gpu-check without a GPU: which parts a call runs, what it appends, and what it passes over from earlier calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.part import Options
from tools.gpu_check import __main__ as command
from tools.gpu_check import log
from tools.gpu_check.log import ROOT
from tools.gpu_check.parts import DEVICE, FIRST, PARTS, GpuPart

A, B, C = (GpuPart(name, ("-c", "pass"), 100.0, 10.0, f"part {name}", (f"{name}.py",)) for name in "abc")


class Machine:
    """A clock, a card and parts that take so many seconds and end in a state: 20 s and "pass" if nothing else is said."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.ran, self.ends, self.card = folder, 0.0, [], {}, "H200"
        self.code = dict.fromkeys("abc", "1")
        self.device_state = "pass"
        patch.setattr(command, "PARTS", (A, B, C))
        patch.setattr(command, "FIRST", ("c", "a"))
        patch.setattr(command, "run", self.run)
        patch.setattr(command.time, "monotonic", lambda: self.now)
        patch.setattr(log, "digest", lambda names: self.code.get(names[0][0], "device"))

    def run(self, part: GpuPart, options: Options, work: Path, env: Any, allowed: float) -> dict[str, Any]:
        work.mkdir(exist_ok=True)
        (work / f"{part.name}.log").write_text(f"printed by {part.name} in {ROOT}/tools\n")
        if part is DEVICE:
            self.now += 1.0
            figures = {"identity": {"device": self.card, "torch": "2.11", "triton": "3.6"}}
            return {"state": self.device_state, "seconds": 1.0, "detail": "", "figures": figures}
        self.ran.append(part.name)
        state, seconds = self.ends.get(part.name, ("pass", 20.0))
        self.now += min(seconds, allowed)
        if seconds > allowed:
            return {"state": "fail", "seconds": allowed, "detail": "killed", "figures": {"half": 1}}
        return {
            "state": state,
            "seconds": seconds,
            "detail": "" if state == "pass" else "why",
            "figures": {"whole": 1},
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
    assert row["options"]["device"] == "cuda" and row["digest"] == "1" and row["written"].endswith("Z")
    evidence = machine.folder / "out" / "b.evidence.txt"
    assert "printed by b in" in evidence.read_text() and str(ROOT) not in evidence.read_text()
    assert not (machine.folder / "out" / "a.evidence.txt").exists()

    machine.ends.clear()
    assert machine.call() == 0 and machine.ran == ["b"] and not evidence.exists()
    assert "a: passed 20" in capsys.readouterr().out
    assert machine.call() == 0 and machine.ran == []
    assert machine.call("--only", "c") == 0 and machine.ran == ["c"], "named: again"
    assert machine.call("--fresh") == 0 and machine.ran == ["a", "b", "c"]
    assert len(machine.rows) == 8, "nothing is taken back"


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


def test_what_does_not_fit_is_left_for_the_next_call(machine: Machine) -> None:
    machine.ends.update(a=("pass", 60.0), b=("pass", 90.0))
    # 100 less 5 for the end, 1 for the device and 60: 34 are left for b, which needs 90; then nothing for c.
    assert machine.call("--budget", "100") == 2 and machine.ran == ["a", "b"]
    assert machine.rows == [("a", "pass"), ("b", "not run")], "nothing is known against it"
    assert log.read(machine.folder / "out" / "log.jsonl")[-1]["figures"] == {"half": 1}, (
        "its figures are kept"
    )
    assert machine.call("--budget", "200") == 0 and machine.ran == ["b", "c"]


def test_a_part_over_its_own_limit_has_failed(machine: Machine) -> None:
    machine.ends["a"] = ("pass", 101.0)
    assert machine.call() == 1 and machine.rows == [("a", "fail"), ("b", "pass"), ("c", "pass")]


def test_without_a_device_nothing_is_run(machine: Machine) -> None:
    machine.device_state = "not run"
    assert machine.call() == 2 and machine.ran == [] and machine.rows == []


def test_first_has_its_own_order(machine: Machine) -> None:
    assert machine.call("--first") == 0 and machine.ran == ["c", "a"]
    with pytest.raises(SystemExit):
        command.parse(["--first", "--only", "a"])


# -- the table --------------------------------------------------------------------------------------------------------------


def test_limits_leave_room_for_a_cold_start_and_each_part_fits_a_call() -> None:
    for part in PARTS:
        assert part.least < part.limit < command.BUDGET
    assert DEVICE.limit >= 120
    assert sum(part.least for part in PARTS) < 2 * command.BUDGET
    least = {part.name: part.least for part in PARTS}
    assert (
        len(least) == len(PARTS) and DEVICE.limit + sum(least[name] for name in FIRST) < command.BUDGET - 10
    )


def test_what_parts_depend_on_is_there() -> None:
    """A name that is mistyped has the digest of nothing, which never changes."""
    for part in PARTS:
        assert all(log.digest((name,)) != log.digest(()) for name in part.sources), part.name


# -- the log ----------------------------------------------------------------------------------------------------------------


def test_the_digest_is_of_the_sources_alone(tmp_path: Path) -> None:
    source = tmp_path / "engine" / "a.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    first = log.digest(("engine",), tmp_path)
    (tmp_path / "engine" / "notes.txt").write_text("no code")
    assert log.digest(("engine",), tmp_path) == first == log.digest(("engine/a.py", "engine"), tmp_path)
    source.write_text("x = 2\n")
    assert log.digest(("engine",), tmp_path) != first


def test_a_line_names_no_paths_of_the_machine(tmp_path: Path) -> None:
    log.append(
        tmp_path / "log.jsonl",
        {"part": "a", "detail": f'File "{ROOT}/tools/x.py"; /usr/lib/libcuda.so; /mnt/models/m'},
    )
    [row] = log.read(tmp_path / "log.jsonl")
    assert row["detail"] == 'File "tools/x.py"; /usr/lib/libcuda.so; .../m'


def test_lines_that_are_none_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert log.read(path) == []
    path.write_text('[]\n{"part": 3}\n{"part": "a"}\n{"part": "b", "sta')
    assert log.read(path) == [{"part": "a"}]
    about = dict.fromkeys(("part", "digest", "card", "torch", "triton", "options"), 1)
    rows = [about | {"state": "pass", "n": n} for n in (1, 2)] + [
        about | {"state": "fail"},
        about | {"state": "pass", "torch": 2},
    ]
    assert log.passed(rows, about) == rows[1] and log.passed(rows[2:], about) is None


# -- what is told -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 2 * command.EACH_END, 2 * command.EACH_END + 1, 40 * command.EACH_END])
def test_the_first_and_the_last_of_an_output_are_kept(size: int, tmp_path: Path) -> None:
    data = b"".join(b"%09d\n" % line for line in range(size // 10 + 1))[:size]
    (tmp_path / "a").write_bytes(data)
    command.ends_kept(tmp_path / "a", tmp_path / "b")
    kept = (tmp_path / "b").read_bytes()
    if size <= 2 * command.EACH_END:
        assert kept == data
    else:
        assert kept.startswith(data[: command.EACH_END]) and kept.endswith(data[-command.EACH_END :])
        assert f"{size - 2 * command.EACH_END:,} bytes are left out".encode() in kept


def test_a_line_tells_what_was_found_and_missed() -> None:
    figures = {
        "tokens_per_s": 1018.4,
        "reached": False,
        "kernels": {},
        "fell_back": "graphs: none",
        "not_run": {"x": "absent"},
    }
    told = command.headline({"detail": "", "figures": figures})
    assert told == "; tokens_per_s 1,018.4; TARGET MISSED; THE SLOW WAY: graphs: none; not run: x"
    assert command.headline({"detail": "why", "figures": {"reached": True}}) == "; why; target reached"


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
    monkeypatch.setattr(command, "DEVICE", device)
    monkeypatch.setattr(command, "PARTS", (tests,))
    words = ["--device", "cpu", "--tiny", "--work", str(tmp_path), "--wheels", str(tmp_path / "none")]
    assert command.main(words) == 0
    output = capsys.readouterr().out
    assert "tests: not run" in output and "nothing is installed" in output
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["part"], row["card"]) for row in rows] == [("device", "made up"), ("tests", "made up")]
