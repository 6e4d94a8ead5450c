"""What gpu-check keeps of parts that did not pass, and which parts a short call takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.gpu_check import __main__ as command
from tools.gpu_check import evidence
from tools.gpu_check.evidence import EACH_END
from tools.gpu_check.plan import BUDGET, DEVICE, FIRST, PARTS, Options, Part
from tools.gpu_check.record import Outcome, Record, State

HERE = "tests.tools.gpu_parts"
A, B, C, D = (Part(name, "none", 100.0, 10.0, name) for name in ("good", "bad", "absent", "later"))


def record_of(**outcomes: Outcome) -> Record:
    return Record({"device": "H200"}, {**outcomes})


def test_logs_of_what_did_not_pass_are_kept_and_no_others(tmp_path: Path) -> None:
    for name in ("good", "bad", "absent"):
        (tmp_path / f"{name}.log").write_text(f"said by {name}\n")
    record = record_of(
        good=Outcome(State.PASS, 1.0), bad=Outcome(State.FAIL, 2.5, "wrong numbers\nmore"),
        absent=Outcome(State.NOT_RUN, 0.5, "nothing is installed"),
        later=Outcome(State.FAIL, detail="of a machine\nthat is gone"),
    )  # fmt: skip
    path = evidence.write(record, (A, B, C, D), tmp_path, tmp_path / "out" / "x.evidence.txt")
    assert path is not None
    text = path.read_text()
    assert "said by good" not in text and "==== good" not in text and "more" not in text
    assert "==== bad: fail, 2.5 s\nwrong numbers\n----" in text and "said by bad" in text
    assert "==== absent: not run, 0.5 s\nnothing is installed\n" in text and "said by absent" in text
    assert "==== later: fail, 0.0 s\nof a machine\nthat is gone\n---- no log here" in text
    record.outcomes.update(dict.fromkeys(("bad", "absent", "later"), Outcome(State.PASS)))
    assert evidence.write(record, (A, B, C, D), tmp_path, path) is None and not path.exists()
    assert [one.name for one in path.parent.iterdir()] == []


@pytest.mark.parametrize("size", [0, 2 * EACH_END, 2 * EACH_END + 1, 40 * EACH_END])
def test_the_first_and_the_last_of_a_log_are_kept(size: int) -> None:
    log = b"".join(b"%09d\n" % line for line in range(size // 10 + 1))[:size]
    kept = evidence.ends(log)
    if size <= 2 * EACH_END:
        assert kept == log
    else:
        assert kept.startswith(log[:EACH_END]) and kept.endswith(log[-EACH_END:])
        assert f"{size - 2 * EACH_END:,} bytes are left out".encode() in kept
        assert len(kept) < 2 * EACH_END + 60


def test_all_warnings_are_kept_wherever_they_are() -> None:
    said = [
        b"executor: WARNING executors.llm.kernel_support.kernel_choice: attention: triton is not used: x",
        b"  /a/b.py:3: UserWarning: the old way",
        b"[W1125 10:00:00.000 CUDAGraph.cpp:1] something",
        b"warning: no debug information",
        b"ERROR asyncio: Task exception was never retrieved",
    ]
    filler = [b"INFO executors.llm: nothing to see"] * 20_000
    log = b"\n".join([*filler, *said, *filler, said[0], *filler])
    assert evidence.warnings(log) == b"".join(line + b"\n" for line in (b"(2 times) " + said[0], *said[1:]))
    many = b"\n".join(b"WARNING %d %s" % (n, b"x" * 1000) for n in range(2_000))
    kept = evidence.warnings(many)
    assert 400_000 < len(kept) < 600_000 and kept.splitlines()[-1].endswith(b"more are left out ....")


@pytest.mark.long(extended=True)
def test_all_of_it_fits_a_file_that_is_carried_back(tmp_path: Path) -> None:
    record = record_of()
    for part in PARTS:
        (tmp_path / f"{part.name}.log").write_bytes(b"".join(b"WARNING %d\n" % n for n in range(400_000)))
        record.outcomes[part.name] = Outcome(State.FAIL)
    path = evidence.write(record, PARTS, tmp_path, tmp_path / "evidence.txt")
    assert path is not None and 2 << 20 < path.stat().st_size < 16 << 20


def test_the_command_leaves_it_beside_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple(
        Part(name, f"{HERE}:{does}", 60.0, 1.0, name)
        for name, does in (
            ("device", "passes"),
            ("agreement", "crashes"),
            ("kernels", "warns"),
            ("tests", "passes"),
        )
    )
    monkeypatch.setattr("tools.gpu_check.conduct.DEVICE", parts[0])
    monkeypatch.setattr(command, "PARTS", parts)
    out = tmp_path / "out"
    given = command.parse(
        ["--device", "cpu", "--tiny", "--work", str(tmp_path / "work"), "--out", str(out), "--wheels", str(tmp_path / "none"),
         "--device-kind", "some-cpu"]
    )  # fmt: skip
    assert command.check(given, Options("cpu", tiny=True), parts) == 1
    [result], [kept] = out.glob("made-up-*.json"), out.glob("*.evidence.txt")
    assert json.loads(result.read_text())["device_kind"] == "some-cpu"
    text = kept.read_text()
    assert "==== agreement: fail" in text and "the last words" in text and "==== tests" not in text
    assert "==== kernels: fail" in text
    head, _, _ = text[text.index("==== kernels") :].partition("---- log")
    assert "WARNING there: it is slow" in head and "UserWarning: it is old" in head and "INFO" not in head
    assert len(list(out.iterdir())) <= 8, "so many files are carried back from a lent machine"


# -- a call that is the only one -----------------------------------------------------------------------------------------


def test_what_comes_first() -> None:
    given = command.parse(["--first"])
    assert [part.name for part in command.chosen_parts(given)] == [
        "device", "agreement", "agreement-bf16", "kernels", "single-0.6b", "offline-0.6b",
    ]  # fmt: skip
    assert tuple(part.name for part in command.chosen_parts(given)[1:]) == FIRST
    assert command.chosen_parts(command.parse([])) == PARTS
    assert [part.name for part in command.chosen_parts(command.parse(["--only", "peer", "tests"]))] == [
        "device", "tests", "peer",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        command.parse(["--first", "--only", "peer"])


def test_it_fits_one_call_even_after_a_slow_start() -> None:
    least = {part.name: part.least for part in PARTS}
    assert DEVICE.limit + sum(least[name] for name in FIRST) < BUDGET - 10
