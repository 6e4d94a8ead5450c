"""Memory figures of an executor: the device's, or this process's if the device computes in the machine's memory."""

from __future__ import annotations

import resource

from executors.cgroup import PressureGauge, memory_limit, resident_bytes
from executors.contract.status import ExecutorMemoryUsage
from executors.llm.device.base import DeviceMemory


def memory_usage(memory: DeviceMemory | None, promised: int, gauge: PressureGauge) -> ExecutorMemoryUsage:
    """Return the current memory figures. `promised`: bytes of weights and KV, written or not; a device's own `memory` has its
    allocator's figure for them."""
    if memory is not None:
        return memory.usage()
    # KV pages become memory when they are written: `allocated` is what was promised, `used` what is held. In a
    # container that is what counts towards its limit, all its processes together and page cache left out.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    container = gauge()
    if container is not None:
        return ExecutorMemoryUsage(promised, container.used, peak, container.limit)
    return ExecutorMemoryUsage(promised, resident_bytes(), peak, memory_limit().total)
