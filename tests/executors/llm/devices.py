"""A device's memory, as a driver and a caching allocator behave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from executors.contract import ExecutorMemoryUsage
from executors.llm.memory.device_memory import CONTEXT_BYTES

GIB = 1 << 30
WEIGHTS = 3 * GIB


@dataclass
class Device:
    """A `DeviceMemory` where what is released stays reserved until the cache is emptied.

    `looks` counts questions for what is free; `events` are called at them, by their number.
    """

    total: int = 80 * GIB
    others: int = 0
    context: int = CONTEXT_BYTES
    used: int = WEIGHTS
    cached: int = 0
    highest: int = 0
    looks: int = 0
    emptied: int = 0
    events: dict[int, Callable[[], None]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.total - self.others - self.context - self.used - self.cached

    def free_and_total(self) -> tuple[int, int]:
        self.looks += 1
        answer = self.free, self.total
        self.events.get(self.looks, lambda: None)()
        return answer

    def reserved(self) -> int:
        return self.used + self.cached

    def peak(self) -> int:
        return self.highest

    def reset_peak(self) -> None:
        self.highest = self.reserved()

    def usage(self) -> ExecutorMemoryUsage:
        return ExecutorMemoryUsage(self.reserved(), self.used, self.highest, self.total)

    def empty_cache(self) -> None:
        self.cached = 0
        self.emptied += 1

    def take(self, num_bytes: int) -> None:
        if num_bytes > self.free + self.cached:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {num_bytes}. GPU 0 has no more"
            )
        self.cached -= min(num_bytes, self.cached)
        self.used += num_bytes
        self.highest = max(self.highest, self.reserved())

    def release(self, num_bytes: int) -> None:
        self.used -= num_bytes
        self.cached += num_bytes


class Once:
    """Finds no memory at its first so many calls."""

    def __init__(self, compute: Callable[..., Any], failing: int) -> None:
        self.compute, self.failing, self.calls = compute, failing, 0

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        if self.calls <= self.failing:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot")
        return self.compute(*args, **more)
