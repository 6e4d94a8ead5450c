"""`DeviceCopies`: brings tensors from files into a device's memory by several readers, through buffers of pinned host memory.

    readers    threads that read pieces of files into buffers, two each          a disk or the page cache, and the host's memory
    launches   the thread that loads queues a copy for each buffer that is full  one stream, in the order of the files
    ring       a buffer is filled again once the mark behind its copy has passed

Copies from pinned memory run beside the readers; from other memory the driver would copy each piece twice and wait for it. Bytes
are those of the file: what needs a cast goes another way. The pinned memory, `NUM_BUFFERS` x `PIECE` bytes, cannot be swapped out
or given to others while weights are loaded, and is given back then.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from executors.contract.errors import ConfigError
from executors.llm.checkpoint.tensor_file import PIECE, FilePiece, TensorFile
from executors.llm.device.base import Device, Event

NUM_READERS = 4
"""Threads. Two read as fast as most disks; from the page cache each copies some gigabytes a second."""
NUM_BUFFERS = 2 * NUM_READERS


@dataclass(slots=True, eq=False)
class _Buffer:
    """`memory` uint8 [PIECE], pinned; `event`: the mark behind the copy of what it held last."""

    memory: torch.Tensor
    event: Event


@dataclass(slots=True)
class _Read:
    """A piece that a reader brings into a buffer. `done` raises what went wrong."""

    buffer: _Buffer
    piece: FilePiece
    done: Future[None]


class DeviceCopies:
    """See the module. A context: at its end all copies are made. Used by the thread that loads, on whose current stream copies
    are queued. Raises RuntimeError if there is no pinned memory."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._free = deque(_Buffer(device.host_memory(PIECE), device.event()) for _ in range(NUM_BUFFERS))
        """Buffers that nothing is read into; the one whose copy was queued first comes first."""
        self._reads: deque[_Read] = deque()
        self._files: dict[TensorFile, int] = {}
        """Descriptors."""
        self._readers = ThreadPoolExecutor(NUM_READERS, "weights")

    def take(self, file: TensorFile, pieces: Iterable[FilePiece]) -> None:
        """Bring these pieces of a file to their places, or begin to. Raises ConfigError, which names the file, for a piece of any
        file that cannot be read."""
        if file not in self._files:
            self._files[file] = file.open_again()
        descriptor = self._files[file]
        for piece in pieces:
            while self._reads and (not self._free or self._reads[0].done.done()):
                self._launch()
            buffer = self._free.popleft()
            buffer.event.synchronize()
            done = self._readers.submit(_read, file, descriptor, piece, buffer.memory)
            self._reads.append(_Read(buffer, piece, done))

    def _launch(self) -> None:
        """Wait for the oldest piece, and queue its copy."""
        read = self._reads.popleft()
        read.done.result()
        buffer, target = read.buffer, read.piece.target
        target.copy_(buffer.memory[: target.nbytes].view(target.dtype).view(target.shape), non_blocking=True)
        buffer.event.record()
        self._free.append(buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while self._reads and error is None:
                self._launch()
        finally:
            # Readers end before files are closed, and the device is done before memory is given back.
            self._readers.shutdown(cancel_futures=True)
            self._reads.clear()
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()
            self._settle(error)
            self._free.clear()
            self._device.free_host_memory()

    def _settle(self, error: BaseException | None) -> None:
        for buffer in self._free:
            try:
                buffer.event.synchronize()
            except RuntimeError:  # a device that is lost, which the first error says as well
                if error is None:
                    raise


def _read(file: TensorFile, descriptor: int, piece: FilePiece, buffer: torch.Tensor) -> None:
    """Read a piece into the buffer. Raises ConfigError."""
    view, done = memoryview(buffer.numpy())[: piece.target.nbytes], 0
    while done < len(view):
        try:
            count = os.preadv(descriptor, [view[done:]], piece.begin + done)
        except OSError as error:
            raise ConfigError(f"{file.path}: cannot be read ({error.strerror})") from None
        if not count:
            raise ConfigError(f"{file.path}: truncated while it was read, at byte {piece.begin + done}")
        done += count
