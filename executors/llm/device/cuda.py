"""`CudaDevice`: an NVIDIA GPU, by torch.cuda."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import torch

from executors.contract.errors import ConfigError, Unavailable
from executors.contract.status import ExecutorMemoryUsage
from executors.devices import DEVICES, GPU
from executors.llm.device.base import Device, Event, Graph

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER_LIBRARY = "libcuda.so.1"
"""The driver itself says its version without a context. torch's own name for that call is gone from its later versions."""
_DEVICES_FOLDER = Path("/dev")
_DEVICE_FILES = ("nvidia[0-9]*", "dxg", "nvhost-gpu", "nvgpu")
"""Files of /dev by which GPUs are reached: of the driver, of WSL, of Jetson boards."""
_HIDDEN = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs."""
_FP8_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs whose tensor cores multiply e4m3."""


class CudaDevice(Device):
    """See the module."""

    name = GPU
    # An installed flash-attn comes first, because installing it is a deliberate choice. varlen comes after Cohort's own kernels
    # because it must not split keys (see `attention/varlen.py`) and needs blocks of 256 tokens.
    attention_order: ClassVar[tuple[str, ...]] = ("flash-attn", "triton", "varlen")
    batch_limits = DEVICES[GPU].batch_limits
    collectives = "nccl"
    launches = True
    compiles = True
    pinned = True
    memory_on_demand = False
    eight_bits = "fp8"

    def __init__(self, place: torch.device) -> None:
        super().__init__(place)
        self.memory = CudaMemory(place)

    @classmethod
    def count(cls) -> int:
        """See `Device`."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    @classmethod
    def is_likely(cls) -> bool:
        """See `Device`. `torch.cuda.is_available` asks the driver."""
        if (
            not torch.backends.cuda.is_built()
            or os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in _HIDDEN
        ):
            return False
        return any(True for pattern in _DEVICE_FILES for _ in _DEVICES_FOLDER.glob(pattern))

    @classmethod
    def find(cls, number: int | None) -> Self:
        """See `Device`."""
        name = cls.name if number is None else f"{cls.name}:{number}"
        if not torch.cuda.is_available():
            # With a build of torch that knows CUDA, the driver may not be loaded yet, as in a machine's first seconds.
            fault = Unavailable if torch.backends.cuda.is_built() else ConfigError
            raise fault(f"device {name!r}: no CUDA device is available; supported here: auto, cpu")
        if (number or 0) >= (count := torch.cuda.device_count()):
            raise ConfigError(f"device {name!r}: there are {count} CUDA devices, numbered from {cls.name}:0")
        return cls(torch.device(name))

    @classmethod
    def build(cls) -> str | None:
        """See `Device`."""
        return torch.version.cuda

    @classmethod
    def facts(cls) -> list[dict[str, Any]]:
        """See `Device`."""
        return [_facts(number) for number in range(cls.count())]

    def open(self) -> bool:
        """See `Device`: CUDA's context, and the handle of cuBLAS."""
        self.use()
        torch.zeros(1, device=self.place)
        torch.cuda.current_blas_handle()
        torch.cuda.synchronize(self.place)
        return True

    def use(self) -> None:
        """See `Device`. Without a number it is what torch takes by itself."""
        if self.place.index is not None:
            torch.cuda.set_device(self.place)

    def identity(self) -> tuple[str, ...] | None:
        """See `Device`. A part of a GPU has a number of its own, and other sizes."""
        properties = torch.cuda.get_device_properties(self.place)
        uuid, driver = getattr(properties, "uuid", None), _driver()
        if uuid is None or driver is None:  # a torch, or a driver, that does not say
            return None
        sizes = (
            properties.major,
            properties.minor,
            properties.multi_processor_count,
            properties.total_memory,
        )
        return self.name, properties.name, str(uuid), *map(str, sizes), *driver, str(torch.version.cuda)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability."""
        return torch.cuda.get_device_capability(self.place)

    @property
    def processors(self) -> int:
        """The number of multiprocessors."""
        return torch.cuda.get_device_properties(self.place).multi_processor_count

    def why_no_fp8(self) -> str | None:
        """See `Device`."""
        if (capability := self.capability) < _FP8_CAPABILITY:
            return f"compute capability {capability[0]}.{capability[1]} does not multiply e4m3; 8.9 or later is needed"
        return None

    def prepare_torch_attention(self) -> None:
        """Leave cuDNN out: it makes a plan for each shape in 20 ms and more, and lengths of KV differ from step to step."""
        torch.backends.cuda.enable_cudnn_sdp(False)

    @contextlib.contextmanager
    def range(self, name: str, number: int | None = None) -> Iterator[None]:
        """See `Device`. Nsight Systems shows ranges of NVTX, torch's profiler its own."""
        with (
            super().range(name, number),
            torch.cuda.nvtx.range(name if number is None else f"{name} {number}"),
        ):
            yield

    def steps(self) -> CudaSteps:
        """See `Device`."""
        return CudaSteps(self.place)

    def event(self) -> Event:
        """See `Device`."""
        event: Event = torch.cuda.Event()
        return event

    def free_host_memory(self) -> None:
        """See `Device`. Where torch cannot be asked for it, the memory stays pinned until the process ends."""
        if (empty := getattr(torch._C, "_host_emptyCache", None)) is not None:
            empty()

    def copies(self) -> CudaCopies:
        """See `Device`."""
        return CudaCopies(self.place)


def _driver() -> tuple[str, str] | None:
    """Return the version of CUDA that the driver has, and the line about the kernel's module, "" where it cannot be read; None if
    the driver does not say the former."""
    try:
        number = ctypes.c_int()
        if ctypes.CDLL(_DRIVER_LIBRARY).cuDriverGetVersion(ctypes.byref(number)):
            return None
    except (OSError, AttributeError):
        return None
    try:
        module = _DRIVER_FILE.read_text()
    except OSError:
        module = ""
    return str(number.value), module


def _facts(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    capability = f"{properties.major}.{properties.minor}"
    return {"name": properties.name, "capability": capability, "free": free, "total": total}


class CudaMemory:
    """`DeviceMemory` of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_and_total(self) -> tuple[int, int]:
        """Return the driver's figures."""
        free, total = torch.cuda.mem_get_info(self._device)
        return int(free), int(total)

    def reserved(self) -> int:
        """Return the memory of torch's caching allocator, pools of captured graphs included."""
        return int(torch.cuda.memory_reserved(self._device))

    def peak(self) -> int:
        """See the protocol."""
        return int(torch.cuda.max_memory_reserved(self._device))

    def reset_peak(self) -> None:
        """See the protocol."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def empty_cache(self) -> None:
        """See the protocol. Waits for the device, whose last kernels may still use memory that nothing refers to any more."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()

    def usage(self) -> ExecutorMemoryUsage:
        """See the protocol. Asks the allocator once: each of torch's functions for one figure has it write down all two
        hundred, under its lock."""
        stats = torch.cuda.memory_stats(self._device)
        reserved, used, peak = (
            int(stats.get(name, 0))
            for name in (
                "reserved_bytes.all.current",
                "allocated_bytes.all.current",
                "allocated_bytes.all.peak",
            )
        )
        total = torch.cuda.get_device_properties(self._device).total_memory
        return ExecutorMemoryUsage(reserved, used, peak, total)


class CudaCopies:
    """A context on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._current: contextlib.AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        self._current = torch.cuda.stream(self._stream)
        self._current.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._current is not None
        self._current.__exit__(kind, error, trace)
        if error is None:
            self._stream.synchronize()


class CudaSteps:
    """A `StepDevice` with torch's CUDA graphs. They share one memory pool, because they never run at the same time."""

    pinned = True
    captures = True
    compiles = True

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._arena: torch.cuda.CUDAGraph | None = None
        """Graph that keeps the pool and the memory reserved in it alive."""
        self._failed: list[torch.cuda.CUDAGraph] = []
        """Failed graphs, kept because freeing one would free the stream's cuBLAS workspace, whose address other graphs hold."""

    def event(self) -> Event:
        """See `StepDevice`."""
        event: Event = torch.cuda.Event()
        return event

    def reserve(self, num_bytes: int) -> None:
        """See `StepDevice`. A graph allocates all the memory at once and returns it to the pool, from which later graphs
        allocate."""
        device = self._stream.device

        def take(size: int) -> None:
            torch.zeros(size, dtype=torch.uint8, device=device)

        self._run(lambda: take(1024))
        self._arena = self._record(lambda: take(num_bytes))

    def capture(self, run: Callable[[], None]) -> Graph:
        """See `StepDevice`."""
        self._run(run)
        graph = self._record(run)
        try:
            # The first launch brings the graph to the device, which takes time and memory: not a client's.
            graph.replay()
            torch.cuda.current_stream(self._stream.device).synchronize()
        except BaseException:
            self._failed.append(graph)
            raise
        return graph

    def check(self) -> None:
        """See `StepDevice`. After an error that loses the context each call reports it again."""
        try:
            torch.cuda.current_stream(self._stream.device).synchronize()
        except RuntimeError as error:
            if "captur" not in str(error):
                raise

    def _run(self, run: Callable[[], None]) -> None:
        """Run the work on the stream of the capture, which compiles and loads missing kernels and lets libraries allocate
        what they keep."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                run()
        finally:
            # Also where it failed half-way: what is queued there reads inputs that the next step overwrites.
            current.wait_stream(self._stream)

    def _record(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._stream.device)
        try:
            # Other threads ask the device for its memory meanwhile: that is none of the capture's business.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                run()
        except BaseException:
            self._failed.append(graph)
            # torch 2.11 goes on allocating for a capture that cannot be ended, and gives nothing cached back meanwhile.
            with contextlib.suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self._stream.device.index, self._pool)
            raise
        finally:
            # A capture that cannot be ended leaves its stream the current one, and steps would go there.
            torch.cuda.set_stream(current)
        return graph
