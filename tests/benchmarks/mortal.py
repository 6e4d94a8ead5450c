"""Executors of this process that die when they are told to, one that comes back with other weights, and one that takes a CPU
for a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from benchmarks.gpu.last_step import LastStepExecutor
from executors.contract import ExecutorState, Int32Array, SealedBlocks, UnifiedBatch, UnifiedOutput
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from tests.executors.llm.devices import Device
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor

CAUSE = "executor_died:device"


class Mortal(LlmExecutor):
    """Dies in its next step once `kill` was called."""

    dying: ClassVar[bool] = False

    @classmethod
    def kill(cls) -> None:
        """Of whichever lives."""
        Mortal.dying = True

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See the contract."""
        if Mortal.dying:
            Mortal.dying = False
            raise RuntimeError("CUDA error: unspecified launch failure")
        return await super().unified_decode(batch)


class OtherWeights(Mortal):
    """Each life but the first has weights of its own."""

    _lives = 0

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """See the contract."""
        if self._lives:
            self._runtime, self._state = None, ExecutorState.INITIALIZING
            self.config = replace(self.config, seed=self.config.seed + self._lives)
            await self.warmup()
        self._lives += 1
        return await super().begin_epoch(epoch, adopt)


class MortalFactory(LlmFactory):
    """Of `Mortal`."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return Mortal


class OtherWeightsFactory(LlmFactory):
    """Of `OtherWeights`."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return OtherWeights


class Faked(LastStepExecutor, FakeDeviceExecutor):
    """Takes the CPU of a child process for a GPU with memory of its own, graphs and kernels that are compiled."""

    memory = Device()

    async def warmup(self) -> None:
        """See the contract."""
        self.device = FakeDevice()
        self.device.compiles = True
        await super().warmup()


class FakedFactory(LlmFactory):
    """Of `Faked`."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return Faked


def name(factory: type[Any]) -> str:
    """By which the registry finds it."""
    return f"{__name__}:{factory.__name__}"
