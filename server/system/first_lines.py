"""What a server says before it has a log: its imports take a second, and many more from a cold disk.

start -> nothing for `_PATIENCE` seconds -> a line, and another each `_INTERVAL` seconds -> stop
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from datetime import UTC, datetime

_PATIENCE = 1.0
_INTERVAL = 1.6
_STDERR = 2

_over: threading.Event | None = None
"""Set by `stop`; None: nothing was started. One writer, of both: the main thread."""
_json = False


def start() -> None:
    """Write lines from now on until `stop`."""
    global _over
    _over = threading.Event()
    threading.Thread(target=_run, args=(_over,), name="first lines", daemon=True).start()


def in_format(log_format: str | None) -> None:
    """Write the lines to come as a log of this format has them."""
    global _json
    _json = log_format == "json"


def stop() -> None:
    """Write no more."""
    if _over is not None:
        _over.set()


def _run(over: threading.Event) -> None:
    began = time.monotonic()
    wait = _PATIENCE
    while not over.wait(wait):
        wait = _INTERVAL
        with contextlib.suppress(OSError):  # closed, or a full disk
            os.write(_STDERR, _line(f"starting, {time.monotonic() - began:.0f} s so far").encode())


def _line(event: str) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if _json:
        return json.dumps({"event": event, "level": "info", "timestamp": when}) + "\n"
    return f"{when} [info     ] {event}\n"
