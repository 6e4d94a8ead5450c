"""An executor on a fake device that can be told from others, as a GPU can by its number. Imported by a child."""

from __future__ import annotations

import os

from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.kernel_support.kernel_choice import MAKERS, AttentionWish
from tests.executors.llm.devices import GIB, Device
from tests.gpu.device_fakes import FakeDevice, FakeDeviceExecutor, PagedTorch

NUMBER = "FAKE_GPU_NUMBER"
"""Environment variable with the number of the device that a process finds; none: it has no number."""


class NumberedDevice(FakeDevice):
    """Compiles at the first launch, as a GPU does."""

    def __init__(self, number: str | None) -> None:
        super().__init__()
        self.compiles = True  # type: ignore[misc]
        self.number = number

    def identity(self) -> tuple[str, ...] | None:
        return None if self.number is None else ("fake", self.number)


class CheckedTorch(PagedTorch):
    """Checked before it serves, as Cohort's kernels are. `checks` counts."""

    name = "checked torch"
    checks = 0
    wrong: str | None = None


def _checked(wish: AttentionWish) -> CheckedTorch:
    def check() -> str | None:
        CheckedTorch.checks += 1
        return CheckedTorch.wrong

    backend = CheckedTorch()
    backend.note = f"attention: {wish.fault(backend.name, False, check) or 'right'}"
    return backend


MAKERS[CheckedTorch.name] = _checked


class NumberedExecutor(FakeDeviceExecutor):
    """Finds the device that the environment names."""

    order = (CheckedTorch.name,)

    async def warmup(self) -> None:
        self.device = self.device or NumberedDevice(os.environ.get(NUMBER))
        self.memory = self.memory or Device(total=24 * GIB)
        await super().warmup()


class Factory(LlmFactory):
    """Named in `ExecutorConfig.executor`."""

    def executor_class(self) -> type[LlmExecutor]:
        return NumberedExecutor
