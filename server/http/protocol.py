"""Uvicorn's HTTP/1.1 protocol with limits: on the bytes and the time of an incomplete request, on unread bytes of an answer,
and on the number of connections.

Uvicorn relies on a proxy for all these limits. Middleware comes too late: it runs once the headers are complete.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, ClassVar

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.http import upgrade
from server.http.body_budget import BodyBudget, Flow
from server.http.call import call_of, new_request_id
from server.http.endpoints import Answered, path_of
from server.http.errors import http_error_response
from server.http.form import Forms
from server.http.head import fault_of, take_target
from server.http.http_1_0 import unchunked
from server.http.listener import SPARE_CONNECTIONS
from server.http.middleware import PROBES
from server.http.unacknowledged import unread_bytes
from server.settings.table import DEFAULTS

log = structlog.get_logger("server")

MAX_HEAD_BYTES = 64 * 1024
"""Limit in bytes on the request line and headers, and on other bytes outside the body: chunk extensions, trailers."""
HEAD_TIMEOUT = 30.0
"""Time limit for the request line and headers, in seconds."""
BODY_WINDOW = 10.0
"""Interval of the check of a body's progress, in seconds: while the server reads, it must average `BODY_RATE` bytes a second."""
BODY_RATE = 1024
"""Lowest rate of a body in bytes per second. A slower connection is broken, or an attempt to hold memory."""
SPARE_TIMEOUT = 3.0
"""Time that a connection above the limit has for its request, in seconds."""
IDLE_AT_LEAST = 1.0
"""Idle time after which a connection may be closed for a new one, in seconds; before, its request may be on the wire."""
HIGH_WATER = 64 * 1024
"""Unread bytes of an answer beyond which the server waits for the client to read."""
MAX_PIPELINED = 16
"""Number of pipelined requests that may wait behind the one being answered. Browsers and SDKs do not pipeline."""
_RETRY_AFTER = "5"
"""Value of Retry-After in seconds for a connection that is refused for lack of room."""
_LOOKS = 8
"""Number of checks, within the write time-out, whether a client reads."""
_PHRASES = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}
_LINGER = 1.0
"""Time for which the server reads and discards input after a refusal, in seconds. Closing at once would reset the connection,
and the client might never see the answer."""


def bounded(
    write_timeout: float,
    max_connections: int,
    answered: Answered | None = None,
    forms: Forms | None = None,
) -> type[BoundedHttpProtocol]:
    """The protocol with these limits, for Uvicorn, which creates one instance per connection. `answered` counts the answers that
    are given before the application sees a request, and `forms` are those of these answers."""
    limits = {
        "answered": staticmethod(answered or _uncounted),
        "write_timeout": write_timeout,
        "max_connections": max_connections,
        "forms": forms or Forms(),
        "budget": BodyBudget(),
        "idle": {},
        "silent": {},
    }
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), limits)


def _uncounted(path: str | None, status: int) -> None:
    """Counts nothing."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `_overhead` counts bytes since the last useful ones."""

    write_timeout = DEFAULTS.write_timeout
    """Time within which a client with much to read must take some of it, in seconds."""
    max_connections = 8192
    answered: Answered = staticmethod(_uncounted)
    forms = Forms()
    """Forms of errors by the path."""
    budget = BodyBudget()
    """Budget for bodies, shared by all connections, as is `idle`."""
    idle: ClassVar[dict[BoundedHttpProtocol, float]] = {}
    """Idle connections and the time since when each is idle, the longest first."""
    silent: ClassVar[dict[BoundedHttpProtocol, None]] = {}
    """Connections above the limit that have not sent a request yet, the oldest first."""
    flow: Flow
    _spare = False
    """Whether the connection is above the limit, and open for a probe only."""
    _owed: bytes | None = None
    """Refusal that waits for the answers to earlier requests."""
    _window_bytes = 0
    _ahead = 0
    """Bytes of bodies of requests behind the one being answered."""
    _active: RequestResponseCycle | None = None
    """Request that is being answered; `cycle` is the latest request."""
    _write_timer: asyncio.TimerHandle | None = None
    _unread = 0
    _read_at = 0.0
    """Time when the number of unread bytes last fell, to `_unread`."""
    _receiving = False
    _in_head = False
    _target_known = False
    """Whether the request line is complete."""
    _refused = False
    _overhead = 0
    _progress = 0.0
    _timer: asyncio.TimerHandle | None = None
    _idle_timeout: float | None = None
    """Start the timer, for so many seconds; None for Uvicorn's own time between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start as idle: a new connection without bytes is like one between requests."""
        super().connection_made(transport)
        self.flow = Flow(transport)
        transport.set_write_buffer_limits(HIGH_WATER)  # TLS has half a megabyte by default
        self._wait_for_next()
        if len(self.connections) > self.max_connections and not self._close_idle():
            self._spare = True
            self.idle.pop(self, None)
            self.silent[self] = None
            self._start_timer(SPARE_TIMEOUT)
            if len(self.connections) > self.max_connections + SPARE_CONNECTIONS:
                # The oldest had its time to ask; a probe that comes now asks at once.
                oldest = next(iter(self.silent))
                self.silent.pop(oldest)
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers, which keep the protocol alive. Uvicorn notifies only the latest request; a request that is being
        answered with others behind it must be notified as well."""
        self._stop_timer()
        self._stop_write_timer()
        self._unset_keepalive_if_required()
        self.silent.pop(self, None)
        self.budget.give(self.flow)
        self._give_ahead(self._ahead)
        for cycle in (self._active, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                _disconnect(cycle)
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count bytes outside the body. The piece in which a request or a chunk begins is not counted: its size is bounded,
        and it may hold the end of an earlier request or chunk."""
        if self._refused:
            return
        self._overhead += len(data)
        self._feed(data)
        if self._refused or self.transport.is_closing():
            return
        if len(self.pipeline) > MAX_PIPELINED:
            log.info("a connection was closed: too many requests ahead", pipelined=len(self.pipeline))
            self.transport.abort()
        elif self._receiving and self._overhead > MAX_HEAD_BYTES:
            self._refuse(431, "The request's headers are too large.")
        elif not self._receiving and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_next()  # blank lines between requests do not begin one

    def _feed(self, data: bytes) -> None:
        """Parse the data as Uvicorn does, and continue after an offer to speak another protocol."""
        self._unset_keepalive_if_required()
        try:
            while True:
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as offer:
                    data = data[offer.args[0] :]
                    if self._refused:
                        return
                    upgrade.go_on(self, self.headers)
        except httptools.HttpParserError:
            if not self._refused:  # the parser may stumble over what stands behind a head that was refused
                self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP. Called by Uvicorn, whose own answer would be plain text."""
        self._refuse(400, "The request is not valid HTTP.")

    # -- callbacks of the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Called by the parser when a request line begins."""
        super().on_message_begin()
        if self._refused:
            return
        self._receiving = self._in_head = True
        self._target_known = False
        self._moved()
        self._start_timer(SPARE_TIMEOUT if self._spare else HEAD_TIMEOUT)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser for headers, and for trailers, which are unused and whose number the parser does not limit."""
        if self._in_head:
            self._target_known = True
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called when the headers are complete. The handler starts now: it may refuse the request before the body arrives."""
        if self._refused:
            return
        self.silent.pop(self, None)
        self._target_known = True
        version = self.parser.get_http_version()
        take_target(self.url, self.headers)
        if (fault := fault_of(version, self.headers)) is not None:
            self._refuse(fault.status, fault.message)
            return
        if version == "1.0":
            self.expect_100_continue = False  # RFC 9110, 10.1.1: there is no such answer in HTTP/1.0
        if self._spare and not self._is_probe():
            self._refuse(503, "The server has too many connections.", {"retry-after": _RETRY_AFTER})
            return
        self._in_head = False
        self._moved()
        self._start_timer(BODY_WINDOW)
        super().on_headers_complete()
        if self._spare:
            self.cycle.keep_alive = False
        if self.pipeline:
            # Uvicorn stops reading then, and would not see the client go. How many there may be is limited instead.
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """Called for a piece of the body. A pipelined body, behind a request that may run for long, does not wait for room."""
        if self._refused:
            return
        self._overhead = 0
        self._window_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete:  # it is thrown away
            return
        if self.cycle is self._active:
            fits = self.budget.take(self.flow, len(body))
        else:
            self._ahead += len(body)
            fits = self.budget.take_ahead(len(body))
        if not fits:
            self._refuse(503, "The server holds too many unfinished requests.", {"retry-after": _RETRY_AFTER})

    def on_message_complete(self) -> None:
        """Called when the request is complete, or after an offer to speak another protocol, when the body is still to come: the
        parser expects none there."""
        if self._refused or self.parser.should_upgrade():
            return
        self._receiving = False
        self._stop_timer()
        super().on_message_complete()
        if self.cycle is self._active:
            self.budget.give(self.flow)

    def on_response_complete(self) -> None:
        """Called by Uvicorn, which continues with the next request or begins to wait for one."""
        if self.cycle is self._active:
            self.budget.give(self.flow)
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._owed is not None and not self._busy:
            self._unset_keepalive_if_required()
            self._tell(self._owed)
        elif self.timeout_keep_alive_task is not None:
            self.idle[self] = self.loop.time()

    def _give_ahead(self, size: int) -> None:
        self._ahead -= size
        self.budget.give_ahead(size)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _close_idle(self) -> bool:
        """Make room by closing the connection that was idle longest. False if none was idle for long enough."""
        longest, since = next(iter(self.idle.items()), (None, 0.0))
        if longest is None or self.loop.time() - since < IDLE_AT_LEAST:
            return False
        longest._unset_keepalive_if_required()
        if longest.transport.get_write_buffer_size():
            longest.transport.close()
        else:
            longest.transport.abort()  # TLS would wait for the other side's goodbye
        return True

    def _is_probe(self) -> bool:
        """True for the probes of orchestrators: without an answer they would kill a server that only has many clients."""
        return self.parser.get_method() in (b"GET", b"HEAD") and path_of(self.url) in PROBES

    def _unset_keepalive_if_required(self) -> None:
        """Mark the connection as no longer idle."""
        self.idle.pop(self, None)
        super()._unset_keepalive_if_required()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _moved(self) -> None:
        self._overhead = self._window_bytes = 0
        self._progress = self.loop.time()

    def _wait_for_next(self) -> None:
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self._idle_timeout or self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            if not self._spare:
                self.idle[self] = self.loop.time()

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close the connection, unless the body made progress or the server itself has paused reading."""
        if self._spare:
            limit = SPARE_TIMEOUT
        else:
            limit = HEAD_TIMEOUT if self._in_head else BODY_WINDOW
        ours = self.flow.read_paused or self.flow.no_room or (self._in_head and self._busy)
        if ours or (not self._in_head and self._window_bytes >= BODY_RATE * limit):
            self._moved()
        if (seconds := self._progress + limit - self.loop.time()) > 0:
            self._start_timer(seconds)
        elif self._receiving:
            self._refuse(408, "The request did not arrive in time.")
        else:  # above the limit of connections, and nothing ever came
            self.transport.abort()

    # -- readers ------------------------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Called by Uvicorn when it is this request's turn."""
        self._active = cycle
        self._give_ahead(len(cycle.body))
        if cycle.more_body and cycle.body:
            self.budget.take(self.flow, len(cycle.body))
        if cycle.scope["http_version"] == "1.1":
            call_of(cycle.scope).connection = weakref.ref(cycle)
        super()._start_asgi_task(
            cycle, unchunked(cycle, app) if cycle.scope["http_version"] == "1.0" else app
        )

    def pause_writing(self) -> None:
        """Called when the transport's buffer is full: from now on the client has to read."""
        super().pause_writing()
        if self._write_timer is None:
            self._unread, self._read_at = unread_bytes(self.transport), self.loop.time()
            self._watch_reader()

    def resume_writing(self) -> None:
        """Called when the client has read and the buffer has room."""
        self._stop_write_timer()
        super().resume_writing()

    def _watch_reader(self) -> None:
        self._write_timer = self.loop.call_later(self.write_timeout / _LOOKS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Check that the client reads. A client may be slow: any byte acknowledged by its side counts as progress. The time until
        our buffer has room again is not a measure; the kernel's buffer behind it may hold megabytes."""
        now, unread = self.loop.time(), unread_bytes(self.transport)
        if unread < self._unread:
            self._read_at = now
        self._unread = unread
        if now - self._read_at < self.write_timeout:
            self._watch_reader()
            return
        self._write_timer = None
        log.info("a client did not read: its connection is closed", seconds=self.write_timeout, unread=unread)
        self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # -- refusing ------------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """True while a request has no complete answer yet."""
        return self._active is not None and not self._active.response_complete

    @property
    def owes_an_answer(self) -> bool:
        """True while an accepted call has no complete answer yet. The engine may finish the call before the first byte of the
        answer is sent."""
        active = self._active if self._busy else None
        is_open = active is not None and (
            active.response_started or call_of(active.scope).response_id is not None
        )
        return is_open or self.transport.get_write_buffer_size() > 0

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """Answer with the refusal and close: after the answers to earlier requests, and unless this request has part of one."""
        # Of a request whose head is not complete there is no cycle: the last one is that of the request before it.
        refused = self.cycle if self._receiving and not self._in_head else None
        self._refused = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        request_id = new_request_id()
        if refused is not None and refused is not self._active:
            self.pipeline.popleft()  # it came last
            self._give_ahead(len(refused.body))
        else:
            self.budget.give(self.flow)
        self.flow.resume_reading()
        always = {"connection": "close", "x-request-id": request_id}
        response = http_error_response(status, message, {**always, **(headers or {})})
        path = path_of(self.url) if self._receiving and self._target_known else None
        if path is not None:
            response.shape(self.forms.of(path), request_id)
        log.info(
            "a request was refused before it was complete",
            status=status,
            code=response.refusal.code,
            request_id=request_id,
        )
        head = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
        line = b"HTTP/1.1 %d %s\r\n" % (status, _PHRASES[status])
        answer = line + head + b"\r\n"
        if self.parser.get_method() != b"HEAD":
            answer += bytes(response.body)
        if refused is None or refused is not self._active:
            if self._busy:
                self.answered(path, status)
                self._owed = answer
                return
        else:
            _disconnect(refused)  # its handler writes nothing more, and hears of the end
            if refused.response_started:
                self.transport.close()
                return
            call_of(refused.scope).counted = True
        self.answered(path, status)
        self._tell(answer)

    def _tell(self, answer: bytes) -> None:
        """Send the refusal as the last answer on this connection."""
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.close)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell what answers a request that its client is gone."""
    cycle.disconnected = True
    cycle.message_event.set()
    call_of(cycle.scope).client_gone()
