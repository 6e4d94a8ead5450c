"""What an executor says of its memory: the device's, or this process's where the device is the CPU."""

from __future__ import annotations

import resource

import torch

from executors.facts import MemoryStatus
from executors.llm.memory import PressureGauge, memory_limit, resident_bytes


def memory_status(device: torch.device, promised: int, gauge: PressureGauge) -> MemoryStatus:
    """Memory as of now. `promised`: bytes of weights and KV, written or not; on CUDA the allocator knows better."""
    if device.type == "cuda":
        allocated, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_allocated(device)
        total = torch.cuda.get_device_properties(device).total_memory
        return MemoryStatus(allocated, torch.cuda.memory_allocated(device), peak, total)
    # KV pages become memory when they are written: `allocated` is what was promised, `used` what is held. In a
    # container that is what counts towards its limit, all its processes together and page cache left out.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    container = gauge()
    if container is not None:
        return MemoryStatus(promised, container.used, peak, container.limit)
    return MemoryStatus(promised, resident_bytes(), peak, memory_limit().total)
