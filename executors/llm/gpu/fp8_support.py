"""Where e4m3 can be multiplied: what the device and its kernels can do, tried before they serve."""

from __future__ import annotations

import functools
import logging

import torch

from executors.kernels import triton_build

_log = logging.getLogger(__name__)

_CAPABILITY = (8, 9)
"""Of the first GPUs whose tensor cores multiply e4m3."""


def why_not(device: torch.device, backend: str, blocks: bool = False) -> str | None:
    """Why nothing multiplies e4m3 here, None if something does. On a CPU it is done for the sake of comparison, slowly, and
    only where an attention `backend` that stands in for a GPU's was asked for."""
    if device.type == "cpu":
        return None if backend in ("torch", "triton") else "a CPU does not multiply e4m3"
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} does not multiply e4m3; 8.9 or later is needed"
    if device.type == "cuda" and blocks and (lacking := why_no_triton(device, backend)) is not None:
        return f"scales of blocks need Cohort's Triton kernels: {lacking}"
    return None


def has_triton(device: torch.device, backend: str) -> bool:
    """Whether Triton kernels compute here: on GPUs, and interpreted where they were asked for."""
    return why_no_triton(device, backend) is None


def why_no_triton(device: torch.device, backend: str) -> str | None:
    """Why Triton kernels do not compute here, None if they do."""
    if device.type != "cuda" and backend != "triton":
        return "the kernels are for GPUs"
    return triton_build.missing() or _fault(device)


@functools.cache
def _fault(device: torch.device) -> str | None:
    """What is wrong with our kernels there; said once."""
    from executors.llm.gpu import kernel_check  # imports Triton, which is not everywhere

    wrong = kernel_check.fp8_fault(device) if kernel_check.wanted(device) else None
    if wrong is not None:
        _log.warning("fp8: Cohort's Triton kernels are not used: %s", wrong)
    return wrong
