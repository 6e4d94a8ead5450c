"""What the verbs share: how they fail, print and write sizes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

IGNORED_FLAGS: list[str] = []
"""A line about each flag of another server that was left out of the command line. `command_line` alone writes it, before the
verb runs."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What could move the cursor or change the terminal; models and servers may be made to say anything."""

_BUSY_S = 1.6
"""Seconds between lines on a terminal whose cursor cannot move."""

_json_errors = False
"""Whether `fail` writes an object. One writer: `set_log_format`."""


def set_log_format(form: str | None) -> None:
    """Let `fail` write what a log of this form has; None and unknown ones: text."""
    global _json_errors
    _json_errors = form == "json"


def fail(message: str, code: int = 2) -> NoReturn:
    """One line on stderr; exit code 2 is for what a person can put right."""
    line = f"cohort: error: {' '.join(message.split())}\n"
    if _json_errors:
        from server.system.log_lines import as_objects

        line = as_objects(None, line.encode("utf-8", "backslashreplace")).decode()
    with contextlib.suppress(OSError):  # a full disk: supervisors go by the code
        print(line, end="", file=sys.stderr)
    sys.exit(code)


def lost_output(error: OSError) -> NoReturn:
    """Exit code 1 for a stdout that takes no more, with one line, unless whoever read it has had enough."""
    # What is still in the buffer would fail again at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        sys.exit(1)
    fail(f"the output cannot be written: {error.strerror or error}", 1)


def take_interrupts() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt, no longer the end at once."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def console(*, stderr: bool = False) -> Console:
    """A rich console that leaves text as it is: no emoji codes, no colours guessed from words."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, emoji=False, markup=False)


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """Show on a terminal that something is done inside: a spinner, or lines with the seconds where the cursor cannot move."""
    if not sys.stderr.isatty():
        yield
        return
    screen = console(stderr=True)
    if not screen.is_dumb_terminal:
        with screen.status(text):
            yield
        return
    from threading import Event, Thread

    over, began = Event(), time.monotonic()

    def tell() -> None:
        print(text, file=sys.stderr, flush=True)
        while not over.wait(_BUSY_S):
            print(f"{text}, {time.monotonic() - began:.0f} s so far", file=sys.stderr, flush=True)

    Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def print_json(value: Any) -> None:
    """For programs. Numbers that JSON does not know do not occur in it."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def as_bytes(text: str | None, name: str) -> int | None:
    """4GiB, 512MiB, 1000000, as every setting of the server reads them. Ends the process for anything else."""
    if text is None:
        return None
    from server.settings.kinds import read_size
    from server.settings.readers import Unfit

    try:
        return read_size(text)
    except Unfit as fault:
        fail(f"{name}: {fault} (not {text[:100]!r})")


def size(number: int) -> str:
    """Bytes for a person: 1.50 GiB, 768 KiB."""
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    if unit == "bytes":
        return f"{number:,} bytes"
    return (
        f"{value:.2f} {unit}"
        if value < 10
        else f"{value:.1f} {unit}"
        if value < 100
        else f"{value:,.0f} {unit}"
    )


def count(number: int) -> str:
    """Parameters for a person: 2.64M, 596M, 8.03B."""
    for unit, step in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= step:
            return f"{number / step:.3g}{unit}"
    return str(number)
