"""Runs a compiler that ends with the process that wants its result: `python -I -S compile_guard.py PARENT COMMAND...`.

    parent ends, however it does -> PDEATHSIG: SIGTERM here -> SIGTERM, then SIGKILL, to the whole process group
    this process ends            -> PDEATHSIG: SIGKILL to the command

The driver g++ starts the compiler proper, the assembler and the linker, which the parent's PDEATHSIG would not reach. All of
them are in this process's group, which the parent makes. Exit code: the command's, 127 if it cannot be started, 128 + N after
signal N.

A program of its own that imports little: it starts in hundredths of a second.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
_GRACE_S = 0.5
"""Time for the compiler to delete its temporary files, in seconds."""
EXIT_NOT_STARTED = 127


def main() -> NoReturn:
    """Run the command and wait for its end, or for the parent's."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _end_with_parent(parent, signal.SIGTERM)
    own = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, own)
    while signal.sigwait(_SIGNALS) == signal.SIGCHLD:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
    os.killpg(0, signal.SIGTERM)  # blocked here
    signal.sigtimedwait({signal.SIGCHLD}, _GRACE_S)
    os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


def _become(command: list[str], parent: int) -> NoReturn:
    _end_with_parent(parent, signal.SIGKILL)
    os.closerange(
        3, 256
    )  # the parent's lock is for this group alone, not for a server that a compiler leaves behind
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"error: it could not be started: {error.strerror}\n".encode())
    os._exit(EXIT_NOT_STARTED)


def _end_with_parent(parent: int, number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the prctl
        os._exit(0)


if __name__ == "__main__":
    main()
