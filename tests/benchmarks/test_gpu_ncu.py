"""What the part `ncu` makes of Nsight Compute's CSV, of its errors, and of counters that do not add up; and `turnaround`.

The CSV has the forms that the documentation of Nsight Compute's command line describes; programs in its place are scripts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import turnaround
from benchmarks.gpu import host, ncu
from benchmarks.gpu.part import LIMIT, Failed, NotRun, Options

_FIXED = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC"'
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
NAMES = (
    ncu.READ, ncu.WRITTEN, ncu.TIME, *ncu.PERCENTS.values(),
    *(_STALL.format(why) for why in ("long_scoreboard", "wait", "barrier")),
    "launch__registers_per_thread", "launch__func_cache_config",
)  # fmt: skip
UNITS = ("byte", "byte", "ns", "%", "%", "%", "inst", "inst", "inst", "register/thread", "")
NEEDED = dict.fromkeys(ncu.KERNELS, 134_217_728)


def line(number: int, kernel: str, values: list[str]) -> str:
    fixed = (
        f'"{number}","1234","python3","127.0.0.1","{kernel}","1","7","(128, 1, 1)","(392, 1, 1)","0","9.0"'
    )
    return ",".join((fixed, *(f'"{value}"' for value in values)))


def values(read: str = "134,300,672") -> list[str]:
    return [
        read,
        "1,048,576",
        "42,816",
        "74.25",
        "11.5",
        "17.3",
        "12.75",
        "2.5",
        "0.25",
        "142",
        "CachePreferNone",
    ]


def wide(kernels: tuple[str, ...] = ncu.KERNELS, **more: str) -> str:
    names, units = (",".join(f'"{one}"' for one in row) for row in (NAMES, UNITS))
    rows = [line(number, kernel, values(**more)) for number, kernel in enumerate(kernels)]
    unknown = ",".join(['""'] * 11)
    return "\n".join(
        ("==PROF== Connected to process 1234", f"{_FIXED},{names}", f"{unknown},{units}", *rows, "")
    )


def by_counter(kernels: tuple[str, ...] = ncu.KERNELS) -> str:
    rows = [
        line(number, f"{kernel}(float *, int)", ["Section", name, unit, value])
        for number, kernel in enumerate(kernels)
        for name, unit, value in zip(NAMES, UNITS, values(), strict=True)
    ]
    return "\n".join((f'{_FIXED},"Section Name","Metric Name","Metric Unit","Metric Value"', *rows))


@pytest.mark.parametrize("text", [wide(), by_counter()], ids=["wide", "by counter"])
def test_counters_of_either_form(text: str) -> None:
    launches = ncu.read(text)
    assert [launch.kernel for launch in launches] == list(ncu.KERNELS)
    found = ncu.figures(launches[0])
    assert (found["read_bytes"], found["written_bytes"]) == (134_300_672, 1_048_576)
    assert found["us"] == pytest.approx(42.816)
    assert found["gb_per_s"] == pytest.approx(135_349_248 / 42_816)
    assert (found["memory_percent"], found["compute_percent"], found["occupancy_percent"]) == (
        74.25,
        11.5,
        17.3,
    )
    assert list(found["stalls"].items()) == [("long_scoreboard", 12.75), ("wait", 2.5), ("barrier", 0.25)]
    assert not ncu.faults({launch.kernel: ncu.figures(launch) for launch in launches}, NEEDED)


def test_units_are_bytes_and_seconds() -> None:
    text = wide(("_split_kernel",), read="134.3").replace('"byte"', '"Mbyte"').replace('"ns"', '"usecond"')
    counters = ncu.read(text)[0].counters
    assert counters[ncu.READ] == pytest.approx(134.3e6) and counters[ncu.TIME] == pytest.approx(0.042816)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"read_bytes": 1e6}, "1% of its inputs' bytes"),
        ({"gb_per_s": 6e3}, "6000 GB/s"),
        ({"stalls": {}}, "no reasons why warps wait"),
    ],
)
def test_counters_that_do_not_add_up(change: dict[str, Any], words: str) -> None:
    rows = {launch.kernel: ncu.figures(launch) for launch in ncu.read(wide())}
    rows["_extend_kernel"] |= change
    assert len(wrong := ncu.faults(rows, NEEDED)) == 1
    assert wrong[0].startswith("_extend_kernel: ") and words in wrong[0]
    del rows["_extend_kernel"]
    assert ncu.faults(rows, NEEDED) == ["_extend_kernel: not counted"]


def test_a_missing_counter_is_an_error() -> None:
    with pytest.raises(KeyError, match="dram__bytes_read"):
        ncu.figures(ncu.read(wide(read="n/a"))[0])
    assert ncu.read("no table\n") == [] and ncu.read("") == []


# -- the part ------------------------------------------------------------------------------------------------------------

LAUNCHED = "".join(json.dumps({"kernel": kernel, "read": read}) + "\n" for kernel, read in NEEDED.items())
TOOL = """#!{python}
import sys
from pathlib import Path
Path(sys.argv[sys.argv.index("--log-file") + 1]).write_text({text!r})
sys.exit({code})
"""


def installed(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, code: int = 0) -> None:
    """Nsight Compute and the launches are scripts."""
    program, path = folder / "program.py", folder / ncu.TOOL
    program.write_text(f"print({LAUNCHED!r})")
    path.write_text(TOOL.format(python=sys.executable, text=text, code=code))
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "PROGRAM", (str(program),))
    monkeypatch.setattr(ncu, "tool", lambda name: str(path))
    monkeypatch.delenv(LIMIT, raising=False)


def test_each_kernel_is_counted_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    installed(monkeypatch, tmp_path, wide())
    ncu.count(Options(), found.update)
    assert set(found["counted"]) == set(ncu.KERNELS) and found["needed_bytes"] == NEEDED
    installed(monkeypatch, tmp_path, wide((*ncu.KERNELS, "_split_kernel")))
    with pytest.raises(Failed, match="4 launches were counted, not 3"):
        ncu.count(Options(), found.update)
    installed(monkeypatch, tmp_path, wide(read="n/a"))
    with pytest.raises(Failed, match="no counter 'dram__bytes_read"):
        ncu.count(Options(), found.update)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters",
            NotRun,
            "permission",
        ),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", NotRun, "LibraryNotLoaded"),
        ("==ERROR== Failed to find metric dram__x", Failed, "Failed to find metric"),
        (
            "==PROF== Connected to process 1\n==WARNING== No kernels were profiled.",
            Failed,
            "no kernels were profiled",
        ),
        ("", Failed, "exit code 9"),
    ],
)
def test_what_an_error_of_the_tool_is(
    text: str, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, tmp_path, text, code=9)
    with pytest.raises(kind, match=words):
        ncu.count(Options(), lambda figures: None)


def test_without_the_tool_or_a_device_it_is_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, wide())
    with pytest.raises(NotRun, match="3 launches ran, interpreted"):
        ncu.count(Options("cpu", tiny=True), lambda figures: None)
    monkeypatch.setattr(ncu, "tool", lambda name: None)
    with pytest.raises(NotRun, match="ncu is not installed"):
        ncu.count(Options(), lambda figures: None)


def test_launches_that_fail_alone_are_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, tmp_path, wide())
    (tmp_path / "program.py").write_text("raise SystemExit('no memory')")
    with pytest.raises(Failed, match="the launches alone: exit code 1; no memory"):
        ncu.count(Options(), lambda figures: None)


@pytest.mark.long(extended=True)
def test_the_launches_run_interpreted() -> None:
    found: dict[str, Any] = {}
    with pytest.raises(NotRun, match="3 launches ran"):
        ncu.count(Options("cpu", tiny=True), found.update)
    # Keys and values of 201 tokens in 13 pages, float32.
    assert found["needed_bytes"]["_split_kernel"] == 4 * 2 * 13 * 16 * 16


# -- turnaround ----------------------------------------------------------------------------------------------------------


def test_what_a_turnaround_has_to_be() -> None:
    right = {"median": 900.0, "late": 0.01, "steps": 170.0}
    assert host.fault("1", right) is None
    assert "99 turnarounds" in str(host.fault("1", right | {"steps": 99.0}))
    assert "30% of the turnarounds" in str(host.fault("256", right | {"late": 0.3}))


def test_the_device_is_hidden_and_every_size_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure(rows: int, *rest: Any) -> dict[int, dict[str, float]]:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        return {2: {"median": float(rows), "late": 0.0, "steps": 0.0 if rows == 256 else 170.0}}

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(turnaround, "measure", measure)
    found: dict[str, Any] = {}
    with pytest.raises(Failed, match="256 rows: 0 turnarounds"):
        host.run(Options(), found.update)
    assert {rows: row["median"] for rows, row in found["turnaround_us"].items()} == {"1": 1.0, "256": 256.0}


@pytest.mark.long(extended=True)
def test_turnaround_as_it_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found: dict[str, Any] = {}
    host.run(Options("cpu", tiny=True), found.update)
    row = found["turnaround_us"]["1"]
    assert 0 < row["tenth"] <= row["median"] < 8000 and row["steps"] >= host.LEAST_STEPS
