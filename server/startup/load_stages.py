"""`LoadStages`: how long each stage of a load took, for the line that tells of its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from executors.contract import ProgressCallback


class LoadStages:
    """Reports pass through `report` on their way to another callback. Any thread may call it."""

    def __init__(self, onwards: ProgressCallback, clock: Callable[[], float] = time.monotonic) -> None:
        self._onwards = onwards
        self._clock = clock
        self._lock = threading.Lock()
        self._start = clock()
        self._stages: dict[str, float] = {}
        """Seconds by stage, in the order of their beginnings."""
        self._stage: str | None = None
        self._since = self._start

    def report(self, stage: str, done: int, total: int) -> None:
        """A ProgressCallback."""
        self._enter(stage)
        self._onwards(stage, done, total)

    def text(self) -> str:
        """The whole time so far and that of each stage: 2.1 s (importing 1.2, weights 0.3)."""
        now = self._enter(None)
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._stages.items())
        return f"{now - self._start:.1f} s" + (f" ({stages})" if stages else "")

    def _enter(self, stage: str | None) -> float:
        now = self._clock()
        with self._lock:
            if stage != self._stage:
                if self._stage is not None:
                    self._stages[self._stage] = self._stages.get(self._stage, 0.0) + now - self._since
                self._stage, self._since = stage, now
        return now
