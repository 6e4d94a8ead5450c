"""How a part of gpu-check ends as a program, and that every one that measures works as one without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.part import ABSENT, Options
from tools.gpu_check import log, process, sources, wheels
from tools.gpu_check.log import ROOT, Row
from tools.gpu_check.parts import DEVICE, PARTS, GpuPart

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
    started = Path(f"/proc/{row['figures']['pid']}/stat")
    deadline = time.monotonic() + 10.0
    while started.exists() and started.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_kernels_are_interpreted_on_a_cpu_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("COHORT_API_KEY", "secret")
    on_gpu, on_cpu = (process.environment(Options(device), tmp_path) for device in ("cuda", "cpu"))
    assert "TRITON_INTERPRET" not in on_gpu and on_cpu["TRITON_INTERPRET"] == "1"
    assert "COHORT_API_KEY" not in on_gpu
    assert on_gpu["PYTHONPATH"].split(os.pathsep)[:3] == [str(sources.RECORDER), str(ROOT), str(tmp_path)]


# -- every measuring part, as a program ----------------------------------------------------------------------------------

SMOKE = """
import json, sys, sysconfig
from pathlib import Path
from benchmarks.gpu import part as process
from tools.gpu_check import parts
before = set(sys.modules)
measuring = [part for part in (parts.DEVICE, *parts.PARTS) if part.name != "tests"]
for part in sorted(measuring, key=lambda part: part.name == "peer"):
    if part.name == "peer":
        import executors.llm.sampling.grammar, executors.process.child, executors.process.client, llguidance
        site = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
        files = {name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
        print(*sorted(name for name, file in files.items() if name not in before and file.startswith(site)))
    figures = {}
    code, why = process.perform(part.command[2], process.Options("cpu", True, mode="inline"), figures.update)
    Path(sys.argv[1], part.name + ".json").write_text(json.dumps({"code": code, "why": why, "figures": figures}, default=str))
"""
OF_TORCH = {"torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "yaml", "filelock",
            "setuptools", "pkg_resources", "psutil", "optree", "tqdm"}  # fmt: skip
"""What torch imports itself is there where torch is."""
SAYS = {
    "device": {"copy_gb_per_s", "copied_by", "bf16_tflops", "identity", "about", "versions", "python"},
    "agreement": {"sequences", "identical", "executor_notes"},
    "agreement-bf16": {"rows_compared", "largest_logprob_difference", "graphs_replayed", "executor_notes"},
    "kernels": {"kernels", "copy_gb_per_s"},
    "offline-0.6b": {"output_tokens_per_s", "roofline_tokens_per_s", "share_of_roofline", "executor_notes", "seconds"},
    "single-0.6b": {"tokens_per_s", "share_of_roofline", "ttft_ms"},
    "cohort": {"together_ms", "limit_ms", "reached", "factor_over_serial", "factor_over_serial_eager"},
    "steps": {"step_ms", "engine_ms_per_step", "one_sequence"},
    "adapters": {
        "identical", "adapter_notes", "active_share", "idle_share_of_speed", "one_active_share", "reached", "executor_notes",
    },
    "drafts": {"identical", "drafts_verified", "drafts_accepted"},
    "offline-8b": {"output_tokens_per_s"},
    "single-8b": {"tokens_per_s"},
    "peer": {"output_tokens_per_s", "transformers"},
}  # fmt: skip


@pytest.mark.long(extended=True)
def test_every_measuring_part_works_as_a_program(tmp_path: Path) -> None:
    env = {**process.environment(Options("cpu"), None), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SMOKE, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert set(SAYS) == {part.name for part in (DEVICE, *PARTS)} - {"tests"}
    for name, figures in SAYS.items():
        found = json.loads((tmp_path / f"{name}.json").read_text())
        # A CPU has no device whose idle time could be profiled.
        assert found["code"] == (ABSENT if name == "steps" else 0), (name, found["why"], done.stderr)
        assert figures <= set(found["figures"]), name
    imported = {name for name in done.stdout.splitlines()[-1].split() if not name.startswith("_")} - OF_TORCH
    assert imported <= {*wheels.NEEDED.values(), "triton", "numpy", "safetensors"}, "gpu-wheels must bring it"
    assert {"msgspec", "setproctitle", "triton"} <= imported
    alone = json.loads((tmp_path / "steps.json").read_text())["figures"]["one_sequence"]
    assert alone["batch"] == 1 and "saw no work" in alone["not_run"]
    rows = json.loads((tmp_path / "kernels.json").read_text())["figures"]["kernels"]
    assert "not run" in rows["attention, flash-attn, pages of 256"]
    assert all(row.get("us", 0) > 0 for row in rows.values() if "not run" not in row)
    assert not any("failed" in row for row in rows.values())
    assert any(name.startswith("product ") for name in rows)
