"""What the part `sanitizer` makes of compute-sanitizer's output, of tools that fail, and of launches that are missing.

Outputs have the form that NVIDIA's documentation of Compute Sanitizer shows; programs in their place are scripts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import command
from benchmarks.gpu.command import Done
from benchmarks.gpu.part import LIMIT, Failed, NotRun, Options
from tests.gpu import sanitizer
from tests.gpu.sanitizer import LAUNCHES, fault, read

RIGHT = "".join(json.dumps({"launch": str(n), "error": 0.004}) + "\n" for n in range(LAUNCHES))
CLEAN = {
    "memcheck": f"========= COMPUTE-SANITIZER\n{RIGHT}========= ERROR SUMMARY: 0 errors\n",
    "racecheck": f"========= COMPUTE-SANITIZER\n{RIGHT}========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}
OUT_OF_BOUNDS = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at _split_kernel+0xec0 in decode_attention.py:106
=========     by thread (18,0,0) in block (0,0,0)
=========     Access to 0x74505bcccca0 is out of bounds
=========     and is 161 bytes after the nearest allocation at 0x74505bccc800 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2eb4ef] in libcuda.so.1
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at _few_rows_kernel+0x1130 in few_rows.py:177
=========     and Read access at _few_rows_kernel+0xd40 in few_rows.py:186 [16 hazards]
=========
========= Warning: Race reported between Read access at _shrink_kernel+0x260 in lora.py:60
=========     and Write access at _shrink_kernel+0x200 in lora.py:64 [2 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""


def ended(output: str, code: int | None = 0) -> Done:
    return Done(code, output, 7.0)


@pytest.mark.parametrize("check", ["memcheck", "racecheck"])
def test_a_clean_run_passes(check: str) -> None:
    watched = read(check, CLEAN[check])
    assert (watched.launches, watched.errors, watched.warnings, watched.first) == (LAUNCHES, 0, 0, [])
    assert fault(check, ended(CLEAN[check]), watched) is None


def test_an_access_out_of_bounds_is_named_with_its_kernel() -> None:
    watched = read("memcheck", OUT_OF_BOUNDS)
    assert watched.errors == 1
    place = "_split_kernel+0xec0 in decode_attention.py:106"
    assert watched.first == [f"Invalid __global__ read of size 16 bytes at {place}"]
    assert fault("memcheck", ended(OUT_OF_BOUNDS, 1), watched) == f"memcheck: 1 errors: {watched.first[0]}"


def test_races_are_errors_and_possible_ones_are_counted() -> None:
    watched = read("racecheck", RACE + RIGHT)
    assert (watched.errors, watched.warnings) == (1, 1)
    assert watched.first[0].startswith("Error: Race reported between Write access at _few_rows_kernel+0x1130")
    assert "racecheck: 1 errors: Error: Race" in str(fault("racecheck", ended(RACE), watched))
    only_warned = RACE.replace("(1 error, 1 warning)", "(0 errors, 2 warnings)") + RIGHT
    watched = read("racecheck", only_warned)
    assert watched.warnings == 2 and fault("racecheck", ended(only_warned), watched) is None


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        (RIGHT, 0, "no summary"),
        (CLEAN["memcheck"].replace('{"launch": "3"', '{"lunch": "3"'), 0, "11 of 12 launches"),
        (CLEAN["memcheck"], 1, "exit code 1"),
        (CLEAN["memcheck"], None, "not done within 7 s, after 12 of 12"),
        (CLEAN["memcheck"].replace("0.004", "Infinity", 1), 0, "wrong results: 0: inf"),
        (CLEAN["memcheck"].replace("0.004", "NaN", 1), 0, "wrong results: 0: nan"),
        ("", 1, "no output"),
    ],
)
def test_what_does_not_add_up_has_failed(output: str, code: int | None, words: str) -> None:
    assert words in str(fault("memcheck", ended(output, code), read("memcheck", output)))


@pytest.mark.parametrize(
    "line",
    [
        '========= Error: Device not supported. Please refer to the "Supported Devices" section of the documentation',
        "========= Error: Target application terminated before first instrumented API call",
        "========= Internal Sanitizer Error: The Sanitizer encountered an error when loading the module",
    ],
)
def test_a_tool_that_refuses_says_why(line: str) -> None:
    watched = read("memcheck", f"========= COMPUTE-SANITIZER\n{line}\n")
    assert watched.refused is not None and watched.refused in line
    assert read("memcheck", CLEAN["memcheck"]).refused is None


# -- the part ------------------------------------------------------------------------------------------------------------

PROGRAM = "import sys\nsys.stdout.write({right!r})\n"
TOOL = """#!{python}
import subprocess, sys
name = sys.argv[2]
print("========= COMPUTE-SANITIZER", flush=True)
answers = {answers!r}
if name in answers:
    print(answers[name])
    sys.exit(1)
code = subprocess.run(sys.argv[sys.argv.index({python!r}):]).returncode
print({{"memcheck": "========= ERROR SUMMARY: 0 errors",
        "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"}}[name])
sys.exit(code)
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In place of the launches."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(right=RIGHT))
    monkeypatch.setattr(sanitizer, "PROGRAM", (str(path),))
    monkeypatch.delenv(LIMIT, raising=False)
    return path


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, answers: dict[str, str]) -> None:
    path = folder / sanitizer.TOOL
    path.write_text(TOOL.format(python=sys.executable, answers=answers))
    path.chmod(0o755)
    monkeypatch.setattr(sanitizer, "tool", lambda name: str(path))


def test_both_tools_watch_all_launches(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, {})
    found: dict[str, Any] = {}
    sanitizer.watch(Options(), found.update)
    assert found["launches"] == LAUNCHES
    for check in ("memcheck", "racecheck"):
        assert (found[check]["errors"], found[check]["launches"]) == (0, LAUNCHES)


def test_errors_of_one_tool_fail_the_part(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, {"memcheck": OUT_OF_BOUNDS})
    found: dict[str, Any] = {}
    with pytest.raises(Failed, match=r"memcheck: 1 errors: Invalid __global__ read"):
        sanitizer.watch(Options(), found.update)
    assert found["memcheck"]["errors"] == 1 and found["racecheck"]["errors"] == 0


def test_a_tool_that_is_absent_or_refuses_is_not_run(
    program: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refusal = "========= Error: Device not supported."
    installed(monkeypatch, tmp_path, {"memcheck": refusal, "racecheck": refusal})
    with pytest.raises(NotRun, match="Device not supported"):
        sanitizer.watch(Options(), lambda figures: None)
    monkeypatch.setattr(sanitizer, "tool", lambda name: None)
    with pytest.raises(NotRun, match="compute-sanitizer is not installed"):
        sanitizer.watch(Options(), lambda figures: None)
    with pytest.raises(NotRun, match="12 launches are right, interpreted"):
        sanitizer.watch(Options("cpu", tiny=True), lambda figures: None)


def test_launches_that_are_wrong_unwatched_fail(program: Path) -> None:
    program.write_text(PROGRAM.format(right=RIGHT.replace("0.004", "0.5", 1)))
    with pytest.raises(Failed, match=r"unwatched: 12 of 12 launches, 0: 0\.5"):
        sanitizer.watch(Options(), lambda figures: None)
    program.write_text("raise MemoryError('none is left')\n")
    with pytest.raises(Failed, match="0 of 12 launches, MemoryError: none is left"):
        sanitizer.watch(Options(), lambda figures: None)


@pytest.mark.long(extended=True)
def test_the_launches_are_right_interpreted() -> None:
    found: dict[str, Any] = {}
    with pytest.raises(NotRun, match="12 launches are right"):
        sanitizer.watch(Options("cpu", tiny=True), found.update)
    assert found["launches"] == LAUNCHES


# -- programs that watch ---------------------------------------------------------------------------------------------------


STARTS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_program_is_ended_with_what_it_started() -> None:
    done = command.run([sys.executable, "-c", STARTS], 0.5)
    assert done.code is None and done.seconds < 10.0
    stat = Path(f"/proc/{int(done.output)}/stat")
    deadline = time.monotonic() + 10.0
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_tools_are_found_beside_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2025.1", "2025.3"):
        folder = tmp_path / version
        folder.mkdir()
        (folder / "ncu").write_text("")
        (folder / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", "")
    assert command.tool("ncu", [f"{tmp_path}/*"]) == str(tmp_path / "2025.3" / "ncu")
    (tmp_path / "2025.3" / "ncu").chmod(0o644)
    assert command.tool("ncu", [f"{tmp_path}/*"]) == str(tmp_path / "2025.1" / "ncu")
    assert command.tool("ncu", [f"{tmp_path}/none"]) is None
    monkeypatch.setenv("PATH", str(tmp_path / "2025.1"))
    assert command.tool("ncu", []) == str(tmp_path / "2025.1" / "ncu")
