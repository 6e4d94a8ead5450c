"""`PlainLines`: log lines as text without colors. A server writes one for each request, and structlog takes 80 us for it."""

from __future__ import annotations

import re
from typing import Any

from structlog.dev import ConsoleRenderer
from structlog.typing import EventDict, WrappedLogger

_LEVEL_WIDTH = 9
_LEADING = ("timestamp", "level", "event")
_OF_CONSOLE = frozenset({"exc_info", "exception", "stack", "logger", "logger_name"})
"""Fields that structlog shows in ways of their own."""
_ODD = re.compile("[ \t=\r\n\"']")
"""Characters of a value that is shown in quotes."""


class PlainLines:
    """Renders what a `ConsoleRenderer` without colors would, and leaves to it the lines of exceptions."""

    def __init__(self, console: ConsoleRenderer) -> None:
        self._console = console

    def __call__(self, logger: WrappedLogger, name: str, fields: EventDict) -> str:
        """The line, without its end."""
        if not _OF_CONSOLE.isdisjoint(fields) or not all(type(fields.get(key)) is str for key in _LEADING):
            return self._console(logger, name, fields)
        timestamp, level, event = (fields.pop(key) for key in _LEADING)
        words = [f"{timestamp} [{level:<{_LEVEL_WIDTH}}]"]
        if event:
            words.append(event)
        words += [key + "=" + _shown(fields[key]) for key in sorted(fields)]
        return " ".join(words).rstrip(" ")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and not _ODD.search(value) else repr(value)
