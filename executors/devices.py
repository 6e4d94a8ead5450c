"""The devices that executors can be configured for.

A new device is a line of `DEVICES` and a file in executors/llm/device, which the line names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """`place`: module and class of its `executors.llm.device.base.Device`. `numbered`: a machine may have several, `NAME:N` is
    one of them, and each rank needs one of its own. `batch_limits`: most sequences and tokens of a step where no setting gives
    them, lowered where memory is short; None: those of `ExecutorConfig`."""

    place: str
    numbered: bool = False
    batch_limits: tuple[int, int] | None = None


MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 64, 2048
"""Most sequences and tokens of a step on devices without limits of their own, as in `ExecutorConfig`."""
GPU = "cuda"
DEVICES = {
    "cpu": DeviceKind("executors.llm.device.cpu:CpuDevice"),
    # A step reads all weights once: at 64 rows a model of 8B is at half to two thirds of its rate at 256. 8,192 tokens keep the
    # matrix products of a prompt at their full rate.
    GPU: DeviceKind("executors.llm.device.cuda:CudaDevice", numbered=True, batch_limits=(256, 8192)),
}
"""Kinds by name, which is also torch's. "auto" takes the last kind of which the machine has a device."""


def needs_own(device: str) -> bool:
    """Return whether each rank with this setting needs a device of its own; False for "auto"."""
    kind = kind_of(device)
    return kind is not None and kind.numbered


def kind_of(device: str) -> DeviceKind | None:
    """Return the kind of a setting such as "cpu" or "NAME:1"; None for "auto", "" and unknown names."""
    return DEVICES.get(device.split(":")[0])


def settings_of_device() -> tuple[str, ...]:
    """Return all forms of the setting `device`, for messages."""
    numbered = (f"{name}:N" for name, kind in DEVICES.items() if kind.numbered)
    return ("auto", *DEVICES, *numbered)
