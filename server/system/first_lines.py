"""What a server says before it has a log: its imports take a second, and many more from a cold disk.

start -> nothing for `_PATIENCE` seconds -> a line, and another each `_INTERVAL` seconds -> stop
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

_PATIENCE = 1.6
_INTERVAL = 1.6
_STDERR = 2

_over: threading.Event | None = None
"""Set by `stop`; None: nothing was started. One writer, of all three: the main thread."""
_json = False
_enabled = True
_LEVELS = ("debug", "info")
"""Levels of a log that has such lines."""


def start(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write lines from now on until `stop`, unless these words of a command line or the environment ask for a log without them.

    A quick look, before anything is imported: `settle` follows once the settings are read."""
    global _over
    settle(
        _value(words, environment, "--log-format", "COHORT_LOG_FORMAT"),
        _value(words, environment, "--log-level", "COHORT_LOG_LEVEL"),
    )
    _over = threading.Event()
    threading.Thread(target=_run, args=(_over,), name="first lines", daemon=True).start()


def settle(log_format: str | None, log_level: str | None) -> None:
    """Write the lines to come as a log of this format and level has them."""
    global _json, _enabled
    _json, _enabled = log_format == "json", (log_level or "info").lower() in _LEVELS


def _value(words: Sequence[str], environment: Mapping[str, str], flag: str, variable: str) -> str | None:
    value_found = environment.get(variable)
    for word, following in pairwise([*words, ""]):
        name, has_value, value = word.partition("=")
        if name == flag:  # the last counts
            value_found = value if has_value else following
    return value_found


def stop() -> None:
    """Write no more."""
    if _over is not None:
        _over.set()


def _run(over: threading.Event) -> None:
    began = time.monotonic()
    wait = _PATIENCE
    while not over.wait(wait):
        wait = _INTERVAL
        if not _enabled:
            continue
        with contextlib.suppress(OSError):  # closed, or a full disk
            os.write(_STDERR, _line(f"starting, {time.monotonic() - began:.0f} s so far").encode())


def _line(event: str) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if _json:
        return json.dumps({"event": event, "level": "info", "timestamp": when}) + "\n"
    return f"{when} [info     ] {event}\n"
