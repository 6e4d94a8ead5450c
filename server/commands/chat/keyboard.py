"""Keys that are typed while an answer comes: they wait, unseen, and the next prompt reads them.

The terminal shows a key as soon as it is typed, in the middle of the answer. `typed_ahead` turns that off. Nothing reads the keys
meanwhile: the terminal keeps them (4,095 bytes on Linux), and readline takes them as if they were typed at its prompt. Keys that
delete and move work, and a line that ends with Enter is sent, as in a shell.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


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


def _quiet(before: list[Any]) -> list[Any]:
    """The attributes of a terminal that shows no keys. Without lines, a key is no line's that is edited before the prompt; NOFLSH
    keeps the keys before a Ctrl-C."""
    import termios

    quiet = [*before[:6], [*before[6]]]
    quiet[3] = (quiet[3] & ~(termios.ECHO | termios.ICANON)) | termios.NOFLSH
    quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
    return quiet
