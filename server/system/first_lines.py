"""What a server says before it has a log: its imports take a second, and many more from a cold disk.

start -> nothing for `_PATIENCE` seconds -> a line, and another each `_INTERVAL` seconds -> stop
"""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import UTC, datetime

_PATIENCE = 1.2
_INTERVAL = 1.6
_STDERR = 2

_over: threading.Event | None = None
"""Set by `stop`; None: nothing was started. One writer: the main thread."""


def start(log_format: str) -> None:
    """Write lines of this log's format from now on until `stop`."""
    global _over
    _over = threading.Event()
    threading.Thread(target=_run, args=(_over, log_format), name="first lines", daemon=True).start()


def stop() -> None:
    """Write no more."""
    if _over is not None:
        _over.set()


def _run(over: threading.Event, log_format: str) -> None:
    began = time.monotonic()
    wait = _PATIENCE
    while not over.wait(wait):
        wait = _INTERVAL
        line = _line(f"starting: importing the server, {time.monotonic() - began:.0f} s so far", log_format)
        try:
            os.write(_STDERR, line.encode())
        except OSError:  # closed, or a full disk
            return


def _line(event: str, log_format: str) -> str:
    when = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if log_format == "json":
        return json.dumps({"event": event, "level": "info", "timestamp": when}) + "\n"
    return f"{when} [info     ] {event}\n"
