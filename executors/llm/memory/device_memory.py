"""`DeviceMemory`: what a GPU's driver and torch's allocator say of its memory, and what of it is to be had.

The driver knows how much of the device is free, not whose the rest is; torch's allocator knows what this process holds
through it, which is all but the context. So nothing here is a difference between two looks at what is free: what other
processes free or take between them would count as ours.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from executors.contract.config import ExecutorConfig
from executors.contract.faults import no_device_memory

_log = logging.getLogger(__name__)
T = TypeVar("T")

CONTEXT_BYTES = 512 << 20
"""What a process takes on the device outside torch's allocator: CUDA's context, code of kernels, handles of libraries. An
estimate, and never more than is in use: too small a one lets the share be exceeded by the difference, no more."""
MARGIN_BYTES = 128 << 20
"""Left free beside what was measured, and a hundredth of the device with it: blocks of the allocator that fit nobody (a step
of other lengths asks for other sizes), kernels and workspaces of libraries that come with the first step of their kind."""
MARGIN_PART = 100


class DeviceMemory(Protocol):
    """All in bytes."""

    def free_and_total(self) -> tuple[int, int]:
        """Of the device, whoever holds it."""

    def reserved(self) -> int:
        """What this process's allocator holds, in use or not."""

    def peak(self) -> int:
        """The most that `reserved` has been since `reset_peak`."""

    def reset_peak(self) -> None:
        """Begin a new peak at what is reserved now."""

    def empty_cache(self) -> None:
        """Give back to the device what is not in use."""


class CudaMemory:
    """`DeviceMemory` of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_and_total(self) -> tuple[int, int]:
        """As the driver says."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(free), int(total)

    def reserved(self) -> int:
        """Of torch's caching allocator, pools of captured graphs included."""
        return int(torch.cuda.memory_reserved(self._device))

    def peak(self) -> int:
        """See the protocol."""
        return int(torch.cuda.max_memory_reserved(self._device))

    def reset_peak(self) -> None:
        """See the protocol."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def empty_cache(self) -> None:
        """See the protocol; waits for the device, whose last kernels may be using what nobody refers to any more."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


def device_memory(device: torch.device) -> DeviceMemory | None:
    """None for a CPU: its memory is the machine's, see `cgroup.py`."""
    return CudaMemory(device) if device.type == "cuda" else None


def give_back(memory: DeviceMemory) -> None:
    """Have all that nobody refers to free on the device, what refers to itself in a circle included."""
    gc.collect()
    memory.empty_cache()


def retried(memory: DeviceMemory | None, compute: Callable[[], T]) -> T:
    """What `compute` returns, which may be called twice: what it allocated in vain is in pieces that may be one again.

    So it must be the same to do it once more. Raises what it raises the second time.
    """
    if memory is None:
        return compute()
    try:
        return compute()
    except Exception as error:
        why = no_device_memory(error)
        if why is None:
            raise
        _log.warning("no memory on the device, once more with what the allocator had kept: %s", why)
    # Out of the handler: the error held what the step had in hand.
    memory.empty_cache()
    return compute()


@dataclass(frozen=True, slots=True)
class Room:
    """Where a device's memory goes, in bytes. `share` of its `total` may be this process's, `ours` is by now; `free` is what
    nobody holds. `step` and `graphs` are still to come beside the KV, and `margin` stays free."""

    total: int
    free: int
    ours: int
    share: float
    margin: int
    step: int = 0
    graphs: int = 0

    @property
    def usable(self) -> int:
        """What may be taken now: of our share, and of what is really free. Negative where more than the share is taken."""
        return min(int(self.share * self.total) - self.ours, self.free) - self.margin

    @property
    def for_kv(self) -> int:
        """What KV may take."""
        return max(0, self.usable - self.step - self.graphs)

    def __str__(self) -> str:
        """All figures in a line, with the settings that change them."""
        return (
            f"{_gib(self.for_kv)} GiB for KV: of {_gib(self.total)} GiB a share of {self.share:g} "
            f"(gpu_memory_utilization) less {_gib(self.ours)} that are taken, of which {_gib(self.free)} are free; less "
            f"{_gib(self.step)} for a step (max_num_batched_tokens, max_num_seqs), {_gib(self.graphs)} for graphs, "
            f"{_gib(self.margin)} as a margin"
        )


def look(memory: DeviceMemory, config: ExecutorConfig) -> Room:
    """The room as of now, with nothing still to come."""
    free, total = memory.free_and_total()
    ours = min(total - free, memory.reserved() + CONTEXT_BYTES)
    return Room(total, free, ours, config.memory.gpu_memory_utilization, margin(total))


def margin(total: int) -> int:
    """What stays free of a device with so much memory in all."""
    return MARGIN_BYTES + total // MARGIN_PART


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"
