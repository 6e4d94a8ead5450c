"""Writes log lines on a thread of its own, from a bounded queue: no caller waits for the reader of the log.

    put(lines) -> [ queue, at most MAX_BYTES ] -> thread -> write(descriptor), which may block for ever

Lines that find no room are counted. Once half of the queue is free again, one line in their place says how many they were.

A regular file takes lines at once, so a caller writes them itself if the queue is empty: they are in the file before what comes
after them, and a killed process loses none. A file system that stalls once is left to the thread from then on.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable

MAX_BYTES = 1 << 20
"""Size of the queue in bytes: some 5,000 lines of calls."""
_BATCH_BYTES = 1 << 16
"""Bytes of one write, at most, unless a single line is longer."""
_SLOW_S = 0.1
"""Duration of a write to a file in seconds after which no caller writes."""
_STALL_S = 1.0
"""Time without progress after which a flush gives up, in seconds."""


class LogWriter:
    """The queue and its thread. Every member may be called from every thread, also from a signal handler or a finalizer that
    interrupts another call of the same thread (hence the RLock)."""

    def __init__(self, descriptor: int, notice: Callable[[int], bytes], max_bytes: int = MAX_BYTES) -> None:
        """`notice` returns the line that tells of that many missing lines."""
        self._descriptor, self._notice, self._max_bytes = descriptor, notice, max_bytes
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.dropped = 0
        """Number of lines that were not written, since the start."""
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Start with an empty queue; a forked child has none of its parent's threads."""
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._full = False
        """Whether lines are refused until half of the queue is free."""
        self._missing = 0
        """Number of dropped lines that no notice has told of."""
        self._writing = False
        self._written = 0
        """Bytes so far."""
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    def put(self, lines: bytes) -> None:
        """Queue one or more whole lines, or drop them. Never waits."""
        with self._changed:
            room = not self._bytes or self._bytes + len(lines) <= self._max_bytes
            if self._full or not room:
                self._full = True
                self._drop(lines)
                return
            if self._is_file and not self._queue and not self._writing:
                self._write_now(lines)
                return
            self._queue.append(lines)
            self._bytes += len(lines)
            self._changed.notify_all()

    def _write_now(self, lines: bytes) -> None:
        began = time.monotonic()
        missing, self._missing = self._missing, 0
        self._write_after(missing, lines)
        self._is_file = time.monotonic() - began < _SLOW_S

    def flush(self, seconds: float) -> bool:
        """Wait until the queue is written, at most `seconds`, and less if nothing is read meanwhile. Returns whether it is."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._queue or self._writing:
                before = self._written
                seconds_here = min(_STALL_S, deadline - time.monotonic())
                if seconds_here <= 0 or (not self._changed.wait(seconds_here) and self._written == before):
                    return False
        return True

    def _drop(self, lines: bytes) -> None:
        count = max(1, lines.count(b"\n"))
        self.dropped += count
        self._missing += count

    def _run(self) -> None:
        while True:
            lines, missing = self._take()
            self._write_after(missing, lines)
            with self._changed:
                self._writing = False
                self._changed.notify_all()

    def _write_after(self, missing: int, lines: bytes) -> None:
        """Write the lines. Before them were `missing` others that a failed write dropped."""
        notice = self._notice(missing) if missing else b""
        if not self._write(notice + lines):
            with self._changed:
                self._missing += missing
                self._drop(lines)

    def _take(self) -> tuple[bytes, int]:
        """The next lines to write, and the number of lines that are missing before them."""
        with self._changed:
            while not self._queue:
                self._changed.wait()
            batch, size = [self._queue.popleft()], 0
            size = len(batch[0])
            while self._queue and size + len(self._queue[0]) <= _BATCH_BYTES:
                batch.append(self._queue.popleft())
                size += len(batch[-1])
            self._bytes -= size
            self._writing = True
            if not self._full:
                missing, self._missing = self._missing, 0
                return b"".join(batch), missing
            if self._bytes <= self._max_bytes // 2:
                # All queued lines are older than those that found no room.
                self._full = False
                notice = self._notice(self._missing)
                self._queue.append(notice)
                self._bytes += len(notice)
                self._missing = 0
            return b"".join(batch), 0

    def _write(self, lines: bytes) -> bool:
        """Whether all was written: a full disk, a closed terminal or pipe takes nothing."""
        rest = memoryview(lines)
        while rest:
            try:
                size = os.write(self._descriptor, rest)
            except BlockingIOError:  # another process that shares the terminal has made it non-blocking
                _wait_writable(self._descriptor)
                continue
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                return False
            rest = rest[size:]
            with self._changed:
                self._written += size
                self._changed.notify_all()
        return True


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(1000)
