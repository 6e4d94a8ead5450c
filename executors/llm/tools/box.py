"""Facts about the machine for `cohort doctor`: CPU, cgroups, memory. Standard library only, so that it works without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from executors import cgroup

FLAGS = (
    "avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile",
    "amx_bf16", "amx_int8", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip
"""CPU flags that affect matrix products, as named in /proc/cpuinfo of x86 and of Arm."""


def run(job: dict[str, Any], stage: Callable[[str], None]) -> dict[str, Any]:
    """Return all facts; `job` is not used."""
    return facts()


def facts(root: Path = cgroup.ROOT) -> dict[str, Any]:
    """Return bytes and CPUs as the executor counts them, and the limits that determine them. `root` contains /proc and /sys."""
    limit = cgroup.memory_limit(root)
    return {
        "cpu": cpu(root),
        "threads": cgroup.cpu_threads(root),
        "affinity": len(os.sched_getaffinity(0)),
        "cpu_quotas": cgroup.cgroup_cpus(root),
        "cgroup": cgroup_version(root),
        "memory": {
            "machine": cgroup.machine_bytes(root),
            "total": limit.total,
            "available": limit.available,
            "cgroups": [{"limit": most, "used": used} for most, used in cgroup.cgroup_memory(root)],
        },
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "nvidia": sum(1 for _ in (root / "dev").glob("nvidia[0-9]*")),
    }


def cpu(root: Path) -> dict[str, Any]:
    """Return the model name, logical CPUs, physical cores (None if the kernel does not report them), and the CPU's FLAGS."""
    model, flags, count = "", set[str](), 0
    cores: set[tuple[str, str]] = set()
    package = ""
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        match name:
            case "processor":
                count += 1
            case "model name" | "Model":
                model = model or value
            case "flags" | "Features":
                flags = flags or set(value.split())
            case "physical id":
                package = value
            case "core id":
                cores.add((package, value))
    return {
        "model": model or os.uname().machine,
        "logical": count or os.cpu_count() or 1,
        "cores": len(cores) or None,
        "flags": [flag for flag in FLAGS if flag in flags],
    }


def cgroup_version(root: Path) -> str:
    """Return v1, v2, v1 and v2 (memory and CPU limits are those of v1 then), or none."""
    lines = _read(root / "proc/self/cgroup").splitlines()
    kinds = {"v2" if line.startswith("0::") else "v1" for line in lines}
    return " and ".join(sorted(kinds)) or "none"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""
