"""Lines for a log of JSON objects from text without fields, which libraries, the interpreter and child processes write."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from typing import Any

import msgspec

_ERROR = re.compile(
    r"\s*(\[?E\d{4} |Traceback \(|\w*(Error|Exception)\b|Fatal\b|thread '.*' panicked|(cohort: )?error\b)|.*\bERROR\b"
)
_INFO = re.compile(r"\s*(\[?I\d{4} |INFO\b)")


def timestamp() -> str:
    """The time in UTC, as in all lines of the log."""
    now = datetime.datetime.now(datetime.UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def encode(fields: dict[str, Any]) -> str:
    """One line: JSON escapes line breaks and control characters."""
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except UnicodeEncodeError:  # half a surrogate pair, in the message of a library
        return json.dumps(fields, default=repr)


def as_objects(process: str | None, text: bytes) -> bytes:
    """Each line of `text` as an object on a line; b"" if all are blank. A line that is an object keeps its fields. `process`
    names the process that wrote it; None: the server's own."""
    objects = (_as_object(process, line) for line in text.split(b"\n"))
    return b"".join(line + b"\n" for line in objects if line)


def _as_object(process: str | None, line: bytes) -> bytes:
    origin = {} if process is None else {"process": process}
    # What a terminal would show of a line that was written over.
    visible = line.rstrip(b"\r").rpartition(b"\r")[2]
    if visible.startswith(b"{"):
        with contextlib.suppress(msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            fields = msgspec.json.decode(visible, type=dict[str, Any])
            return msgspec.json.encode(fields | origin) if origin else visible
    words = visible.decode("utf-8", "backslashreplace").rstrip()
    if not words:
        return b""
    return encode({"event": words, "level": _level(words), "timestamp": timestamp()} | origin).encode()


def _level(words: str) -> str:
    """Most of what is written past the log is a warning of a library."""
    if _ERROR.match(words):
        return "error"
    return "info" if _INFO.match(words) else "warning"
