"""Runs commands that take long, and shows every second or so that they go on.

On a terminal one line is rewritten: seconds so far, and what the command says that it is doing. Elsewhere, as in the log of a
build, the command's lines are handed on, and a line with the seconds follows wherever none came for a while.
"""

from __future__ import annotations

import codecs
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TextIO

_BEAT_S = 1.2
"""Seconds without a line after which one is written to a log."""
_REDRAW_S = 0.25
_ENDS = re.compile(r"[\r\n]+")
_ACTIVITY = re.compile(
    r"^\s*(?:Collecting|Downloading|Processing|Using cached|Installing|Building|Preparing)\b.*"
)
"""The lines of pip that say what it is doing."""
_PROGRESS = re.compile(r"^Progress (\d+) of (\d+)$")
"""pip's `--progress-bar raw`."""
_FOLDER = re.compile(r"\S*/(?=\S)")
_TAGS = re.compile(r"-(?:cp|py)\d\S*\.whl")
"""Of a wheel's name: what it is built for."""


@dataclass(slots=True)
class Outcome:
    """How a command ended: its exit code (124: it was ended here), seconds, and the lines of its stdout and stderr. `stopped`:
    `watch` ended it."""

    code: int
    seconds: float
    lines: list[str] = field(default_factory=list)
    stopped: bool = False


def run(
    what: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    limit_s: float | None = None,
    watch: Callable[[str], bool] | None = None,
    relays: bool = True,
    output: TextIO | None = None,
) -> Outcome:
    """Run `command` to its end, in a process group of its own.

    `what`: a few words beside the seconds. `env`: variables beside those of this process. `limit_s`: seconds that it may take.
    `watch` sees each line and returns True to end it there. `relays`: whether its lines go to a log.

    A command that cannot be started raises OSError. An interrupt ends the command and is raised.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})}, process_group=0,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        return _followed(
            process, process.stdout, _Display(what, output or sys.stdout, relays), limit_s, watch
        )
    finally:
        end(process)


def wait(what: str, process: subprocess.Popen[bytes], began: float, output: TextIO | None = None) -> int:
    """Wait for a process that was started at `began` (time.monotonic) and writes elsewhere. Returns its exit code."""
    display = _Display(what, output or sys.stdout, began=began)
    try:
        while True:
            try:
                return process.wait(_REDRAW_S)
            except subprocess.TimeoutExpired:
                display.beat()
    finally:
        display.clear()


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, and what it started in its group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _followed(
    process: subprocess.Popen[bytes],
    stdout: IO[bytes],
    display: _Display,
    limit_s: float | None,
    watch: Callable[[str], bool] | None,
) -> Outcome:
    outcome, rest = Outcome(0, 0.0), ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(_REDRAW_S):
                display.beat()
            elif not (data := os.read(stdout.fileno(), 65536)):
                break
            else:
                *lines, rest = _ENDS.split(rest + decoder.decode(data))
                for line in filter(str.strip, lines):
                    outcome.lines.append(line)
                    display.line(line)
                    outcome.stopped = outcome.stopped or (watch is not None and watch(line))
            if outcome.stopped or (limit_s is not None and display.seconds > limit_s):
                break
    display.clear()
    ended = not outcome.stopped and (limit_s is None or display.seconds <= limit_s)
    if rest.strip():
        outcome.lines.append(rest)
    outcome.code = process.wait() if ended else 124
    outcome.seconds = display.seconds
    return outcome


class _Display:
    """What a person sees of a command that runs."""

    def __init__(
        self, what: str, output: TextIO, relays: bool = False, *, began: float | None = None
    ) -> None:
        self._what, self._output, self._relays = what, output, relays
        self._began = time.monotonic() if began is None else began
        self._last, self._activity = time.monotonic(), ""
        self._rewrites = output.isatty()
        self.beat()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def line(self, line: str) -> None:
        """Show a line of the command."""
        if progress := _PROGRESS.match(line):
            done, total = map(int, progress.groups())
            self._activity = f"{self._activity.partition(' · ')[0]} · {100 * done // max(total, 1)}%"
        elif _ACTIVITY.match(line):
            self._activity = _TAGS.sub("", _FOLDER.sub("", line.strip()))
        if self._relays and not self._rewrites and not progress:
            self._write(f"  {line}\n")
        elif time.monotonic() - self._last >= _REDRAW_S:
            self.beat()

    def beat(self) -> None:
        """Show that it goes on."""
        if self._rewrites:
            text = f"  {self.seconds:3.0f} s  {self._what}{': ' if self._activity else ''}{self._activity}"
            self._write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
        elif time.monotonic() - self._last >= _BEAT_S:
            self._write(f"  {self._what}: {self.seconds:.0f} s\n")

    def clear(self) -> None:
        """Remove the line that is rewritten."""
        if self._rewrites:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()
        self._last = time.monotonic()


def spawn(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command beside others, in a group of its own; its output goes to `log`."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, process_group=0
        )
