"""What the verbs share: how they fail, find a model and write sizes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

    from server.settings.table import Settings

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

IGNORED_FLAGS: list[str] = []
"""A line about each flag of another server that was left out of the command line. `command_line` alone writes it, before the
verb runs."""

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


def find_model(flags: Mapping[str, Any], *, weights: bool = True) -> tuple[Settings, str, Path]:
    """The settings that `cohort serve` would have with these flags, the model's name and its directory; fetched from the hub
    where it is not here (without `weights`, no safetensors). Ends the process with one line for what is wrong."""
    import asyncio
    from dataclasses import replace

    from executors.contract import ConfigError
    from server import best_model, bootstrap, hub
    from server.loading import loading_display
    from server.model_files.prepared import model_directory
    from server.model_source import LocalModel
    from server.settings.load import SettingsError, load
    from server.system.logs import configure_own

    try:
        chosen, _ = load(flags, os.environ)
        source = best_model.choose(chosen).model or bootstrap.model_source(chosen)
        chosen = bootstrap.settings_for(chosen, source)
        if isinstance(source, LocalModel):
            with busy("reading the model's files"):
                return chosen, source.name, model_directory(source.path, package=source.package)
        configure_own("info")  # lines of a terminal that shows no bar go to stderr
        display = loading_display() if sys.stderr.isatty() else None
        name = source.label

        def report(done: int, total: int) -> None:
            if display is not None:
                display.report(f"downloading {name}", done, total)

        try:
            fetched = asyncio.run(hub.fetch(replace(source, weights=weights), report))
            return chosen, name, model_directory(fetched)
        finally:
            if display is not None:
                display.close()
    except (SettingsError, ConfigError, hub.HubError) as error:
        fail(str(error))


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
