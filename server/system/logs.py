"""Log lines on stderr: the server's by structlog, those of libraries and of the engine (standard `logging`) through the same
handler. As text for people (pretty), or a JSON object a line (json)."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Literal, TextIO, cast

import structlog

from server.system import log_lines, log_output
from server.system.plain_lines import PlainLines

Format = Literal["pretty", "json"]


class _Stderr:
    """Where the server's own lines go: to the process's `LogOutput`, or else to stderr, where failed writes are dropped, so that
    a full disk or a closed terminal fails no request."""

    def write(self, text: str) -> None:
        """Write the text, or drop it if that fails."""
        if (output := log_output.of_process()) is not None:
            output.put(text)
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush, and ignore a failure."""
        if log_output.of_process() is None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()


def configure(level: str = "info", form: Format = "pretty", *, colors: bool | None = None) -> None:
    """Set up logging for the process. `colors`: whether a terminal shows the lines; default: whether stderr is one."""
    number = _number(level)
    configure_own(level, form, colors=colors)
    handler = logging.StreamHandler(cast(TextIO, _Stderr()))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_steps(),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(form, colors),
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for noisy in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def configure_own(level: str, form: Format = "pretty", *, colors: bool | None = None) -> None:
    """Set up the server's own lines only, for a process whose caller configures the standard `logging`."""
    structlog.configure(
        processors=[*_steps(), *_renderers(form, colors)],
        wrapper_class=structlog.make_filtering_bound_logger(_number(level)),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Stderr())),  # one write a line
        cache_logger_on_first_use=True,
    )


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _steps() -> list[Any]:
    return [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%S.%fZ", utc=True),
    ]


def _renderers(form: Format, colors: bool | None) -> list[Any]:
    """The last structlog processors. Tracebacks are plain: rich ones, and those in a structure, show local variables, including
    prompts and keys."""
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=_json)]
    colors = sys.stderr.isatty() if colors is None else colors
    console = structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )
    return [console if colors else PlainLines(console)]


def _json(fields: dict[str, Any], **_: Any) -> str:
    return log_lines.encode(fields)


def is_terminal(log_format: str) -> bool:
    """Whether a person reads stderr: a terminal, unless the log is JSON, which is written to be collected."""
    return log_format != "json" and sys.stderr.isatty()
