"""Which attention backend and which fused layers a model gets on its device.

    flash-attn  the library, if it is installed          attention/flash.py             GPUs
    triton      Cohort's Triton kernels                  attention/triton_attention.py  GPUs
    varlen      torch's own, from torch 2.12             attention/varlen.py            GPUs
    torch       gathers KV, then torch's SDPA            attention/plain_torch.py       anywhere
    cohort-cpu  Cohort's C++ kernel                      attention/cpu_attention.py     CPUs

`choose_attention` takes the first backend of the device's order that is installed and supports the model. On a GPU a backend
must pass a check first: `attention/check.py` for the two libraries, `kernel_check.py` for Cohort's own kernels.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from executors.contract.errors import ConfigError
from executors.kernels import triton_build
from executors.llm.attention import cpu_attention
from executors.llm.attention.backend import TRITON, AttentionBackend
from executors.llm.attention.by_heads import AttentionByHeads
from executors.llm.attention.check import fault
from executors.llm.attention.flash import NAME as FLASH
from executors.llm.attention.flash import flash_attention
from executors.llm.attention.library import LibraryAttention, Unsuitable
from executors.llm.attention.plain_torch import TorchAttention
from executors.llm.attention.varlen import NAME as VARLEN
from executors.llm.attention.varlen import varlen_attention
from executors.llm.device.base import Device
from executors.llm.device.table import device_of
from executors.llm.fused import cpu_forward
from executors.llm.kernel_support.passed_checks import PassedChecks, name_of
from executors.llm.kernel_support.rehearsals import Rehearsed
from executors.llm.lora.device import DeviceWeights
from executors.llm.lora.host import HostWeights
from executors.llm.lora.table import LoraWeights
from executors.llm.memory.kv_groups import equal_heads
from executors.llm.model.caches import KvSpec
from executors.llm.model.decoder import Decoder

if TYPE_CHECKING:
    from executors.llm.attention.triton_attention import TritonAttention
    from executors.llm.fused.triton_forward import TritonForward

_log = logging.getLogger(__name__)
Library = Callable[[KvSpec, int, tuple[int, int]], LibraryAttention]

CPU_KERNEL = "cohort-cpu"
"""Name of Cohort's C++ kernel in `Device.attention_order`."""


class AttentionWish(NamedTuple):
    """What an attention backend is made for. `isa`: the instruction set of CPU kernels, None for the best. `checks`: those that
    have passed before."""

    spec: KvSpec
    device: Device
    block_size: int
    isa: str | None = None
    checks: PassedChecks | None = None

    def fault(self, backend: str, deterministic: bool, check: Callable[[], str | None]) -> str | None:
        """Return what the check of a backend finds wrong."""
        name = name_of(f"attention {backend}", self.spec, self.block_size, deterministic)
        return (self.checks or PassedChecks()).fault(name, check)


def choose_attention(
    spec: KvSpec,
    backend: str = "auto",
    deterministic: bool = False,
    isa: str | None = None,
    block_size: int = 16,
    device: Device | None = None,
    checks: PassedChecks | None = None,
) -> AttentionBackend:
    """Choose the attention backend for a model; `backend` is one of kernels.ATTENTION_BACKENDS, `device` the one of the model's
    tensors if it is not given. `checks`: those that have passed before.

    Where layers have heads of different sizes, a backend is chosen for each size (`AttentionByHeads`).

    May compile for a second or two. If "auto" ends with a slower backend than the best that is installed, the backend's note
    and the log say why. Raises ConfigError if the requested backend is unavailable, or if `deterministic` is set and no
    deterministic backend is available.
    """
    parts = equal_heads(spec)
    if len(parts) > 1:
        chosen = {
            part.each_heads[0]: choose_attention(
                part, backend, deterministic, isa, block_size, device, checks
            )
            for part in parts
        }
        return AttentionByHeads(chosen)
    wish = AttentionWish(spec, device or device_of(spec.device), block_size, isa, checks)
    if deterministic:
        return _deterministic(wish, backend)
    if backend == "torch":
        return TorchAttention()
    if backend == "auto":
        return _first_suitable(wish)
    try:
        return MAKERS[backend](wish)
    except Unsuitable as error:
        raise ConfigError(f"attention backend {backend}: {error}") from None


def _deterministic(wish: AttentionWish, backend: str) -> AttentionBackend:
    """Choose a deterministic backend. Only Cohort's own kernels add in an order that does not depend on other sequences."""
    if CPU_KERNEL in wish.device.attention_order and backend != "triton":
        chosen = TorchAttention() if backend == "torch" else _cpu(wish)
        if not isinstance(chosen, cpu_attention.CpuAttention):
            raise ConfigError(
                f"deterministic: needs Cohort's own attention kernel; this model gets {chosen.note}"
            )
        return chosen
    if backend not in ("auto", "triton"):
        raise ConfigError(f"deterministic: attention backend {backend} is not deterministic; use triton")
    try:
        return _triton(wish, deterministic=True)
    except Unsuitable as error:
        raise ConfigError(f"deterministic: needs Cohort's own attention kernels: {error}") from None


def _first_suitable(wish: AttentionWish) -> AttentionBackend:
    """Make the first backend of the device's order that suits the model, or torch's."""
    passed_over = []
    for name in wish.device.attention_order:
        try:
            chosen = MAKERS[name](wish)
        except Unsuitable as error:
            # A library that is not installed is not missed, unless it is our own.
            if not error.absent or name == "triton":
                _log.warning("attention: %s is not used: %s", name, error)
                passed_over.append(f"not {name}: {error}")
        else:
            chosen.note = "; ".join((chosen.note, *passed_over))
            return chosen
    return TorchAttention("; ".join(passed_over))


def _cpu(wish: AttentionWish) -> AttentionBackend:
    """Make Cohort's C++ kernel, or torch's attention where there is none for the model."""
    if not cpu_attention.supports(wish.spec):
        return TorchAttention("" if wish.spec.kv_dtype is None else "Cohort's kernel does not read KV in fp8")
    try:
        return cpu_attention.CpuAttention(wish.isa)
    except cpu_attention.KernelUnavailable as error:
        _log.warning("attention: torch, which is slower than Cohort's kernel: %s", error)
        return TorchAttention(str(error))


def _of_library(library: Library, wish: AttentionWish) -> AttentionBackend:
    """Make a library's attention, and check it. Raises Unsuitable."""
    if (capability := wish.device.capability) is None:
        raise Unsuitable(f"it needs a GPU; the device is {wish.spec.device.type}")
    backend = library(wish.spec, wish.block_size, capability)
    if wrong := wish.fault(backend.name, False, lambda: fault(backend, wish.spec, wish.block_size)):
        raise Unsuitable(wrong)
    return backend


def _triton(wish: AttentionWish, deterministic: bool = False) -> AttentionBackend:
    """Make the attention over Cohort's Triton kernels, and check them. Raises Unsuitable."""
    backend = own_attention(wish.spec, deterministic)
    from executors.llm.kernel_support import kernel_check

    wrong = None
    if kernel_check.wanted(wish.spec.device):
        wrong = wish.fault(
            TRITON, deterministic, lambda: kernel_check.attention_fault(backend, wish.spec, wish.block_size)
        )
    if wrong:
        raise Unsuitable(wrong)
    if backend.tile_rule.cuts and kernel_check.wanted(wish.spec.device):
        wrong = wish.fault(
            f"{TRITON} shared tiles", deterministic,
            lambda: kernel_check.shared_tiles_fault(backend, wish.spec, wish.block_size),
        )  # fmt: skip
        if wrong:
            _log.warning("attention: keys of prompts are not shared by programs: %s", wrong)
            backend.share_no_tiles(wrong)
    return backend


MAKERS: dict[str, Callable[[AttentionWish], AttentionBackend]] = {
    CPU_KERNEL: _cpu,
    FLASH: partial(_of_library, flash_attention),
    "triton": _triton,
    VARLEN: partial(_of_library, varlen_attention),
}
"""What makes each backend of `Device.attention_order`. Raises Unsuitable."""


def own_attention(spec: KvSpec, deterministic: bool = False) -> TritonAttention:
    """Make the attention over Cohort's Triton kernels, without checking them. Raises Unsuitable."""
    try:
        from executors.llm.attention import triton_attention
    except ImportError:
        raise Unsuitable("triton is not installed", absent=True) from None
    if (lacking := triton_build.missing()) is not None:
        raise Unsuitable(lacking)
    if spec.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unsuitable("it needs a GPU; the device is cpu")
    if not triton_attention.supports(spec):
        kind = str(spec.dtype).removeprefix("torch.")
        raise Unsuitable(f"Triton kernels have no code for {kind} and heads of {spec.head_dim}")
    return triton_attention.TritonAttention(spec, deterministic)


def choose_adapters(
    model: Decoder,
    backend: AttentionBackend,
    most: int,
    max_rank: int,
    on_device: bool = False,
    checks: PassedChecks | None = None,
) -> LoraWeights:
    """Choose where `most` LoRA adapters of rank `max_rank` lie and what computes them. Call it after `fuse`. `checks`: those that
    have passed before.

    On a CPU, unless steps run `on_device` or by Triton kernels: the machine's memory, and the CPU kernels or torch. Else: the
    device's memory, and the Triton kernels if they pass their check, or torch.
    """
    if model.device.type == "cpu" and not on_device and backend.name != TRITON:
        return HostWeights(model)
    lacking = triton_build.missing()
    if lacking is None and model.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        lacking = "they need a GPU; the device is cpu"
    if lacking is not None:
        return DeviceWeights(model, most, max_rank, why=lacking)
    from executors.kernels.triton.lora import add_lora
    from executors.llm.kernel_support import kernel_check

    weights = DeviceWeights(model, most, max_rank, add_lora)
    wrong = None
    if kernel_check.wanted(model.device):
        name = name_of("adapters", model.config, model.dtype, most, max_rank)
        wrong = (checks or PassedChecks()).fault(name, lambda: kernel_check.adapters_fault(weights, model))
    if wrong is not None:
        _log.warning("adapters: torch, which is slower than Cohort's Triton kernels: %s", wrong)
        weights.use_torch(wrong)
    return weights


def fuse(backend: AttentionBackend, model: object, checks: PassedChecks | None = None) -> None:
    """Give a model the fused forward that matches its attention, if there is one and it passes its check. Call it after
    `prepare`. `checks`: those that have passed before.

    Raises ConfigError if the check fails and torch's layers cannot replace the forward because they are not deterministic.
    """
    if not isinstance(model, Decoder):
        return
    if model.kernels is not None and cpu_forward.why_not(model) is None:
        model.fuse(cpu_forward.CpuForward(model.kernels, model))
    if (forward := _checked_forward(backend, model, checks)) is not None:
        model.fuse(forward)


def _checked_forward(
    backend: AttentionBackend, model: Decoder, checks: PassedChecks | None
) -> TritonForward | None:
    """Make the forward of Triton kernels. The model is as before. Raises as `fuse`."""
    if backend.name != TRITON and not isinstance(backend, LibraryAttention):
        return None
    if triton_build.missing() is not None:  # a library's attention does without Triton
        return None
    from executors.llm.fused import few_rows, triton_forward
    from executors.llm.kernel_support import kernel_check

    if triton_forward.why_not(model) is not None:
        return None
    forward = triton_forward.TritonForward(model)
    deterministic = getattr(backend, "deterministic", False)
    passed = checks or PassedChecks()

    def fault_of(what: str, check: Callable[[], str | None]) -> str | None:
        name = name_of(what, model.config, model.dtype, model.kv_dtype)
        return passed.fault(name, check) if kernel_check.wanted(model.device) else None

    if wrong := fault_of("forward", lambda: kernel_check.forward_fault(model, forward.experts)):
        if deterministic:
            raise ConfigError(f"deterministic: needs Cohort's own kernels: {wrong}")
        _log.warning("forward: torch, which is slower than Cohort's Triton kernels: %s", wrong)
        backend.note = f"{backend.note}; forward by torch: {wrong}"
        return None
    # Steps of few tokens are rounded otherwise: where a row's bits may not depend on its step, all steps are computed alike.
    if not deterministic and few_rows.why_not(model) is None:
        few = few_rows.FewRows(model)
        wrong = fault_of("few rows", lambda: kernel_check.few_rows_fault(model, few))
        if wrong is None:
            forward.few = few
        else:
            _log.warning("forward: steps of few tokens take more launches than they need: %s", wrong)
            backend.note = f"{backend.note}; steps of few tokens by the general kernels: {wrong}"
    return forward


def rehearse(wish: AttentionWish, model: object, backend: str, deterministic: bool) -> None:
    """Launch what the checks of `choose_attention` and of `fuse` launch, with the same arguments. Called in a rehearsal of
    `Rehearsals`. Nothing that was made before is changed, and nothing is logged: the choice itself says why a backend is passed
    over. Raises what making a backend raises."""
    checks = Rehearsed()
    names = wish.device.attention_order if backend == "auto" and not deterministic else (backend,)
    for spec in equal_heads(wish.spec):
        one = wish._replace(spec=spec, checks=checks)
        chosen = _triton(one, True) if deterministic else _first_made(one, names)
        if chosen is not None and isinstance(model, Decoder):
            _checked_forward(chosen, model, checks)


def _first_made(wish: AttentionWish, names: tuple[str, ...]) -> AttentionBackend | None:
    for name in names:
        with contextlib.suppress(Unsuitable):
            return MAKERS[name](wish) if name in MAKERS else None
    return None
