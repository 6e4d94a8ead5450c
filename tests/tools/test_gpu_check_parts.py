"""How a part of gpu-check ends as a program, and that every one that measures works as one without a GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.part import ABSENT, Options
from tools.gpu_check import log, meaning, process, sources, wheels
from tools.gpu_check.log import ROOT, Row
from tools.gpu_check.parts import AGAIN, ALONE, CALL_1, CALL_2, DEVICE, PARTS, GpuPart

HERE = "tests.tools.gpu_parts"
CPU = Options("cpu", tiny=True)


def part(name: str, limit: float = 60.0) -> GpuPart:
    return GpuPart(name, ("-m", "benchmarks.gpu", f"{HERE}:{name}"), limit, 1.0, name)


def ended(name: str, work: Path, limit: float = 60.0) -> Row:
    figures = log.begin(work, {"part": name})
    return process.run(part(name, limit), CPU, work, process.environment(CPU, None), limit, figures)


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("passes", "pass", ""),
        ("is_absent", "not run", "nothing is installed"),
        ("fails", "fail", "wrong numbers"),
        ("raises", "fail", "RuntimeError: CUDA error"),
        ("lacks_a_module", "fail", "make gpu-wheels"),
        ("crashes", "fail", "killed by signal 11"),
        ("leaves", "fail", "exit code 3"),
    ],
)
def test_how_a_part_ends(name: str, state: str, words: str, tmp_path: Path) -> None:
    row = ended(name, tmp_path)
    assert row["state"] == state, row
    assert words in row["detail"] if words else not row["detail"]
    if name == "passes":
        assert row["figures"] == {"identity": {"device": "made up"}, "tiny": True, "tokens_per_s": 12.0}
    if name == "crashes":
        assert row["figures"] == {"tokens_per_s": 3.0}
        assert "the last words" in (tmp_path / "crashes.log").read_text()


@pytest.mark.long
def test_a_part_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    row = ended("hangs", tmp_path, 3.0)
    assert row["state"] == "fail" and row["detail"].startswith("killed after 3 s, its limit")
    assert row["figures"]["tokens_per_s"] == 2.0
    _ended(row["figures"]["pid"])


CUT_OFF = f"""
import signal, sys
from tools.gpu_check import __main__ as command, call
from tools.gpu_check.parts import GpuPart
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the tests were started under
call.DEVICE = GpuPart("device", ("-m", "benchmarks.gpu", "{HERE}:waits"), 60.0, 1.0, "waits")
sys.exit(command.main(["--device", "cpu", "--work", sys.argv[1]]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_it_ends_the_part_that_runs(number: int, tmp_path: Path) -> None:
    """Which would hold the device for minutes, and be in the way of the next call."""
    found = tmp_path / "device.begun.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", CUT_OFF, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 30.0
        while not (found.exists() and '"pid"' in found.read_text() and found.read_text().endswith("\n")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 2
    assert output.splitlines()[-1] == f"cut off; what ended is in {tmp_path}/log.jsonl: call again to go on"
    assert "Traceback" not in output
    [row] = log.read(tmp_path / "log.jsonl")
    assert row["state"] == "cut off" and not Path(f"/proc/{row['figures']['pid']}").exists()


def test_a_part_ends_with_a_call_that_is_killed(tmp_path: Path) -> None:
    """As by the limit of a command: nothing else would end it, and the next call's figures would be measured beside it."""
    found = tmp_path / "device.begun.jsonl"
    with subprocess.Popen([sys.executable, "-c", CUT_OFF, str(tmp_path)], cwd=ROOT) as process:
        deadline = time.monotonic() + 30.0
        while not (found.exists() and '"pid"' in found.read_text() and found.read_text().endswith("\n")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.kill()
    pid = json.loads(found.read_text().splitlines()[1])["pid"]
    try:
        _ended(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert log.salvage(tmp_path) == ["device"]


def _ended(pid: int) -> None:
    stat, deadline = Path(f"/proc/{pid}/stat"), time.monotonic() + 10.0
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kernels_are_interpreted_on_a_cpu_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("COHORT_API_KEY", "secret")
    on_gpu, on_cpu = (process.environment(Options(device), tmp_path) for device in ("cuda", "cpu"))
    assert "TRITON_INTERPRET" not in on_gpu and on_cpu["TRITON_INTERPRET"] == "1"
    assert "COHORT_API_KEY" not in on_gpu
    assert on_gpu["PYTHONPATH"].split(os.pathsep)[:3] == [str(sources.RECORDER), str(ROOT), str(tmp_path)]


# -- every part, as a program ---------------------------------------------------------------------------------------------

NEED_A_DEVICE = {"steps", "sanitizer", "ncu"}
"""Parts that say so on a CPU, and are not run."""


def test_each_part_of_the_plan_is_there() -> None:
    measuring = [one for one in (DEVICE, *PARTS) if one.name != AGAIN]
    # The name of the module alone: importing all of them takes a while.
    missing = {
        one.name for one in measuring if importlib.util.find_spec(one.command[-1].partition(":")[0]) is None
    }
    assert not missing
    assert all((ROOT / name).exists() for one in measuring for name in one.beside)


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Both calls with the smallest shapes, one after the other, and the first once more: the folder of the log, and what each
    printed."""
    folder = tmp_path_factory.mktemp("called")
    outputs = []
    for number in (1, 2, 1):
        command = [sys.executable, "-m", "tools.gpu_check", "--device", "cpu", "--tiny", "--call", str(number),
                   "--out", str(folder / "out"), "--work", str(folder / "work"), "--wheels", str(folder / "none")]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs.append(done.stdout)
    return folder / "out", outputs


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("one", [DEVICE, *CALL_1, *CALL_2], ids=lambda one: one.name)
def test_each_part_of_the_two_calls_gives_figures_that_keep_the_rules(
    one: GpuPart, called: tuple[Path, list[str]]
) -> None:
    folder, outputs = called
    rows = [row for row in log.read(folder / "log.jsonl") if row["part"] == one.name]
    if one.name == AGAIN:
        assert not any("once more" in output for output in outputs), "nothing failed"
        return
    [row] = rows[-1:]
    if one.name in NEED_A_DEVICE:
        assert row["state"] == "not run" and row["detail"]
        return
    # The runner has held its figures against the rules: `meaning.faults`.
    assert row["state"] == "pass", row["detail"]
    assert one.name in meaning.SAYS, "what it says is held against nothing but the rules for all"
    assert "benchmarks/gpu/part.py" in row["sources"] and len(row["sources"]) > 5


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_passed_is_not_run_again_while_its_files_are_the_same(called: tuple[Path, list[str]]) -> None:
    printed = called[1][2].splitlines()
    for one in CALL_1:
        assert [
            line.startswith(f"{one.name}: passed ") for line in printed if line.startswith(f"{one.name}: ")
        ] == [True]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_lines_name_the_files_of_the_executors_process_and_of_the_tests(
    called: tuple[Path, list[str]],
) -> None:
    rows = {row["part"]: row for row in log.read(called[0] / "log.jsonl")}
    assert "tests/gpu/test_fused.py" in rows["sanitizer"]["sources"]
    adapters = rows["adapters"]["sources"]
    assert {
        "engine/core/loop.py",
        "executors/process/child.py",
        "executors/llm/executor.py",
    } <= adapters.keys()
    device = rows["device"]["sources"]
    assert "benchmarks/gpu/timing.py" in device and "engine/core/loop.py" not in device


SMOKE = """
import json, sys, sysconfig
from pathlib import Path
from benchmarks.gpu import part as process
from tools.gpu_check import parts
before = set(sys.modules)
for part in sorted(parts.ALONE, key=lambda part: part.name == "peer"):
    if part.name == "peer":
        import executors.llm.sampling.grammar, executors.process.child, executors.process.client, llguidance
        site = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
        files = {name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
        print(*sorted(name for name, file in files.items() if name not in before and file.startswith(site)))
    figures = {}
    code, why = process.perform(part.command[2], process.Options("cpu", True, mode="inline"), figures.update)
    Path(sys.argv[1], part.name + ".json").write_text(json.dumps({"code": code, "why": why, "figures": figures}, default=str))
"""
"""Parts that are in no call, in one process: torch is imported once."""
OF_TORCH = {"torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "yaml", "filelock",
            "setuptools", "pkg_resources", "psutil", "optree", "tqdm"}  # fmt: skip
"""What torch imports itself is there where torch is."""
OPTIONAL = {"attr", "greenlet", "py"}
"""What packages of the server, and pytest, import where it is installed."""


@pytest.mark.timeout(180)  # a dozen engines, one after the other
@pytest.mark.long
def test_every_part_that_is_in_no_call_works_as_a_program(tmp_path: Path) -> None:
    env = {**process.environment(Options("cpu"), None), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, str(tmp_path)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for one in ALONE:
        found = json.loads((tmp_path / f"{one.name}.json").read_text())
        # A CPU has no device whose idle time could be profiled.
        assert found["code"] == (ABSENT if one.name in NEED_A_DEVICE else 0), (
            one.name,
            found["why"],
            done.stderr,
        )
        assert one.name in meaning.SAYS and meaning.faults(one.name, found["figures"], CPU) == []
    imported = (
        {name for name in done.stdout.splitlines()[-1].split() if not name.startswith("_")}
        - OF_TORCH
        - OPTIONAL
    )
    assert imported <= {*wheels.NEEDED.values(), "triton", "numpy", "safetensors"}, "gpu-wheels must bring it"
    assert {"msgspec", "setproctitle", "triton"} <= imported
    alone = json.loads((tmp_path / "steps.json").read_text())["figures"]["one_sequence"]
    assert alone["batch"] == 1 and "saw no work" in alone["not_run"]
    rows = json.loads((tmp_path / "kernels-all.json").read_text())["figures"]["kernels"]
    assert "not run" in rows["attention, flash-attn, pages of 256"]
    assert all(row.get("us", 0) > 0 for row in rows.values() if "not run" not in row)
    assert not any("failed" in row for row in rows.values())
    assert any(name.startswith("product ") for name in rows)
