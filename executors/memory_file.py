"""`MemoryFile`: memory without a name in the file system, which lives as long as a process holds its descriptor.

The server creates one for each rank of an executor, holds it and never maps it. Each life of the executor inherits the descriptor
and maps the file for its KV. What a life has written there is found by the next one.

The file may grow and never shrinks (F_SEAL_SHRINK): a page of a mapping that is cut off would end the process that reads it
with SIGBUS. Ranges are given back to the system by holes; they read as zeros then. Linux only, see memfd_create(2), fcntl(2) and
fallocate(2).
"""

from __future__ import annotations

import ctypes
import fcntl
import logging
import os
import threading
from collections.abc import Callable

from executors.contract.status import KvLayout

_log = logging.getLogger(__name__)

_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2


class MemoryFile:
    """The file behind an open descriptor. `punch`, `empty` and `close` may be called by any thread: what comes after `close`
    reaches no other file that has got the number of the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        """-1 once it is closed."""
        self._lock = threading.Lock()

    @staticmethod
    def create(name: str) -> MemoryFile:
        """Create an empty one; `name` is what /proc shows. Raises OSError where the system has none."""
        file = MemoryFile(os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        try:
            fcntl.fcntl(file.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        except OSError:
            file.close()
            raise
        return file

    @property
    def size(self) -> int:
        """Size in bytes. Raises OSError."""
        return os.fstat(self.descriptor).st_size

    @property
    def resident_bytes(self) -> int:
        """Bytes of memory that the file takes, mapped or not; 0 if that is unknown."""
        try:
            return os.fstat(self.descriptor).st_blocks * 512
        except OSError:
            return 0

    def grow(self, size: int) -> None:
        """Make the file at least that long. Raises OSError."""
        if self.size < size:
            os.ftruncate(self.descriptor, size)

    def punch(self, begin: int, end: int) -> None:
        """Give the bytes [begin, end) back to the system: whole pages are freed, the rest becomes zero. Raises OSError."""
        with self._lock:
            self._punch(begin, end)

    def _punch(self, begin: int, end: int) -> None:
        if begin < end:
            libc = ctypes.CDLL(None, use_errno=True)
            mode = ctypes.c_int(_FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE)
            if libc.fallocate64(self.descriptor, mode, ctypes.c_int64(begin), ctypes.c_int64(end - begin)):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))

    def empty(self) -> bool:
        """Give everything back to the system. False, with a warning in the log, if it refuses."""
        try:
            with self._lock:
                self._punch(0, self.size)
        except OSError as error:
            _log.warning("memory of KV blocks cannot be given back: %s", error.strerror)
            return False
        return True

    def close(self) -> None:
        """Close the descriptor. The file's memory is free once no process has it open or mapped. Idempotent."""
        with self._lock:
            descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class FileBlocks:
    """The blocks of a layout in a memory file: a `BlockMemory`. Any thread may copy; what comes after the file's end raises."""

    def __init__(self, file: MemoryFile, begins: tuple[int, ...], sizes: tuple[int, ...]) -> None:
        """`begins`: where the first block of each group lies in the file."""
        self.sizes = sizes
        self._file = file
        self._begins = begins

    @staticmethod
    def of(file: MemoryFile, layout: KvLayout) -> FileBlocks | None:
        """Return the blocks of all groups; None unless all of them lie in the file."""
        begins: list[int] = []
        sizes = [group.bytes_per_block for group in layout.groups]
        states = () if layout.state is None else (layout.state.memory_begin,)
        for begin in (*(group.memory_begin for group in layout.groups), *states):
            if begin is None:
                return None
            begins.append(begin)
        if layout.state is not None:
            sizes.append(layout.state.slot_bytes)
        return FileBlocks(file, tuple(begins), tuple(sizes))

    def read(self, group: int, block: int, into: memoryview) -> None:
        """See `BlockMemory`."""
        self._copy(os.preadv, group, block, into)

    def write(self, group: int, block: int, data: memoryview) -> None:
        """See `BlockMemory`."""
        self._copy(os.pwritev, group, block, data)

    def _copy(
        self, move: Callable[[int, list[memoryview], int], int], group: int, block: int, data: memoryview
    ) -> None:
        size = self.sizes[group]
        begin, done = self._begins[group] + block * size, 0
        while done < size:
            count = move(self._file.descriptor, [data[done:size]], begin + done)
            if count <= 0:
                raise OSError("the memory file ends early")
            done += count
