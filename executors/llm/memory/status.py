"""Memory figures of an executor: the device's, or this process's if the device is the CPU."""

from __future__ import annotations

import resource

import torch

from executors.contract.status import ExecutorMemoryUsage
from executors.llm.memory.cgroup import PressureGauge, memory_limit, resident_bytes


def memory_status(device: torch.device, promised: int, gauge: PressureGauge) -> ExecutorMemoryUsage:
    """Return the current memory figures. `promised`: bytes of weights and KV, written or not; on CUDA the allocator's own
    figure is used instead."""
    if device.type == "cuda":
        # Asked once: each of torch's functions for one figure has the allocator write down all two hundred, under its lock.
        stats = torch.cuda.memory_stats(device)
        reserved, used, peak = (
            int(stats.get(name, 0))
            for name in (
                "reserved_bytes.all.current",
                "allocated_bytes.all.current",
                "allocated_bytes.all.peak",
            )
        )
        return ExecutorMemoryUsage(
            reserved, used, peak, torch.cuda.get_device_properties(device).total_memory
        )
    # KV pages become memory when they are written: `allocated` is what was promised, `used` what is held. In a
    # container that is what counts towards its limit, all its processes together and page cache left out.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    container = gauge()
    if container is not None:
        return ExecutorMemoryUsage(promised, container.used, peak, container.limit)
    return ExecutorMemoryUsage(promised, resident_bytes(), peak, memory_limit().total)
