"""A program in a terminal of its own, for tests: type, wait for words, press Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_TAKE_TERMINAL = """\
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)  # the first terminal that the leader of a session opens becomes its own
for number in range(3):
    os.dup2(fd, number)
os.execv(sys.argv[2], sys.argv[2:])
"""
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """with Terminal(["cohort", "chat"], folder) as terminal: terminal.expect(">>> "); terminal.type("Hi\\n")

    `shown` is everything so far, without colours. Leaving kills what still runs."""

    def __init__(self, command: Sequence[str], folder: Path, term: str = "dumb") -> None:
        self._main, self._slave = pty.openpty()
        self.shown = ""
        self._seen = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, os.ttyname(self._slave), *command],
            cwd=folder,
            env={**os.environ, "TERM": term},
            start_new_session=True,
        )
        self._ended = os.pidfd_open(self.process.pid)

    @property
    def fd(self) -> int:
        """The descriptor of its end, for sizes and modes."""
        return self._main

    def type(self, text: str) -> None:
        """As if typed; \\x03 is Ctrl-C and \\x04 Ctrl-D."""
        os.write(self._main, text.encode())

    def expect(self, words: str, within: float = 20) -> str:
        """Wait until `words` are shown after what was expected last; returns what came before them."""
        deadline = time.monotonic() + within
        while (at := self.shown.find(words, self._seen)) < 0:
            left = deadline - time.monotonic()
            assert left > 0 and self.read(left), f"no {words!r} in:\n{self.shown[self._seen :]}"
        before, self._seen = self.shown[self._seen : at], at + len(words)
        return before

    def wait(self, within: float = 20) -> int:
        """The exit code, once it ends by itself."""
        deadline = time.monotonic() + within
        while self.read(max(0.0, deadline - time.monotonic())):
            pass
        return self.process.wait(within)

    def read(self, within: float) -> bool:
        """Take in more; False when nothing comes any more."""
        # A terminal that no process has opened yet reads like one that all have left: the slave stays open until the program
        # has shown something, or has ended.
        watched = [self._main] if self._slave < 0 else [self._main, self._ended]
        ready = select.select(watched, [], [], within)[0]
        if ready:
            self._close_slave()
        if self._main not in ready and not select.select([self._main], [], [], 0)[0]:
            return False
        try:
            data = os.read(self._main, 1 << 16)
        except OSError:  # the last process that had the other end has closed it
            return False
        self.shown += _STYLE.sub("", data.decode("utf-8", "replace")).replace("\r", "")
        return bool(data)

    def _close_slave(self) -> None:
        if self._slave >= 0:
            os.close(self._slave)
            self._slave = -1

    def close(self) -> None:
        """Close the terminal, as its window does: the kernel sends SIGHUP to the leader of its session."""
        self._close_slave()
        if self._main >= 0:
            os.close(self._main)
            self._main = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._ended)
        self.close()
