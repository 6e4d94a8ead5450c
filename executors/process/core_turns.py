"""`CoreTurns`: executor processes that compute on the same cores take turns, one step at a time.

    executor a   | step |......| step |......        . its host works meanwhile: answers, the next step's message
    executor b   ......| step |......| step |

Two processes that compute at once hold each other's threads up at every barrier of a layer, and take longer together than one
after the other. A turn is a lock on a byte of a file without a name, which the server makes. The system frees it when its holder
ends, however it ends. Locks alone would go to any of those that wait, even to the one that has just ended its step. So each draws
a number, whose byte it holds until its turn is over, and waits for the byte before.

    take    draw number n, lock byte n; lock byte n - 1 and free it; lock TURN            give    free TURN and byte n

The turn goes round by numbers; that no two compute at once depends on TURN alone, also where one that waits ends.

Linux only, see F_OFD_SETLKW in fcntl(2).
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_DRAW, _TURN, _NUMBERS = 0, 1, 2
"""Bytes of the file that are locked: to draw a number, for the turn, and from here on one for each number."""
_COUNTER_BYTES = 8
"""The file's contents: the last number that was drawn."""


class CoreTurns:
    """One process's access to the turns. `take` blocks its thread, without the GIL."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._number = 0
        """The number drawn last."""

    @staticmethod
    def create() -> CoreTurns:
        """Make the file; it lives until all have closed it. Raises OSError or AttributeError where the system has none."""
        return CoreTurns(os.memfd_create("cohort-turns", os.MFD_CLOEXEC))

    @staticmethod
    def open(path: str) -> CoreTurns:
        """Take part in turns of another process's file, by the `path` that it tells. Raises OSError."""
        return CoreTurns(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def path(self) -> str:
        """Where other processes of this user find the file while this one lives."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def take(self) -> None:
        """Wait for the turn."""
        self._set(_DRAW, fcntl.F_WRLCK)
        try:
            drawn = os.pread(self._descriptor, _COUNTER_BYTES, 0)
            self._number = int.from_bytes(drawn, sys.byteorder) + 1
            os.pwrite(self._descriptor, self._number.to_bytes(_COUNTER_BYTES, sys.byteorder), 0)
            self._set(_NUMBERS + self._number, fcntl.F_WRLCK)
        finally:
            self._set(_DRAW, fcntl.F_UNLCK)
        before = _NUMBERS + self._number - 1
        self._set(before, fcntl.F_WRLCK)
        self._set(before, fcntl.F_UNLCK)
        self._set(_TURN, fcntl.F_WRLCK)

    def give(self) -> None:
        """End the turn."""
        self._set(_TURN, fcntl.F_UNLCK)
        self._set(_NUMBERS + self._number, fcntl.F_UNLCK)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Compute in the turn."""
        self.take()
        try:
            yield
        finally:
            self.give()

    def close(self) -> None:
        """Close the file. A turn that is held is given."""
        os.close(self._descriptor)

    def _set(self, byte: int, kind: int) -> None:
        # struct flock: type, whence, start, length, pid. A lock of the open file, not of the process: a child that inherits the
        # descriptor, and a library that closes another one of the same file, change nothing.
        fcntl.fcntl(
            self._descriptor, fcntl.F_OFD_SETLKW, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
        )
