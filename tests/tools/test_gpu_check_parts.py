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

from tools.gpu_check import wheels
from tools.gpu_check.launch import Launcher, environment
from tools.gpu_check.plan import PARTS, ROOT, Options, Part
from tools.gpu_check.record import State

HERE = "tests.tools.gpu_parts"


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
from benchmarks.gpu import part_process
from tools.gpu_check import plan
before = set(sys.modules)
measuring = [part for part in plan.PARTS if part.name != "tests"]
for part in sorted(measuring, key=lambda part: part.name == "peer"):
    if part.name == "peer":
        import executors.llm.sampling.grammar, executors.process.child, executors.process.client, llguidance
        site = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
        files = {name.partition(".")[0]: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
        print(*sorted(name for name, file in files.items() if name not in before and file.startswith(site)))
    part_process.perform(part.target, plan.Options("cpu", True, mode="inline"), Path(sys.argv[1], part.name + ".json"))
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
    alone = json.loads((tmp_path / "steps.json").read_text())["figures"]["one_sequence"]
    assert alone["batch"] == 1 and "saw no work" in alone["not_run"]
    rows = json.loads((tmp_path / "kernels.json").read_text())["figures"]["kernels"]
    assert "not run" in rows["attention, flash-attn, pages of 256"]
    assert all(row.get("us", 0) > 0 for row in rows.values() if "not run" not in row)
    assert not any("failed" in row for row in rows.values())
    assert any(name.startswith("product ") for name in rows)
