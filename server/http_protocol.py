"""Uvicorn's HTTP/1.1 protocol with an end to patience: on what it takes in before a request is complete, and for how long.

Uvicorn relies on a proxy for both. Middleware comes too late: it runs once the headers are complete.
"""

from __future__ import annotations

import asyncio

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import http_error_response

log = structlog.get_logger("server")

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers, or whatever else comes without being body: chunk extensions, trailers."""
HEAD_TIMEOUT = 30.0
"""Seconds for request line and headers."""
BODY_TIMEOUT = 60.0
"""Seconds without a byte of the body."""
_PHRASES = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}
_LINGER = 1.0
"""Seconds to go on reading (and forgetting) after a refusal: closing at once would reset the connection, and the client
might never see the answer."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `_overhead` counts bytes since the last ones that were good for something."""

    _receiving = False
    _in_head = False
    _refused = False
    _overhead = 0
    _progress = 0.0
    _timer: asyncio.TimerHandle | None = None
    _idle_timeout: float | None = None
    """Seconds; None for Uvicorn's own time between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection on which nothing ever comes is idle like one between requests."""
        super().connection_made(transport)
        self._wait_for_next()

    def connection_lost(self, exc: Exception | None) -> None:
        """Timers hold the protocol alive: end them."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is not body. The piece in which a request or a chunk begins is not counted: it has an end itself,
        and may hold the end of something else."""
        if self._refused:
            return
        self._overhead += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._receiving and self._overhead > MAX_HEAD_BYTES:
            self._refuse(431, "The request's headers are too large.")
        elif not self._receiving and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_next()  # blank lines between requests are none

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. Called by Uvicorn, whose own answer is plain text."""
        self._refuse(400, "The request is not valid HTTP.")

    # -- callbacks of the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request line has begun."""
        super().on_message_begin()
        self._receiving = self._in_head = True
        self._moved()
        self._start_timer(HEAD_TIMEOUT)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here too; nobody reads them, and nothing limits how many there are."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body is next."""
        self._in_head = False
        self._moved()
        self._start_timer(BODY_TIMEOUT)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._moved()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is here."""
        self._receiving = False
        self._stop_timer()
        super().on_message_complete()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        self._overhead = 0
        self._progress = self.loop.time()

    def _wait_for_next(self) -> None:
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self._idle_timeout or self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close, unless there was progress or it is we who do not read."""
        limit = HEAD_TIMEOUT if self._in_head else BODY_TIMEOUT
        if self.flow.read_paused or (self._in_head and self._answering):
            self._progress = self.loop.time()
        if (left := self._progress + limit - self.loop.time()) > 0:
            self._start_timer(left)
        else:
            self._refuse(408, "The request did not arrive in time.")

    # -- refusing ------------------------------------------------------------------------------------------------------

    @property
    def _answering(self) -> bool:
        """True while a response is going out: that of this request, or of the one before it."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (self._in_head or cycle.response_started)

    def _refuse(self, status: int, message: str) -> None:
        """Say so, unless that would break into another response; then close."""
        self._refused = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        log.info("a request was refused before it was complete", status=status)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # its handler writes nothing more, and hears of the end
            self.cycle.message_event.set()
            if self._answering:
                self.transport.close()
                return
        response = http_error_response(status, message, {"connection": "close"})
        head = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        line = b"HTTP/1.1 %d %s\r\n" % (status, _PHRASES[status])
        self.transport.write(line + head + b"\r\n" + bytes(response.body))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER, self.transport.close)
