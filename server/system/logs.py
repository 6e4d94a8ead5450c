"""Log lines on stderr: the server's by structlog, those of libraries and of the engine (standard `logging`) through the same
handler."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog


class _Stderr:
    """Stderr that drops failed writes: a full disk or a closed terminal fails no request."""

    def write(self, text: str) -> None:
        """Write the text, or drop it if that fails."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, and ignore a failure."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()


def configure(level: str = "info") -> None:
    """Set up logging for the process."""
    number = _number(level)
    configure_own(level)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_steps(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _renderer()],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def configure_own(level: str) -> None:
    """Set up the server's own lines only, for a process whose caller configures the standard `logging`."""
    structlog.configure(
        processors=[*_steps(), _renderer()],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _steps() -> list[Any]:
    return [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True),
    ]


def _renderer() -> structlog.dev.ConsoleRenderer:
    """The structlog processors. Tracebacks are plain: rich ones print local variables, including prompts and keys."""
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
