"""Where e4m3 can be multiplied: the abilities of the device and its kernels, checked before use."""

from __future__ import annotations

import functools
import logging

import torch

from executors.kernels import triton_build
from executors.llm.device.table import device_of
from executors.llm.kernel_support.passed_checks import PassedChecks

_log = logging.getLogger(__name__)


def why_not(
    device: torch.device, backend: str, blocks: bool = False, checks: PassedChecks | None = None
) -> str | None:
    """Return why e4m3 cannot be multiplied here, None if it can. A CPU does it slowly, for comparison, and only if an
    attention `backend` that emulates a GPU's is configured. `checks`: those that have passed before."""
    if device.type == "cpu":
        return None if backend in ("torch", "triton") else "a CPU does not multiply e4m3"
    if (lacking := device_of(device).why_no_fp8()) is not None:
        return lacking
    if blocks and (lacking := why_no_triton(device, backend, checks)) is not None:
        return f"scales of blocks need Cohort's Triton kernels: {lacking}"
    return None


def has_triton(device: torch.device, backend: str, checks: PassedChecks | None = None) -> bool:
    """Return whether Triton kernels run here: on GPUs, and interpreted if they are requested."""
    return why_no_triton(device, backend, checks) is None


def why_no_triton(device: torch.device, backend: str, checks: PassedChecks | None = None) -> str | None:
    """Return why Triton kernels do not run here, None if they do."""
    if not device_of(device).compiles and backend != "triton":
        return "the kernels are for GPUs"
    return triton_build.missing() or (checks or PassedChecks()).fault("fp8", lambda: _fault(device))


@functools.cache
def _fault(device: torch.device) -> str | None:
    """Return what is wrong with Cohort's kernels on the device; logged once."""
    from executors.llm.kernel_support import kernel_check  # imports Triton, which is not everywhere

    wrong = kernel_check.fp8_fault(device) if kernel_check.wanted(device) else None
    if wrong is not None:
        _log.warning("fp8: Cohort's Triton kernels are not used: %s", wrong)
    return wrong
