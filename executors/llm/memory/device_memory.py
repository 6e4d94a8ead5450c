"""How much of a device's own memory this process may use, by the figures of its driver and of torch's allocator.

The driver knows how much of the device is free, but not which process uses the rest. torch's allocator knows how much this
process holds through it, which is everything but the context. No figure here is therefore a difference between two readings
of free memory: such a difference would include what other processes free or take in between.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from executors.contract.config import ExecutorConfig
from executors.contract.faults import no_device_memory
from executors.llm.device.base import DeviceMemory

_log = logging.getLogger(__name__)
T = TypeVar("T")

CONTEXT_BYTES = 512 << 20
"""Memory that a process takes on the device outside torch's allocator, in bytes: its context, code of kernels, handles of
libraries. An estimate, never more than is in use. If it is too small, the share is exceeded by the difference and by no more."""
MARGIN_BYTES = 128 << 20
"""Memory kept free beside the measured use, in bytes, in addition to a hundredth of the device. It covers free blocks of the
allocator that fit no request (a step of other lengths asks for other sizes), and kernels and workspaces that libraries load
at the first step of their kind."""
MARGIN_PART = 100


def give_back(memory: DeviceMemory) -> None:
    """Free all unreferenced memory on the device, including that of reference cycles."""
    gc.collect()
    memory.empty_cache()


def retried(memory: DeviceMemory | None, compute: Callable[[], T]) -> T:
    """Return the result of `compute`, which is called again if memory runs out: freed pieces may then be merged into a block
    that is large enough.

    A second call must have the same effect as the first. Raises what the second call raises.
    """
    if memory is None:
        return compute()
    try:
        return compute()
    except Exception as error:
        why = no_device_memory(error)
        if why is None:
            raise
        _log.warning("out of memory on the device; retrying after emptying the allocator's cache: %s", why)
    # Out of the handler: the error held what the step had in hand.
    memory.empty_cache()
    return compute()


@dataclass(frozen=True, slots=True)
class Room:
    """The division of a device's memory, in bytes.

    This process may use `share` of `total` and uses `ours` now; `free` is used by no process. `step` and `graphs` are still
    to be allocated beside the KV, `standby` is kept for the context of a process that stands by, and `margin` stays free.
    """

    total: int
    free: int
    ours: int
    share: float
    margin: int
    step: int = 0
    graphs: int = 0
    standby: int = 0

    @property
    def usable(self) -> int:
        """Memory that this process may take now: limited by its share and by what is free. Negative if it exceeds its share."""
        return min(int(self.share * self.total) - self.ours, self.free) - self.standby - self.margin

    @property
    def others_limit(self) -> bool:
        """True if the memory that other processes hold is what limits `usable`, and not this process's share."""
        return self.free < int(self.share * self.total) - self.ours

    @property
    def for_kv(self) -> int:
        """Memory that KV may take."""
        return max(0, self.usable - self.step - self.graphs)

    def __str__(self) -> str:
        """All figures in one line, with the settings that change them."""
        standby = (
            f"{_gib(self.standby)} for a process that stands by (standby_executor), " if self.standby else ""
        )
        return (
            f"{_gib(self.for_kv)} GiB for KV: {_gib(self.total)} GiB times {self.share:g} "
            f"(gpu_memory_utilization), minus {_gib(self.ours)} in use; {_gib(self.free)} are free; minus "
            f"{_gib(self.step)} for a step (max_num_batched_tokens, max_num_seqs), {_gib(self.graphs)} for graphs, "
            f"{standby}{_gib(self.margin)} as a margin"
        )


def look(memory: DeviceMemory, config: ExecutorConfig) -> Room:
    """Return the current division, with nothing still to be allocated."""
    free, total = memory.free_and_total()
    ours = min(total - free, memory.reserved() + CONTEXT_BYTES)
    return Room(
        total, free, ours, config.memory.gpu_memory_utilization, margin(total), standby=standby_bytes(config)
    )


def standby_bytes(config: ExecutorConfig) -> int:
    """Return the bytes that a process which stands by takes on the device."""
    return CONTEXT_BYTES if config.memory.standby_context else 0


def margin(total: int) -> int:
    """Return how much memory stays free of a device with `total` bytes."""
    return MARGIN_BYTES + total // MARGIN_PART


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}"
