"""Durations as Go writes them, which Ollama's `keep_alive` takes: https://pkg.go.dev/time#ParseDuration."""

from __future__ import annotations

import math
import re

from engine.errors import InvalidRequest

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", re.ASCII)
_LONGEST = 2.0**31
"""Seconds; more is for ever. Times that far ahead cannot be written, and `GET /api/ps` writes them."""
_WHOLE = re.compile(rf"[+-]?(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?", re.ASCII)


def seconds_of(value: float | str) -> float:
    """Seconds of a number or of a duration such as `1h30m`; infinity for less than 0 or more
    than `_LONGEST`. Raises InvalidRequest."""
    text = str(value).strip()
    if _NUMBER.fullmatch(text) or not isinstance(value, str):
        seconds = float(value)
    elif _WHOLE.fullmatch(text):
        total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        seconds = -total if text.startswith("-") else total
    else:
        message = "Invalid value for 'keep_alive': it should be a number of seconds, or a duration such as 5m or 1h30m."
        raise InvalidRequest(message, "keep_alive", "invalid_value")
    return seconds if 0 <= seconds <= _LONGEST else math.inf
