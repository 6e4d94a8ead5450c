"""Keys that are typed while an answer comes: they wait, unseen, and the next prompt reads them.

The terminal shows a key as soon as it is typed, in the middle of the answer. `typed_ahead` turns that off. Nothing reads the keys
meanwhile: the terminal keeps them (4,095 bytes on Linux), and readline takes them as if they were typed at its prompt. Keys that
delete and move work, and a line that ends with Enter is sent, as in a shell.

A signal that ends the process leaves no `finally` to run: `restore_at_signals` gives the terminal back before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

_STDERR = 2
_REPEAT_S = 0.05
_SHOW_CURSOR = b"\x1b[?25h"


@contextlib.contextmanager
def typed_ahead() -> Iterator[None]:
    """Keys are neither shown nor read within the block. Ctrl-C is a KeyboardInterrupt still, and keys before it stay.

    No effect unless stdin and stdout are terminals: only there is it readline that reads the next line."""
    try:
        import readline  # noqa: F401  # without it, the line is read by the terminal itself
        import termios
    except ImportError:
        yield
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    descriptor = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(descriptor)
        termios.tcsetattr(descriptor, termios.TCSANOW, _quiet(before))
    except termios.error:  # a terminal that is closed
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


def restore_at_signals() -> None:
    """From here on the terminal of stdin gets its present modes back, and a cursor, when a signal ends this process. What the
    signal did before follows.

    No effect without a terminal, and on one that another job has by then: its modes are that job's."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, termios.error):
        return

    def restore(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError, termios.error):  # the terminal is closed, as with SIGHUP
            if os.tcgetpgrp(descriptor) == os.getpgrp():
                termios.tcsetattr(descriptor, termios.TCSANOW, before)
                if os.isatty(_STDERR) and os.environ.get("TERM", "dumb") != "dumb":
                    os.write(_STDERR, _SHOW_CURSOR)
        former = handlers[signal.Signals(number)]
        if callable(former):
            former(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    ending = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    handlers = {one: former for one in ending if (former := signal.getsignal(one)) is not signal.SIG_IGN}
    for number in handlers:
        signal.signal(number, restore)
    _repeat(frozenset(handlers))


def _repeat(numbers: frozenset[int]) -> None:
    """Send these signals to the main thread again until it has handled them: one that comes right before it waits for a key
    would be handled only after the key."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    main = threading.main_thread().ident
    assert main is not None

    def repeat() -> None:
        while received := os.read(reader, 1):
            if received[0] in numbers:
                time.sleep(_REPEAT_S)
                signal.pthread_kill(main, received[0])  # which comes here as well

    threading.Thread(target=repeat, name="repeated signals", daemon=True).start()


def _quiet(before: list[Any]) -> list[Any]:
    """The attributes of a terminal that shows no keys. Without lines, a key is no line's that is edited before the prompt; NOFLSH
    keeps the keys before a Ctrl-C."""
    import termios

    quiet = [*before[:6], [*before[6]]]
    quiet[3] = (quiet[3] & ~(termios.ECHO | termios.ICANON)) | termios.NOFLSH
    quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
    return quiet
