"""Which build of torch is taken, for each machine and each wish; pip and uv are programs that write what the real ones write."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tools import torch_choice
from tools.torch_choice import TorchRefused, Wish

CUDA = 'Collecting nvidia-cublas<=13.1.1.3,>=13.1.0.3 (from cuda-toolkit==13.0.3; platform_system == "Linux"->torch==2.13.0)'
PIP = """
import json, os, pathlib, sys
here, arguments = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "calls").open("a") as calls:
    print(json.dumps(arguments), file=calls)
script = json.loads((here / "script").read_text())
if "--dry-run" in arguments:
    print(*script["look"], sep="\\n", flush=True)
    if script["endless"]:
        import time; time.sleep(60)
    sys.exit(script["look_code"])
if "--target" in arguments:
    if script["uv"] is None:
        sys.exit("ERROR: Could not find a version that satisfies the requirement uv")
    program = pathlib.Path(arguments[arguments.index("--target") + 1]) / "bin/uv"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\\necho \\"$@\\" >> {here}/uv-calls\\n{script['uv']}\\n")
    program.chmod(0o755)
sys.exit(script["install_code"])
"""


class Machine:
    """A folder with a pip that does as told, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pip.py").write_text(PIP)
        self.pip = [sys.executable, str(folder / "pip.py")]

    def install(
        self,
        wish: Wish,
        *,
        gpu: bool = False,
        look: list[str] | None = None,
        look_code: int = 0,
        endless: bool = False,
        uv: str | None = "exit 1",
        install_code: int = 0,
    ) -> list[list[str]]:
        """Returns pip's calls. `look`: lines of the dry run, which goes on for a minute if `endless`. `uv`: its program."""
        script = {
            "look": look or ["Would install torch-2.13.0"], "look_code": look_code, "endless": endless, "uv": uv,
            "install_code": install_code,
        }  # fmt: skip
        (self.folder / "script").write_text(json.dumps(script))
        torch_choice.install(wish, gpu, self.pip, self.folder / "uv")
        return self.calls()

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    def uv_calls(self) -> list[str]:
        return (self.folder / "uv-calls").read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(torch_choice, "_installed", lambda version: "")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Machine(tmp_path)


INSTALL = ["install", "--no-compile", "torch==2.13.0"]


def test_pips_own_cpu_build_is_taken(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    look, install = machine.install(
        Wish("2.13.0"), look=["Would install torch-2.13.0+cpu typing_extensions-4"]
    )
    assert look == ["install", "--dry-run", "torch==2.13.0"] and install == INSTALL
    out = capsys.readouterr().out
    assert "torch 2.13.0, a CPU build: no NVIDIA device is seen, and what pip brings here is one." in out


def test_uv_takes_the_cpu_build_where_pip_would_bring_cuda(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The look is ended at the line that shows it, and uv gets torch alone from the index that it knows."""
    _, fetch, install = machine.install(Wish("2.13.0"), look=[CUDA], endless=True, uv="exit 0")
    assert fetch[-1].startswith("uv==") and install == INSTALL
    probe, taken = machine.uv_calls()
    common = f"pip install --no-deps --torch-backend=cpu --python {sys.executable}"
    assert (probe, taken) == (f"{common} --dry-run torch==2.13.0", f"{common} torch==2.13.0")
    assert (
        "a CPU build from PyTorch's index, which uv knows: no NVIDIA device is seen."
        in capsys.readouterr().out
    )
    assert not (machine.folder / "uv").exists()


@pytest.mark.parametrize(
    "uv", [None, "exit 1", "case $* in *dry-run*) exit 0;; esac; echo error: broken; exit 1"]
)
def test_gigabytes_are_refused_where_nobody_can_be_asked(machine: Machine, uv: str | None) -> None:
    with pytest.raises(TorchRefused) as refused:
        machine.install(Wish("2.13.0"), look=[CUDA], endless=True, uv=uv)
    [line] = str(refused.value).splitlines()
    assert "several GB" in line and "TORCH_INDEX_URL=..." in line and "TORCH_BACKEND=cuda" in line
    assert INSTALL not in machine.calls()


@pytest.mark.parametrize(("answer", "agreed"), [("y", True), ("Yes", True), ("", False), ("n", False)])
def test_a_person_is_asked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, answer: str, agreed: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    if agreed:
        assert machine.install(Wish("2.13.0"), look=[CUDA], endless=True)[-1] == INSTALL
        return
    with pytest.raises(TorchRefused):
        machine.install(Wish("2.13.0"), look=[CUDA], endless=True)
    assert INSTALL not in machine.calls()


@pytest.mark.parametrize(
    ("wish", "gpu"), [(Wish("2.13.0"), True), (Wish("2.13.0", backend="cuda"), False)], ids=["device", "wish"]
)
def test_pips_torch_is_taken_unseen_with_a_device_or_on_demand(
    machine: Machine, wish: Wish, gpu: bool
) -> None:
    assert machine.install(wish, gpu=gpu) == [INSTALL]


def test_an_index_is_taken_as_it_is(machine: Machine) -> None:
    wish = Wish("2.13.0", index="some-index")
    assert machine.install(wish) == [
        ["install", "--no-compile", "--index-url", "some-index", "torch==2.13.0"]
    ]


def test_a_cpu_build_can_be_asked_for_beside_a_device(machine: Machine) -> None:
    look, _ = machine.install(Wish("2.13.0", backend="cpu"), gpu=True)
    assert "--dry-run" in look


def test_no_torch_at_all_is_said_in_one_line(machine: Machine) -> None:
    lines = [
        "ERROR: No matching distribution found for torch==2.13.0",
        "[notice] A new release of pip is available",
    ]
    with pytest.raises(
        TorchRefused, match=r"pip: ERROR: No matching .*; PyTorch's index .* cannot be reached"
    ):
        machine.install(Wish("2.13.0"), look=lines, look_code=1)
    with pytest.raises(TorchRefused, match=r"torch 2.13.0 is not installed: pip failed"):
        machine.install(Wish("2.13.0"), install_code=1)


def test_what_is_installed_stays(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_choice, "_installed", lambda version: f"{version}+cpu")
    assert machine.install(Wish("2.13.0")) == [INSTALL], "what it needs may be missing"


@pytest.mark.parametrize(
    "line",
    [
        CUDA,
        "Obtaining dependency information for nvidia-nccl-cu13==2.29.7 from https://files.example/nvidia.metadata",
        "Collecting cuda-toolkit[cublas,cudart]==13.0.3 (from torch==2.13.0)",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (530.6 MB)",
        "  Downloading https://files.example/torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (1.2 GB)",
        "Processing /packages/torch-2.13.0+cu130-cp311-cp311-linux_x86_64.whl",
        "  Downloading https://files.example/torch-2.13.0%2Brocm7.1-cp311-cp311-linux_x86_64.whl (90 kB)",
        "Would install filelock-4 nvidia-cublas-13.1 torch-2.13.0",
    ],
)
def test_lines_that_show_a_build_for_gpus(line: str) -> None:
    assert torch_choice.is_accelerated(line)


@pytest.mark.parametrize(
    "line",
    [
        "Processing /packages/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_aarch64.whl (146.2 MB)",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (29 kB)",
        "Looking in links: /opt/nvidia-wheels",
        "Would install Jinja2-3.1.6 sympy-1.14.0 torch-2.13.0+cpu typing_extensions-4.16.0",
    ],
)
def test_lines_that_do_not(line: str) -> None:
    assert not torch_choice.is_accelerated(line)
