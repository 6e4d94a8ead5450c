"""When a program wrote something: a server in a process of its own whose lines get a time, and the longest silence among them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

READY = "is ready at"
PROMISED = 2.0
"""Seconds without a line, at most."""


@dataclass(frozen=True, slots=True)
class Line:
    """`at`: seconds since the program was started."""

    at: float
    text: str


class TimedServer:
    """`cohort serve ARGS` on a free port. Its lines are read as they come; leaving kills what still runs."""

    def __init__(self, args: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.lines: list[Line] = []
        self._changed = threading.Condition()
        self._began = time.monotonic()
        self._over = False
        command = [str(Path(sys.executable).with_name("cohort")), "serve", *args, "--port", "0"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(
                    Line(time.monotonic() - self._began, line.decode("utf-8", "replace").rstrip())
                )
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def wait_for(self, words: str, within: float = 50, after: float = -1.0) -> Line:
        """The first line with these words, of those later than `after` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._find(words, after) is not None, within)
        found = self._find(words, after)
        assert found is not None, f"no {words!r} in:\n{self.log()}"
        return found

    def _find(self, words: str, after: float) -> Line | None:
        return next((line for line in self.lines if words in line.text and line.at > after), None)

    @property
    def url(self) -> str:
        """Where it listens."""
        text = self.wait_for("listening on").text
        return text[text.index("http") :].split()[0].strip('",')

    def wait(self, within: float = 50) -> int:
        """The exit code, when all lines have come."""
        code = self.process.wait(within)
        self._reader.join(within)
        return code

    def log(self) -> str:
        return "\n".join(f"{line.at:6.2f} {line.text}" for line in self.lines)

    def assert_never_silent(self, begin: float, end: float) -> None:
        """Fail where no line came for longer than `PROMISED` seconds between these times."""
        times = [begin, *(line.at for line in self.lines if begin < line.at < end), end]
        gap, at = max((later - earlier, earlier) for earlier, later in pairwise(times))
        assert gap <= PROMISED, f"silent for {gap:.1f} s from {at:.1f} s on:\n{self.log()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
