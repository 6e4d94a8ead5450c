"""Log lines on stderr: the server's by structlog, those of libraries and of the engine (standard `logging`) through the same
handler. As text for people (pretty), or a JSON object a line (json)."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import Any, Literal, TextIO, cast

import msgspec
import structlog

Format = Literal["pretty", "json"]


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


def configure(level: str = "info", form: Format = "pretty") -> None:
    """Set up logging for the process."""
    number = _number(level)
    configure_own(level, form)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_steps(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(form)],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def configure_own(level: str, form: Format = "pretty") -> None:
    """Set up the server's own lines only, for a process whose caller configures the standard `logging`."""
    structlog.configure(
        processors=[*_steps(), *_renderers(form)],
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


def _renderers(form: Format) -> list[Any]:
    """The last structlog processors. Tracebacks are plain: rich ones, and those in a structure, show local variables, including
    prompts and keys."""
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    ]


def _json(fields: dict[str, Any], **_: Any) -> str:
    """One line: JSON escapes line breaks and control characters."""
    try:
        return msgspec.json.encode(fields, enc_hook=repr).decode()
    except UnicodeEncodeError:  # half a surrogate pair, in the message of a library
        return json.dumps(fields, default=repr)


def is_terminal(log_format: str) -> bool:
    """Whether a person reads stderr: a terminal, unless the log is JSON, which is written to be collected."""
    return log_format != "json" and sys.stderr.isatty()
