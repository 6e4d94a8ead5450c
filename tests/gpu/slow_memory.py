"""An executor on a fake device whose memory the driver takes back slowly after a process has ended. Imported by a child."""

from __future__ import annotations

from dataclasses import dataclass

from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from tests.executors.llm.devices import GIB, Device
from tests.gpu.device_fakes import FakeDeviceExecutor


@dataclass
class SlowDevice(Device):
    """Full at first; each look at it finds a part of what the process before held."""

    step: int = 4 * GIB

    def free_and_total(self) -> tuple[int, int]:
        self.others = max(0, self.others - self.step)
        return super().free_and_total()


class SlowExecutor(FakeDeviceExecutor):
    """Its device is full when it starts."""

    async def warmup(self) -> None:
        self.memory = SlowDevice(total=24 * GIB, others=36 * GIB)
        await super().warmup()


class Factory(LlmFactory):
    """Named in `ExecutorConfig.executor`."""

    def executor_class(self) -> type[LlmExecutor]:
        return SlowExecutor
