"""What an executor on a device says of its memory with each heartbeat."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from executors.cgroup import PressureGauge
from executors.llm.device.cuda import CudaMemory
from executors.llm.memory.status import memory_usage


def test_a_heartbeat_asks_the_allocator_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose lock a step's allocations wait for."""
    asked = []
    stats = {"reserved_bytes.all.current": 5, "allocated_bytes.all.current": 3, "allocated_bytes.all.peak": 4}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: asked.append(device) or stats)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=9))
    cuda = torch.device("cuda:1")
    status = memory_usage(CudaMemory(cuda), 77, PressureGauge())
    assert (status.allocated_bytes, status.used_bytes, status.peak_bytes, status.total_bytes) == (5, 3, 4, 9)
    assert asked == [cuda]
    stats.clear()  # nothing was allocated yet
    assert memory_usage(CudaMemory(cuda), 77, PressureGauge()).allocated_bytes == 0
