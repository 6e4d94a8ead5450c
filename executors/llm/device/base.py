"""`Device`: everything that the executor's parts need to know of the place where tensors are computed.

    memory       figures of a memory of its own, or None if it computes in the machine's
    steps        streams, events and graphs for steps that are launched, or None if the host computes them
    attention    backends in the order in which they are tried
    kernels      whether Triton compiles for it, what it multiplies, how many programs it runs at once
    ranks        the backend by which ranks talk

The values of this class are those of a CPU. A subclass changes what its device has more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

import torch

from executors.contract.errors import ConfigError
from executors.contract.status import ExecutorMemoryUsage
from executors.devices import settings_of_device


class DeviceMemory(Protocol):
    """Memory of a device; all figures are in bytes."""

    def free_and_total(self) -> tuple[int, int]:
        """Return the free and the total memory of the device, over all processes."""

    def reserved(self) -> int:
        """Return the memory that this process's allocator holds, in use or not."""

    def peak(self) -> int:
        """Return the maximum of `reserved` since `reset_peak`."""

    def reset_peak(self) -> None:
        """Start a new peak at the current `reserved`."""

    def empty_cache(self) -> None:
        """Return unused memory to the device."""

    def usage(self) -> ExecutorMemoryUsage:
        """Return the figures for `status()`. Called with each heartbeat, beside steps."""


class Event(Protocol):
    """A mark in the device's work queue."""

    def record(self) -> None:
        """Record the mark behind all work queued so far."""

    def query(self) -> bool:
        """Return whether the device has passed the mark; True if it was never recorded."""

    def synchronize(self) -> None:
        """Wait until the device has passed the mark."""


class Graph(Protocol):
    """Recorded work, over the memory that it was recorded with."""

    def replay(self) -> None:
        """Queue all of the work."""


class StepDevice(Protocol):
    """What launched steps need of their device beside tensors."""

    pinned: bool
    """Whether host memory must be pinned so that copies run beside other work."""
    captures: bool
    """Whether the device supports graphs."""
    compiles: bool
    """Whether kernels are compiled, or loaded, at their first launch."""

    def event(self) -> Event:
        """Make a new event."""

    def reserve(self, num_bytes: int) -> None:
        """Reserve memory for all captures. Otherwise every larger graph takes memory of its own."""

    def capture(self, run: Callable[[], None]) -> Graph:
        """Run the work once, then record it."""

    def check(self) -> None:
        """Wait for all work queued so far. Raises the device's error if it is lost to this process; errors of a capture that
        failed before are none."""


def unsupported(name: str) -> ConfigError:
    """Make the error for a name that is no device's."""
    return ConfigError(f"device {name!r} is not supported; supported: {', '.join(settings_of_device())}")


def _title(name: str, number: int | None) -> str:
    return name if number is None else f"{name} {number}"


class Device:
    """One device of one kind. Holds nothing that a step changes."""

    name: ClassVar[str]
    """Name of the kind in settings and in `status()`."""
    attention_order: ClassVar[tuple[str, ...]] = ()
    """Attention backends that "auto" tries in order, by their names in `kernel_support.kernel_choice`; torch's comes last."""
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "bfloat16", "float16")
    """Dtypes of weights and activations."""
    collectives: ClassVar[str] = "gloo"
    """Backend of torch.distributed by which ranks on such devices talk."""
    batch_limits: ClassVar[tuple[int, int] | None] = None
    """Most sequences and tokens of a step where no setting gives them; None: those of `ExecutorConfig`, and as many tokens as
    the host's threads compute in a short time."""
    launches: ClassVar[bool] = False
    """Whether steps are launched and answered later; otherwise the host computes them."""
    compiles: ClassVar[bool] = False
    """Whether Triton compiles kernels for it. Such kernels are checked before they are used."""
    pinned: ClassVar[bool] = False
    """Whether copies from pinned host memory run beside other work."""
    memory_on_demand: ClassVar[bool] = True
    """Whether memory is taken when it is written first, not when it is allocated."""
    shares_weights: ClassVar[bool] = False
    """Whether processes that are forked after a load share its weights."""
    eight_bits: ClassVar[str] = ""
    """Value of `quantization` to take where whole numbers need kernels that this device does not have; "" for none."""

    def __init__(self, place: torch.device) -> None:
        """`place`: where torch puts its tensors."""
        self.place = place
        self.memory: DeviceMemory | None = None
        """Memory of its own, or None."""

    # -- which there are -------------------------------------------------------------------------------------------------

    @classmethod
    def count(cls) -> int:
        """Return how many devices of the kind this machine has."""
        return 1

    @classmethod
    def is_likely(cls) -> bool:
        """Return whether this machine may have a device of the kind. Asks no driver of which forked processes must know nothing:
        where `count` does, a kind has a way of its own."""
        return cls.count() > 0

    @classmethod
    def find(cls, number: int | None) -> Self:
        """Return the device of that number, or the one that torch takes by itself. Raises ConfigError, and Unavailable for one
        that may appear later."""
        name = cls.name if number is None else f"{cls.name}:{number}"
        try:
            return cls(torch.device(name))
        except RuntimeError:  # a number that torch does not take
            raise unsupported(name) from None

    @classmethod
    def build(cls) -> str | None:
        """Return the version of the kind's library for which torch was built, None for a build without it."""
        return None

    @classmethod
    def facts(cls) -> list[dict[str, Any]]:
        """Describe the numbered devices of the kind for `cohort doctor`: name, capability, free and total bytes."""
        return []

    def open(self) -> bool:
        """Make what a process needs at the device before its first tensor, which takes `CONTEXT_BYTES` there. False if that is
        nothing. May be called again."""
        return False

    def use(self) -> None:
        """Make it the current device of this thread, by which streams, events and launches go."""

    def identity(self) -> tuple[str, ...] | None:
        """Return what tells this very device, with its driver, from any other: checks of kernels that have passed here hold
        where this is the same. None if nothing does: then each process checks for itself."""
        return None

    # -- kernels ---------------------------------------------------------------------------------------------------------

    @property
    def capability(self) -> tuple[int, int] | None:
        """What kernels of libraries ask for, such as (9, 0); None if there are none for this kind."""
        return None

    @property
    def processors(self) -> int | None:
        """Number of programs that run at once with room for others; None if that decides nothing."""
        return None

    def why_no_fp8(self) -> str | None:
        """Return why e4m3 is not multiplied, None if it is."""
        return None

    def prepare_torch_attention(self) -> None:
        """Choose among torch's kernels of scaled dot product attention. Called before each step that uses them."""

    # -- work beside steps -----------------------------------------------------------------------------------------------

    def steps(self) -> StepDevice | None:
        """Make what steps are launched on; None if the host computes them."""
        return None

    def range(self, name: str, number: int | None = None) -> contextlib.AbstractContextManager[Any]:
        """Make a context under whose name profilers show what is computed in it. See `device/ranges.py`."""
        return torch.profiler.record_function(_title(name, number))

    def event(self) -> Event:
        """Make a mark in the device's work queue. Raises RuntimeError where the host computes: there is no queue."""
        raise RuntimeError(f"{self.name} has no queue of work")

    def host_memory(self, num_bytes: int) -> torch.Tensor:
        """Return uint8 [num_bytes] of the machine's memory, pinned if copies from there run beside other work. Raises
        RuntimeError if there is none."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self.pinned)

    def free_host_memory(self) -> None:
        """Give pinned memory back that nothing refers to, which a library may keep for later."""

    def copies(self) -> contextlib.AbstractContextManager[Any]:
        """Make a context for copies beside steps, which may be entered again and again: what is queued in it is done when it
        ends."""
        return contextlib.nullcontext()
