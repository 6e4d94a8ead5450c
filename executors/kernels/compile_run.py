"""Runs compilers side by side, each in a process group of its own that ends with this process: see `compile_guard`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from executors.kernels.compile_lock import Workspace

_GUARD = Path(__file__).with_name("compile_guard.py")
_POLL_S = 0.01


class RunFailed(Exception):
    """A command could not be started, failed or took too long; the text says which and why."""


class RunTimedOut(RunFailed):
    """The time for all commands is over."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """`seconds` from now on, which all commands of a compilation share. `what`: what they are for, said when they are over."""

    seconds: float
    what: str
    end: float

    @classmethod
    def of(cls, seconds: float, what: str) -> TimeLimit:
        """A limit that begins now."""
        return cls(seconds, what, time.monotonic() + seconds)


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, and the `name` of the part that it makes: failures say it if there is one."""

    words: Sequence[str]
    name: str = ""


def run(
    commands: Sequence[Command], limit: TimeLimit, at_once: int = 1, work: Workspace | None = None
) -> list[str]:
    """Run the commands, `at_once` of them at a time, and return what each wrote to its output. `work` keeps their temporary
    files, and they keep its lock.

    The first failure ends all others. None goes on when this returns or raises. Raises RunFailed.
    """
    waiting, running, outputs = deque(enumerate(commands)), dict[int, _Running](), dict[int, str]()
    with contextlib.ExitStack() as ends:
        while waiting or running:
            while waiting and len(running) < at_once:
                index, command = waiting.popleft()
                running[index] = ends.enter_context(_started(command, work))
            ended = [index for index, one in running.items() if one.process.poll() is not None]
            for index in ended:
                outputs[index] = running.pop(index).output()
            if running and not ended:
                if time.monotonic() > limit.end:
                    raise RunTimedOut(
                        f"{commands[0].words[0]} timed out: {limit.what} took more than {limit.seconds:g} s"
                    )
                time.sleep(_POLL_S)
    return [outputs[index] for index in range(len(commands))]


@dataclass(frozen=True, slots=True)
class _Running:
    command: Command
    process: subprocess.Popen[bytes]
    out: BinaryIO
    err: BinaryIO

    def output(self) -> str:
        """What it wrote, once it has ended. Raises RunFailed."""
        code = self.process.returncode
        if code:
            part = f"{self.command.name}: " if self.command.name else ""
            raise RunFailed(f"{self.command.words[0]} failed: {part}{_reason(_text(self.err), code)}")
        return _text(self.out)


@contextlib.contextmanager
def _started(command: Command, work: Workspace | None) -> Iterator[_Running]:
    guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid())]
    lock = () if work is None or work.lock is None else (work.lock,)
    # No pipes: what the compiler starts may have their other ends beyond its own end.
    with _memory_file() as out, _memory_file() as err:
        try:
            process = subprocess.Popen(
                [*guard, *command.words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=None if work is None else {**os.environ, "TMPDIR": str(work.folder)},
                pass_fds=lock,
                process_group=0,
            )
        except OSError as error:
            raise RunFailed(f"{command.words[0]} could not be started: {error}") from error
        try:
            yield _Running(command, process, out, err)
        finally:
            if process.returncode is None or process.returncode < 0:
                # Also the compiler proper, which the driver started: left alone it would go on.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("compiler"), "w+b")


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _reason(errors: str, code: int) -> str:
    if "Killed signal" in errors or code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "it was killed, most likely for want of memory: give more, or stop what else needs it"
    lines = errors.strip().splitlines()
    if not lines:
        return f"no message, exit code {code}"
    return next((line for line in lines if "error" in line), lines[0])[:200]
