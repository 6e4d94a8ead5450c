"""Shells in pseudo terminals, and a recording of all that they write.

bash prints a marker with the exit code in front of each prompt: an escape sequence that terminals ignore, taken out of the
recording.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

COLUMNS, ROWS = 110, 32
_PROMPT = r"\e]777;$?\a$ "
_MARKER = re.compile(r"\x1b\]777;(\d+)\x07(?=\$ )")
_WHOLE = "\x1b]777;0\x07$ "
_PIECE = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07]*\x07|\x1b[@-Z\\^_]|[\r\n]|[^\x1b\r\n]+")
_TICK_S = 0.05


@dataclass(slots=True)
class Recording:
    """Texts and the seconds at which they came, counted from the first command."""

    mirror: TextIO | None = None
    began: float = field(default_factory=time.monotonic)
    events: list[tuple[float, str]] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Record text that comes now."""
        if text:
            self.events.append((time.monotonic() - self.began, text))
            if self.mirror:
                self.mirror.write(text)
                self.mirror.flush()


@dataclass(slots=True)
class Run:
    """A command in a shell: when it was typed, when it last wrote, what it wrote, and its exit code once it has ended."""

    typed: float
    last: float
    output: str = ""
    longest_silence: float = 0.0
    code: int | None = None
    seconds: float = 0.0

    def hear(self, now: float) -> None:
        """Something was written, or it ended."""
        self.longest_silence = max(self.longest_silence, now - self.last)
        self.last, self.seconds = now, now - self.typed


class Shell:
    """An interactive bash in a pseudo terminal of its own."""

    def __init__(self, recording: Recording, folder: Path, env: Mapping[str, str]) -> None:
        self._recording = recording
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._run = Run(time.monotonic(), time.monotonic())
        marked = {"PS1": _PROMPT, "PS2": "", "HISTFILE": ""}
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=inner, stdout=inner, stderr=inner, cwd=folder, env={**env, **marked}, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inner)
        self._wait_for_prompt()

    @property
    def folder(self) -> Path:
        """Where it stands now."""
        return Path(f"/proc/{self._bash.pid}/cwd").readlink()

    @property
    def current(self) -> Run:
        """The command that was typed last."""
        return self._run

    def type(self, command: str) -> Run:
        """Type a command with its return key. `attend` follows it."""
        now = time.monotonic()
        self._run = Run(now, now)
        os.write(self._terminal, f"{command}\n".encode())
        return self._run

    def attend(self, seconds: float = _TICK_S) -> None:
        """Take in what it has written, waiting for up to `seconds`."""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # EIO: nothing has the terminal open any more
            data = b""
        if not data:
            self._run.code = -1 if self._run.code is None else self._run.code
            time.sleep(seconds)
            return
        self._take(self._decoder.decode(data))

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        os.write(self._terminal, b"\x03")

    def close(self) -> None:
        """End the shell, and what still runs in it."""
        if self._bash.poll() is None:
            os.killpg(self._bash.pid, signal.SIGHUP)
            try:
                self._bash.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._bash.pid, signal.SIGKILL)
                self._bash.wait()
        os.close(self._terminal)

    def _take(self, text: str) -> None:
        now, text = time.monotonic(), self._held + text
        # The beginning of a marker, whose end comes with the next text.
        cut = text.rfind("\x1b", max(0, len(text) - 16))
        partial = cut >= 0 and not _MARKER.match(text, cut) and _could_be_marker(text[cut:])
        self._held, text = (text[cut:], text[:cut]) if partial else ("", text)
        marker = _MARKER.search(text)
        seen = _MARKER.sub("", text)
        self._recording.add(seen)
        if self._run.code is None:
            self._run.hear(now)
            self._run.output += text[: marker.start()] if marker else text
            if marker:
                self._run.code = int(marker[1])

    def _wait_for_prompt(self) -> None:
        deadline = time.monotonic() + 30
        while self._run.code is None:
            if time.monotonic() > deadline:
                raise TimeoutError("bash shows no prompt")
            self.attend()


def _could_be_marker(text: str) -> bool:
    return _WHOLE.startswith(re.sub(r"(?<=;)\d+", "0", text))


def rendered(output: str) -> str:
    """What stands on the screen after `output`: returns, erased lines and movements up count, colours and folded lines do not."""
    lines, row, column = [""], 0, 0
    for piece in _PIECE.finditer(output):
        text, kind = piece[0], piece[2]
        if text == "\n":
            # The terminal's driver sends a return before each.
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif text == "\r":
            column = 0
        elif kind == "A":
            row = max(0, row - int(piece[1] or 1))
        elif kind == "K":
            lines[row] = "" if piece[1] == "2" else lines[row][:column]
        elif not text.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row] = line[:column] + text + line[column + len(text) :]
            column += len(text)
    return "\n".join(line.rstrip() for line in lines)
