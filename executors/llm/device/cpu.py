"""`CpuDevice`: the machine's processors, and its memory, whose figures `executors/cgroup.py` reads."""

from __future__ import annotations

from typing import ClassVar

from executors.llm.device.base import Device


class CpuDevice(Device):
    """See the module. Steps are computed on the executor's thread."""

    name = "cpu"
    shares_weights: ClassVar[bool] = True
    attention_order: ClassVar[tuple[str, ...]] = ("cohort-cpu",)
