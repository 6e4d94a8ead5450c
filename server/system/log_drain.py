"""Reads what child processes write to stderr, on a thread of its own: a child never waits for the reader of the log either.

Each child gets a pipe. It cannot share the server's descriptor: a full one would block the child, and O_NONBLOCK would apply to
all processes that share it, the shell among them.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_READ_BYTES = 1 << 16
_LONGEST_LINE = 1 << 16
"""Bytes after which a line is cut."""
_PARTIAL_S = 0.5
"""Time after which the beginning of a line is passed on as a line, in seconds."""

Emit = Callable[[str, bytes], None]
"""Called on the thread with the name of a process and whole lines of it."""


@dataclass(slots=True)
class _Pipe:
    """One child's pipe. One writer: the drain's thread."""

    process: str
    partial: bytes = b""
    since: float = 0.0
    """Time of the first byte of `partial`."""


class LogDrain:
    """The reading ends of the children's pipes, and the thread that reads them until each child's end."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._epoll = select.epoll()
        self._pipes: dict[int, _Pipe] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._settled = threading.Event()
        threading.Thread(target=self._run, name="log drain", daemon=True).start()

    def open(self, process: str) -> int:
        """The writing end of a new pipe, which the caller closes once its child has it. `process` names the child in the log."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._pipes[reading] = _Pipe(process)
        self._epoll.register(reading, select.EPOLLIN)
        return writing

    def settle(self, seconds: float) -> None:
        """Wait until everything that is in the pipes now is passed on, at most `seconds`."""
        self._settled.clear()
        os.eventfd_write(self._wake, 1)
        self._settled.wait(seconds)

    def _run(self) -> None:
        while True:
            starts = [pipe.since for pipe in list(self._pipes.values()) if pipe.partial]
            timeout = max(0.0, min(starts) + _PARTIAL_S - time.monotonic()) if starts else None
            ready = [descriptor for descriptor, _ in self._epoll.poll(timeout)]
            for descriptor in ready:
                if descriptor != self._wake:
                    self._read(descriptor)
            self._pass_on_old()
            if ready == [self._wake]:
                os.eventfd_read(self._wake)
                self._settled.set()

    def _read(self, descriptor: int) -> None:
        pipe = self._pipes[descriptor]
        try:
            data = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(descriptor)
            # Before the number is free: `open` on another thread may get it at once.
            del self._pipes[descriptor]
            os.close(descriptor)
            self._pass_on(pipe)
            return
        whole, newline, rest = (pipe.partial + data).rpartition(b"\n")
        if newline:
            self._pass_on_lines(pipe, whole + newline)
        if rest and (newline or not pipe.partial):
            pipe.since = time.monotonic()
        pipe.partial = rest
        if len(rest) > _LONGEST_LINE:
            self._pass_on(pipe)

    def _pass_on_old(self) -> None:
        now = time.monotonic()
        for pipe in list(self._pipes.values()):
            if pipe.partial and now >= pipe.since + _PARTIAL_S:
                self._pass_on(pipe)

    def _pass_on(self, pipe: _Pipe) -> None:
        """Pass on the beginning of a line as a line."""
        if pipe.partial:
            self._pass_on_lines(pipe, pipe.partial + b"\n")
            pipe.partial = b""

    def _pass_on_lines(self, pipe: _Pipe, lines: bytes) -> None:
        try:
            self._emit(pipe.process, lines)
        except Exception as error:  # without this thread every child would block
            self._emit(pipe.process, f"a line of the log was lost: {error!r}\n".encode())
