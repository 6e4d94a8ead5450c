"""The stderr of a serving process: a queue in front of it, and pipes for the processes that it starts.

    structlog, logging ------------------> put ------------------+
    sys.stderr (print, tracebacks) ------> LogStream ------------+--> LogWriter (queue, thread) --> stderr as it was inherited
    descriptor 2 (native libraries) --+                          |
    stderr of a child process --------+--> LogDrain (thread) ----+

Nothing that writes waits for what reads. With `json` every line is an object: text without fields gets some on its way.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from server.system import log_lines
from server.system.log_drain import LogDrain
from server.system.log_writer import MAX_BYTES, LogWriter

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Form = Literal["pretty", "json"]

_FLUSH_S = 2.0
"""Time for the last lines to be read, in seconds."""
_SETTLE_S = 0.5
"""Time for the last words of child processes to arrive, in seconds."""
_STDERR = 2

_output: LogOutput | None = None
"""The process's own, from `take_over` on."""


def of_process() -> LogOutput | None:
    """The output of this process; None if its stderr is as it was inherited."""
    return _output


def take_over(form: Form) -> LogOutput:
    """Put the queue in front of this process's stderr, once, for the rest of its life."""
    global _output
    if _output is None:
        _output = LogOutput(form)
        _output.replace_stderr()
    return _output


def dropped() -> int:
    """Number of log lines of this process and its children that were not written."""
    return 0 if _output is None else _output.dropped


@contextlib.contextmanager
def pipe_for(process: str) -> Iterator[int | None]:
    """The descriptor for the stderr of a child that is started inside; None: the child inherits this process's stderr."""
    if _output is None:
        yield None
        return
    with _output.pipe(process) as descriptor:
        yield descriptor


class LogOutput:
    """See the module. Any thread may use it."""

    def __init__(self, form: Form, max_bytes: int = MAX_BYTES) -> None:
        self.form = form
        try:
            self._inherited = os.dup(_STDERR)
        except OSError:  # closed
            self._inherited = os.open(os.devnull, os.O_WRONLY)
        self.is_terminal = os.isatty(self._inherited)
        self._writer = LogWriter(self._inherited, self._notice, max_bytes)
        self._drain = LogDrain(self._emit)
        self.before_lines = ""
        """Written before the text of each `put`: clears what a progress bar has on the terminal's line."""

    @property
    def dropped(self) -> int:
        """Number of lines that were not written."""
        return self._writer.dropped

    def put(self, line: str) -> None:
        """Queue a line of the log as it is to be written, with its line break."""
        self._writer.put((self.before_lines + line).encode("utf-8", "backslashreplace"))

    def put_text(self, text: bytes, process: str | None = None) -> None:
        """Queue text that is no line of the log: as it is, or as objects."""
        text = text if self.form == "pretty" else log_lines.as_objects(process, text)
        if text:
            self._writer.put(self.before_lines.encode() + text)

    @property
    def json(self) -> bool:
        """Whether lines are objects."""
        return self.form == "json"

    @contextlib.contextmanager
    def pipe(self, process: str) -> Iterator[int]:
        """The descriptor for the stderr of a child process that is started inside, and that `process` names in the log."""
        descriptor = self._drain.open(process)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def replace_stderr(self) -> None:
        """Make this the stderr of the process, for Python and for native code."""
        own = self._drain.open("")
        os.dup2(own, _STDERR)
        os.close(own)
        if self.form == "pretty" or faulthandler.is_enabled():
            # At a crash the drain's thread is gone, and what is in the pipe is lost.
            faulthandler.enable(file=self._inherited)
        sys.stderr = LogStream(self)
        logging.captureWarnings(True)
        if self.form == "json":
            sys.excepthook = _log_exception
            threading.excepthook = _log_thread_exception
        atexit.register(self.close)

    def flush(self, seconds: float = _FLUSH_S) -> None:
        """Wait until all lines are written, for a bounded time."""
        self._drain.settle(_SETTLE_S)
        self._writer.flush(seconds)

    def close(self) -> None:
        """Flush at the end of the process."""
        if isinstance(sys.stderr, LogStream):
            sys.stderr.end_line()
        self.flush()

    def _emit(self, process: str, lines: bytes) -> None:
        self.put_text(lines, process or None)

    def _notice(self, count: int) -> bytes:
        event = f"{count} log lines were dropped: stderr was not read, or could not be written"
        if self.form == "json":
            fields = {
                "event": event,
                "dropped": count,
                "level": "warning",
                "timestamp": log_lines.timestamp(),
            }
            return log_lines.encode(fields).encode() + b"\n"
        return f"{log_lines.timestamp()} [warning  ] {event}\n".encode()


class LogStream(io.TextIOWrapper):
    """A text stream, for `sys.stderr`, that ends in a `LogOutput`."""

    def __init__(self, output: LogOutput) -> None:
        self._raw = _Raw(output)
        super().__init__(
            self._raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True
        )

    def end_line(self) -> None:
        """Pass on what the calling thread wrote of a line without its end."""
        self._raw.end_line()


class _Raw(io.RawIOBase):
    """Objects are made of whole lines, so the beginnings of lines are kept, for each thread its own."""

    name = "<stderr>"

    def __init__(self, output: LogOutput) -> None:
        self._output = output
        self._here = threading.local()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._output.is_terminal

    def fileno(self) -> int:
        """Of native code's stderr, which a child process may be given."""
        return _STDERR

    def write(self, data: ReadableBuffer, /) -> int:
        text = bytes(data)
        if self._output.form == "pretty":
            self._output.put_text(text)
            return len(text)
        whole, newline, rest = (getattr(self._here, "partial", b"") + text).rpartition(b"\n")
        self._here.partial = rest
        if newline:
            self._output.put_text(whole + newline)
        return len(text)

    def end_line(self) -> None:
        rest: bytes = getattr(self._here, "partial", b"")
        self._here.partial = b""
        if rest:
            self._output.put_text(rest + b"\n")


def _log_exception(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger("cohort").critical("an unexpected error", exc_info=(kind, error, traceback))


def _log_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and args.exc_type is not SystemExit:
        name = args.thread.name if args.thread is not None else "?"
        info = (args.exc_type, args.exc_value, args.exc_traceback)
        logging.getLogger("cohort").error("an unexpected error in thread %s", name, exc_info=info)
