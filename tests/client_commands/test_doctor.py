"""`cohort doctor`: what it reads of a machine, and what it advises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients.doctor import command as doctor
from executors.llm.tools import box, kernels

CPUINFO = """\
processor\t: 0
model name\t: Some CPU @ 2 GHz
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx2 fma avx512f amx_tile
processor\t: 1
model name\t: Some CPU @ 2 GHz
physical id\t: 0
core id\t\t: 0
processor\t: 2
model name\t: Some CPU @ 2 GHz
physical id\t: 1
core id\t\t: 0
"""
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root with three logical CPUs, a cgroup v2 limit of 2 GiB and half a CPU."""
    files = {
        "proc/cpuinfo": CPUINFO,
        "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 6291456 kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/box/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/box/memory.stat": "inactive_file 0\n",
        "sys/fs/cgroup/box/cpu.max": "50000 100000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "dev/nvidia0": "",
        "dev/nvidiactl": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def healthy() -> dict[str, Any]:
    """Facts of a machine that leaves nothing to wish for but a GPU."""
    return {
        "box": {
            "cpu": {"model": "CPU", "logical": 4, "cores": 4, "flags": ["avx2", "avx512_bf16"]},
            "threads": 4, "affinity": 4, "cpu_quotas": [], "cgroup": "v2", "governor": None, "nvidia": 0,
            "memory": {"machine": 8 * GIB, "total": 8 * GIB, "available": 6 * GIB, "cgroups": []},
        },
        "torch": {
            "torch": "2.13.0", "cuda_build": None, "devices": [], "device": "cpu", "cpu_capability": "AVX512", "mkl": True,
            "triton_lacks": None, "onednn": True, "bf16_kernels": True, "fp16_kernels": True, "threads": 4, "attention": "torch",
            "linear": {"float32": kernels.PLAIN, "bfloat16": kernels.ONEDNN, "float16": kernels.PLAIN},
        },
        "system": {
            "kernel": "Linux", "libc": "glibc", "compiler": "g++ 12", "open_files": {"soft": 65536, "hard": None},
            "isa_limits": {},
        },
    }  # fmt: skip


def test_the_machine_as_files_tell_it(machine: Path) -> None:
    facts = box.facts(machine)
    assert facts["cpu"] == {
        "model": "Some CPU @ 2 GHz", "logical": 3, "cores": 2, "flags": ["avx2", "fma", "avx512f", "amx_tile"],
    }  # fmt: skip
    assert facts["threads"] == 1 and facts["cpu_quotas"] == [0.5] and facts["cgroup"] == "v2"
    assert facts["memory"]["cgroups"] == [{"limit": 2 * GIB, "used": GIB}]
    assert (facts["memory"]["machine"], facts["memory"]["total"], facts["memory"]["available"]) == (
        8 * GIB, 2 * GIB, GIB,
    )  # fmt: skip
    assert facts["governor"] == "powersave" and facts["nvidia"] == 1


def test_cgroup_versions(machine: Path) -> None:
    path = machine / "proc/self/cgroup"
    path.write_text("4:memory:/a\n0::/b\n")
    assert box.cgroup_version(machine) == "v1 and v2"
    path.write_text("4:memory:/a\n")
    assert box.cgroup_version(machine) == "v1"
    path.unlink()
    assert box.cgroup_version(machine) == "none"


def test_nothing_to_advise() -> None:
    assert doctor.advice(healthy()) == []


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("box", {"affinity": 2, "threads": 2}, "may run on 2 of 4 CPUs"),
        ("box", {"threads": 1, "cpu_quotas": [0.5]}, "quota allows 0.5 of 4 CPUs"),
        ("box", {"governor": "powersave"}, "governor is powersave"),
        ("box", {"nvidia": 1}, "was built without CUDA"),
        (
            "box",
            {"memory": {"machine": 8 * GIB, "total": 2 * GIB, "available": 2 * GIB, "cgroups": []}},
            "a cgroup allows 2.00 GiB of the machine's 8.00 GiB",
        ),
        (
            "box",
            {"memory": {"machine": 8 * GIB, "total": 8 * GIB, "available": GIB // 2, "cgroups": []}},
            "512 MiB of memory are free",
        ),
        ("torch", {"bf16_kernels": False}, "--dtype float32 is faster"),
        ("torch", {"linear": dict.fromkeys(("float32", "bfloat16", "float16"), kernels.PLAIN)}, "does not pack"),
        ("torch", {"mkl": False}, "without MKL"),
        ("system", {"compiler": None}, "install one (g++)"),
        ("system", {"open_files": {"soft": 1024, "hard": 4096}}, "ulimit -n` (up to 4096)"),
        ("system", {"isa_limits": {"ATEN_CPU_CAPABILITY": "default"}}, "ATEN_CPU_CAPABILITY=default keeps torch"),
    ],
)  # fmt: skip
def test_advice(part: str, changes: dict[str, Any], words: str) -> None:
    facts = healthy()
    facts[part] |= changes
    (line,) = doctor.advice(facts)
    assert words in line


def test_torch_with_cuda_and_a_gpu_that_it_cannot_use() -> None:
    facts = healthy()
    facts["box"]["nvidia"], facts["torch"]["cuda_build"] = 1, "12.8"
    (line,) = doctor.advice(facts)
    assert "check the driver" in line


def test_a_gpu_without_what_its_kernels_are_built_with() -> None:
    facts = healthy()
    facts["box"]["nvidia"], facts["torch"]["device"] = 1, "cuda"
    assert not doctor.advice(facts)
    facts["torch"]["triton_lacks"] = "Triton finds no C compiler"
    (line,) = doctor.advice(facts)
    assert "Triton finds no C compiler" in line


def test_a_broken_torch_is_the_first_thing_to_know() -> None:
    facts = healthy()
    facts["torch"] = {"error": "its process ended with signal SIGILL"}
    assert "torch does not work" in doctor.advice(facts)[0] and "SIGILL" in doctor.advice(facts)[0]


def test_the_kernels_are_those_of_the_executor() -> None:
    """What the doctor says of packing is what loading a model does."""
    import torch

    from executors.contract.config import ExecutorConfig
    from executors.llm.checkpoint.loader import choose_kernels
    from executors.llm.model.linear import can_pack_onednn

    facts = kernels.run({}, lambda stage: None)
    cpu = torch.device("cpu")
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        chosen, _ = choose_kernels(ExecutorConfig("llm"), cpu)
        without = kernels.ONEDNN if can_pack_onednn(dtype, cpu) else kernels.PLAIN
        if facts["device"] == "cpu":
            assert facts["linear"][name] == (without if chosen is None else f"cohort-cpu {chosen.isa}")
    assert facts["torch"] == torch.__version__


@pytest.mark.parametrize("width", [80, 140])
def test_it_fits_the_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    versions = dict.fromkeys(("cohort", "python", "torch", *doctor._PACKAGES), "1.2.3") | {"triton": None}
    facts = {**healthy(), "versions": versions, "hub": doctor._hub()}
    facts["box"]["governor"] = "powersave"
    doctor._show({**facts, "advice": doctor.advice(facts)})
    shown = capsys.readouterr().out
    assert all(len(line) <= width for line in shown.splitlines()), shown
    assert "torch, packed for oneDNN" in shown and "avx512_bf16" in shown and "! the CPU's frequency" in shown


def test_the_token_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    facts = doctor._hub()
    assert facts["token"] is True
    assert "hf_very_secret" not in repr(facts)
