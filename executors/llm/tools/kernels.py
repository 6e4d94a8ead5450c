"""Facts about torch for `cohort doctor`: its build, the devices, and the kernels that the executor uses here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from executors.cgroup import cpu_threads
from executors.devices import GPU
from executors.kernels import triton_build
from executors.kernels.compiler import KernelUnavailable
from executors.kernels.cpu import CpuKernels, cpu_kernels
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.device.table import class_of, find_device
from executors.llm.model.linear import can_pack_onednn

ONEDNN, PLAIN = "torch, packed for oneDNN", "plain torch"


def run(job: dict[str, Any], stage: Callable[[str], None]) -> dict[str, Any]:
    """Return all facts; `job` is not used."""
    hardware = find_device("auto")
    device = hardware.place
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    kernels = _kernels()
    return {
        "torch": torch.__version__,
        f"{GPU}_build": class_of(GPU).build(),
        "devices": hardware.facts(),
        "device": hardware.name,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "triton_lacks": triton_build.missing(),
        "onednn": torch.backends.mkldnn.is_available(),
        "bf16_kernels": _onednn_has("_is_mkldnn_bf16_supported"),
        "fp16_kernels": _onednn_has("_is_mkldnn_fp16_supported"),
        "threads": cpu_threads(),
        "linear": {name: _linear(dtype, device, kernels) for name, dtype in dtypes.items()},
        "attention": f"cohort-cpu {kernels.isa} on CPU; on GPUs as set by --attention-backend"
        if isinstance(kernels, CpuKernels)
        else f"{TorchAttention.name} (gathers KV before each call); {kernels}",
    }


def _kernels() -> CpuKernels | str:
    """Return the kernels of decoder models on this CPU, compiled if necessary, or the reason why there are none."""
    try:
        return cpu_kernels()
    except KernelUnavailable as error:
        return str(error)


def _linear(dtype: torch.dtype, device: torch.device, kernels: CpuKernels | str) -> str:
    if device.type == "cpu" and isinstance(kernels, CpuKernels):
        return f"cohort-cpu {kernels.isa}"
    return ONEDNN if can_pack_onednn(dtype, device) else PLAIN


def _onednn_has(name: str) -> bool:
    try:
        return bool(getattr(torch.ops.mkldnn, name)())
    except (AttributeError, RuntimeError):
        return False
