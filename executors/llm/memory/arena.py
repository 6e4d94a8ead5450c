"""`KvArena`: memory for KV blocks in a `MemoryFile` of the server, which outlives this process.

    file       [part 0][part 1]...      a part for each group of KV, in the order of `take`, from a multiple of `_ALIGNMENT` on
    warmup     other memory lies at the addresses of the parts: steps that are tried out leave blocks of an earlier life alone
    `share`    the same addresses show the file; what was tried out is gone, and its memory with it

A life that takes parts of the same sizes finds in them what the life before it wrote: `BlockSeals` tells what that is worth.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executors.cgroup import memory_limit
from executors.contract.errors import ConfigError, OutOfMemory
from executors.memory_file import MemoryFile

_ALIGNMENT = 2 << 20
_MAP_FIXED = 0x10
_SCRATCH = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE: few of its pages are written
_MAP_FAILED = ctypes.c_void_p(-1).value
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


class KvArena:
    """The parts of the file that this process has mapped; they stay mapped until it ends. Writes `fault`, once, if the system
    refuses a part.

    - `found_bytes`: memory that the file had when this process began, which it takes over.
    """

    def __init__(self, file: MemoryFile) -> None:
        self.found_bytes = file.resident_bytes
        self.fault: str | None = None
        """Why not all parts are mapped."""
        self._file = file
        self._end = 0
        self._parts: list[tuple[int, int, int]] = []
        """(address, bytes, begin in the file) of each part."""

    def take(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Map the next part: uint8 [num_bytes] of zeros. None, with `fault` set, if the system refuses. Raises ConfigError for
        more than there is: the system would find out only when it is written."""
        begin, end = self._end, -(-(self._end + num_bytes) // _ALIGNMENT) * _ALIGNMENT
        if self._end + num_bytes > (total := memory_limit().total):
            raise ConfigError(
                f"no memory for KV of {self._end + num_bytes:,} bytes: there are {total:,}; take a smaller "
                "--kv-cache-memory-bytes"
            )
        try:
            self._file.grow(end)
            # To learn now whether the system allows it.
            address = self._map(None, num_bytes, mmap.MAP_SHARED, begin)
            self._map(address, num_bytes, _SCRATCH | _MAP_FIXED)
        except (OSError, OverflowError) as error:
            self.fault = getattr(error, "strerror", None) or str(error)
            return None
        self._parts.append((address, num_bytes, begin))
        self._end = end
        return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(address))

    def begin_of(self, memory: NDArray[np.uint8]) -> int | None:
        """Where a part that was taken begins in the file, by its array or one that begins with it; None for other memory."""
        address = memory.ctypes.data
        return next((begin for mapped, _, begin in self._parts if mapped == address), None)

    def share(self) -> None:
        """Map the file at the addresses of the parts, and ask for large pages. Raises OutOfMemory."""
        for address, num_bytes, begin in self._parts:
            try:
                self._map(address, num_bytes, mmap.MAP_SHARED | _MAP_FIXED, begin)
            except OSError as error:
                raise OutOfMemory(f"{num_bytes:,} bytes of KV cannot be mapped: {error.strerror}") from None
            # A kernel without large pages refuses.
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), mmap.MADV_HUGEPAGE
            )

    def _map(self, address: int | None, num_bytes: int, flags: int, begin: int | None = None) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap64.restype = ctypes.c_void_p
        mapped = libc.mmap64(
            ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), mmap.PROT_READ | mmap.PROT_WRITE, flags,
            -1 if begin is None else self._file.descriptor, ctypes.c_int64(begin or 0),
        )  # fmt: skip
        if mapped is None or mapped == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(mapped)

    def empty(self) -> None:
        """Give all memory of the file back to the system: it reads as zeros."""
        self._file.empty()

    @property
    def note(self) -> str | None:
        """Note for `status()`."""
        if self.fault is not None:
            return f"KV ends with its process: the system gives no memory that outlives it: {self.fault}"
        if self._parts and not _has_large_pages():
            return (
                "KV outlives its process, in small pages: attention over long contexts is up to 8% slower than in large ones, "
                f"over int8 KV up to 24% (echo advise > {_LARGE_PAGES})"
            )
        return None


def _has_large_pages() -> bool:
    try:
        chosen = _LARGE_PAGES.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        return False
    return chosen in ("always", "within_size", "advise", "force")
