"""What signals mean to a serving process, and to the API workers beside it.

    SIGTERM, SIGINT     the first begins a drain, the second ends at once
    SIGHUP              begins a drain and never ends one early; stays ignored where it is ignored at the start (`nohup`)
    SIGUSR1, SIGUSR2    ignored, with a line in the log: by default they would end the process
    SIGQUIT             left to the system: the process ends at once

A terminal that closes sends SIGHUP, often twice within milliseconds: once from the shell to its jobs, once from the kernel when
the shell ends. systemd with `SendSIGHUP=` sends it right after SIGTERM. So it is never the second signal that means "at once".
"""

from __future__ import annotations

import asyncio
import signal

import structlog

log = structlog.get_logger("server")

_STOP = (signal.SIGTERM, signal.SIGINT)
_MEANINGLESS = (signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Counts signals. `first` requests a graceful end, `second` an immediate end."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def install(self) -> None:
        """Take over the signals of this process."""
        loop = asyncio.get_running_loop()
        for number in _STOP:
            loop.add_signal_handler(number, self.arrived)
        if not ignores_hangup():
            loop.add_signal_handler(signal.SIGHUP, self.hung_up)
        for number in _MEANINGLESS:
            loop.add_signal_handler(number, _ignore, number)

    def arrived(self) -> None:
        """Count one more signal."""
        (self.second if self.first.is_set() else self.first).set()

    def hung_up(self) -> None:
        """Begin a drain, unless one has begun."""
        if not self.first.is_set():
            log.info(
                "SIGHUP: the terminal is closed, or the signal was sent; the server ends as after SIGTERM"
            )
            self.first.set()


def ignores_hangup() -> bool:
    """True where this process was started to outlive its terminal, as by `nohup`."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def leave_to_parent() -> None:
    """In a child that serves until its parent says stop: ignore what a whole process group, terminal or container is sent."""
    for number in (*_STOP, signal.SIGHUP, *_MEANINGLESS):
        signal.signal(number, signal.SIG_IGN)


def _ignore(number: signal.Signals) -> None:
    log.info(f"{number.name} has no meaning to this server: ignored")
