"""The device: what it is, what it runs on, and its two limits."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
from typing import Any

from benchmarks.gpu.part import Failed, Found, NotRun, Options

_LEAST_TORCH = (2, 11)
_NAMED = (
    "torch",
    "triton",
    "numpy",
    "safetensors",
    "msgspec",
    "setproctitle",
    "pytest",
    "transformers",
    "flash-attn",
)


def run(options: Options, found: Found) -> None:
    """Everything else needs this to pass."""
    if importlib.util.find_spec("torch") is None:
        raise NotRun("torch is not installed")
    import torch

    from benchmarks.gpu.timing import measure_limits

    if options.device != "cpu" and not torch.cuda.is_available():
        raise NotRun(f"torch {torch.__version__} finds no CUDA device")
    version = tuple(int(part) for part in str(torch.__version__).split("+")[0].split(".")[:2])
    if version < _LEAST_TORCH:
        raise Failed(f"torch {torch.__version__}: 2.11 or later is needed")
    device = torch.device(options.device)
    versions = {name: _version(name) for name in _NAMED}
    about = describe(device)
    found(
        {
            "identity": {"device": about["name"], "torch": versions["torch"], "triton": versions["triton"]},
            "about": about,
            "versions": versions,
            "python": platform.python_version(),
        }
    )
    limits = measure_limits(device, options.tiny)
    found(limits.figures)


def describe(device: Any) -> dict[str, Any]:
    """What torch says of it."""
    import torch

    if device.type != "cuda":
        return {"name": "cpu", "threads": torch.get_num_threads()}
    facts = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "total_bytes": total,
        "free_bytes": free,
        "cuda": torch.version.cuda,
        "ptxas": _ptxas(),
    }


def _ptxas() -> str | None:
    """Which assembler Triton compiles with: TRITON_PTXAS_PATH names another, should a kernel's numbers be doubted."""
    try:
        from triton import knobs

        return f"{knobs.nvidia.ptxas.version} at {knobs.nvidia.ptxas.path}"
    except (ImportError, AttributeError, RuntimeError) as error:
        return f"unknown: {error}"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
