"""`LlmExecutor` whose device is lost when a file asks for it: for `sticky`, in the executor's process.

An index beyond its tensor trips an assertion on the device. Nothing is raised where it is launched; from then on each call of
the process that asks the device for something raises, whatever it is. A CPU has no such state: the next step raises the same
words.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch

from executors.contract import UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory

NAME = f"{__name__}:StickyFactory"
FOLDER = "GPU_CHECK_STICKY"
"""The environment's variable with the folder where `IN_A_STEP` and `IDLE` are looked for. The file is taken away before the fault
that it asks for: the next life must not find it."""
IN_A_STEP, IDLE = "step", "idle"
WORDS = "CUDA error: device-side assert triggered"
_LOOK = 0.02


class StickyFactory(LlmFactory):
    """`LlmFactory` of `StickyExecutor`."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return StickyExecutor


class StickyExecutor(LlmExecutor):
    """See the module."""

    name = "llm"
    _lost = False

    async def warmup(self) -> None:
        """As `LlmExecutor`'s. Then a thread waits for what is asked for while no step runs."""
        await super().warmup()
        threading.Thread(target=self._wait, name="sticky", daemon=True).start()

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See the contract. Launches the fault before the step that follows a request for it."""
        if _asked(IN_A_STEP):
            self._lose()
        if self._lost:
            raise RuntimeError(WORDS)
        return await super().unified_decode(batch)

    def _wait(self) -> None:
        while not _asked(IDLE):
            time.sleep(_LOOK)
        self._lose()

    def _lose(self) -> None:
        assert self.device is not None
        place = self.device.place
        if place.type == "cpu":
            self._lost = True
            return
        numbers = torch.zeros(1, device=place)
        numbers[torch.full((1,), 1 << 20, device=place)].add_(1)


def _asked(name: str) -> bool:
    """Whether a file asks for a fault; it is taken away."""
    try:
        Path(os.environ[FOLDER], name).unlink()
    except FileNotFoundError:
        return False
    return True
