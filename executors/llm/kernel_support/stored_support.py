"""Where weights can stay as files hold them, dequantized by Triton kernels: checked before use."""

from __future__ import annotations

import functools
import logging

import torch

from executors.kernels import triton_build
from executors.llm.device.table import device_of
from executors.llm.kernel_support.passed_checks import PassedChecks

_log = logging.getLogger(__name__)


def why_not(device: torch.device, backend: str, checks: PassedChecks | None = None) -> str | None:
    """Return why the kernels do not run here, None if they do: on GPUs, and interpreted if an attention `backend` asks for it.
    The backend torch is for comparing with torch alone: it widens. `checks`: those that have passed before."""
    if backend == "torch":
        return "attention backend torch is set"
    if not device_of(device).compiles and backend != "triton":
        return "the kernels are for GPUs"
    return triton_build.missing() or (checks or PassedChecks()).fault("stored", lambda: _fault(device))


@functools.cache
def _fault(device: torch.device) -> str | None:
    """Return what is wrong with the kernels on the device; logged once."""
    from executors.llm.kernel_support import kernel_check  # imports Triton, which is not everywhere

    wrong = kernel_check.stored_fault(device) if kernel_check.wanted(device) else None
    if wrong is not None:
        _log.warning("quantized weights: Cohort's Triton kernels are not used: %s", wrong)
    return wrong
