"""Uvicorn's HTTP/1.1 protocol with an end to patience: on what it takes in before a request is complete, for how long, on
what a client leaves unread, and on how many there are.

Uvicorn relies on a proxy for all of it. Middleware comes too late: it runs once the headers are complete.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.http import upgrade
from server.http.body_budget import BodyBudget, Flow
from server.http.endpoints import Answered, path_of
from server.http.errors import http_error_response
from server.http.head import fault_of, take_target
from server.http.http_1_0 import unchunked
from server.http.listener import SPARE_CONNECTIONS
from server.http.middleware import COUNTED, PROBES, RESPONSE_ID, new_request_id
from server.http.unacknowledged import unread_bytes
from server.settings.table import DEFAULTS

log = structlog.get_logger("server")

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers, or whatever else comes without being body: chunk extensions, trailers."""
HEAD_TIMEOUT = 30.0
"""Seconds for request line and headers."""
BODY_WINDOW = 10.0
"""Seconds, each of which must bring `BODY_RATE` bytes of the body on average, as long as we read."""
BODY_RATE = 1024
"""Bytes per second. Less is a broken connection, or one that is to hold memory."""
SPARE_TIMEOUT = 3.0
"""Seconds that a connection above the limit has for its request."""
IDLE_AT_LEAST = 1.0
"""Seconds after which an idle connection may be closed for a new one; before, its request may be under way."""
HIGH_WATER = 64 * 1024
"""Bytes of an answer beyond which it is the client's turn to read."""
MAX_PIPELINED = 16
"""Requests that may wait behind the one that is being answered. Browsers and SDKs send none ahead."""
_RETRY_AFTER = "5"
"""Seconds, for whom there is no room."""
_LOOKS = 8
"""How often, within the write time-out, it is looked whether a client reads."""
_PHRASES = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    505: b"HTTP Version Not Supported",
}
_LINGER = 1.0
"""Seconds to go on reading (and forgetting) after a refusal: closing at once would reset the connection, and the client
might never see the answer."""


def bounded(
    write_timeout: float, max_connections: int, answered: Answered | None = None
) -> type[BoundedHttpProtocol]:
    """The protocol with these limits, for Uvicorn, which makes one for each connection. `answered` counts the answers that
    are given before the application sees a request."""
    limits = {
        "answered": staticmethod(answered or _uncounted),
        "write_timeout": write_timeout,
        "max_connections": max_connections,
        "budget": BodyBudget(),
        "idle": {},
        "silent": {},
    }
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), limits)


def _uncounted(path: str | None, status: int) -> None:
    """Counts nothing."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `_overhead` counts bytes since the last ones that were good for something."""

    write_timeout = DEFAULTS.write_timeout
    """Seconds in which a client that has much to read must have taken something of it."""
    max_connections = 8192
    answered: Answered = staticmethod(_uncounted)
    budget = BodyBudget()
    """Of all connections, as is `idle`."""
    idle: ClassVar[dict[BoundedHttpProtocol, float]] = {}
    """Since when, the longest first."""
    silent: ClassVar[dict[BoundedHttpProtocol, None]] = {}
    """Those above the limit of connections that have not asked yet, the oldest first."""
    flow: Flow
    _spare = False
    """Above the limit of connections: open for a probe."""
    _owed: bytes | None = None
    """A refusal that waits for the answers to what came before."""
    _window_bytes = 0
    _ahead = 0
    """Bytes of bodies behind the request that is being answered."""
    _active: RequestResponseCycle | None = None
    """The request that is being answered; `cycle` is the one that came last."""
    _write_timer: asyncio.TimerHandle | None = None
    _unread = 0
    _read_at = 0.0
    """When fewer bytes were unread than before: `_unread` of them."""
    _receiving = False
    _in_head = False
    _target_known = False
    """The request line is complete."""
    _refused = False
    _overhead = 0
    _progress = 0.0
    _timer: asyncio.TimerHandle | None = None
    _idle_timeout: float | None = None
    """Seconds; None for Uvicorn's own time between requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection on which nothing ever comes is idle like one between requests."""
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
        """Timers hold the protocol alive: end them. Uvicorn tells the last request only; one that is being answered, with
        others behind it, is to end just so."""
        self._stop_timer()
        self._stop_write_timer()
        self._unset_keepalive_if_required()
        self.silent.pop(self, None)
        self.budget.give(self.flow)
        self._give_ahead(self._ahead)
        for cycle in (self._active, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is not body. The piece in which a request or a chunk begins is not counted: it has an end itself,
        and may hold the end of something else."""
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
            self._wait_for_next()  # blank lines between requests are none

    def _feed(self, data: bytes) -> None:
        """Have it parsed, as Uvicorn does, and go on behind an offer to speak another protocol."""
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
        """What came is no HTTP. Called by Uvicorn, whose own answer is plain text."""
        self._refuse(400, "The request is not valid HTTP.")

    # -- callbacks of the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request line has begun."""
        super().on_message_begin()
        if self._refused:
            return
        self._receiving = self._in_head = True
        self._target_known = False
        self._moved()
        self._start_timer(SPARE_TIMEOUT if self._spare else HEAD_TIMEOUT)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here too; nobody reads them, and nothing limits how many there are."""
        if self._in_head:
            self._target_known = True
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body is next, and for the handler there is something to do: it may want to refuse before there is a body."""
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
        """Some of the body. What is sent ahead, behind a request that may run for long, does not wait for room."""
        if self._refused:
            return
        self._overhead = 0
        self._window_bytes += len(body)
        super().on_body(body)
        if self.cycle.response_complete:  # it is thrown away
            return
        if self.cycle is self._active:
            taken = self.budget.take(self.flow, len(body))
        else:
            self._ahead += len(body)
            taken = self.budget.take_ahead(len(body))
        if not taken:
            self._refuse(503, "The server holds too many unfinished requests.", {"retry-after": _RETRY_AFTER})

    def on_message_complete(self) -> None:
        """The request is here. Or it is not: behind an offer to speak another protocol the parser expects no body."""
        if self._refused or self.parser.should_upgrade():
            return
        self._receiving = False
        self._stop_timer()
        super().on_message_complete()
        if self.cycle is self._active:
            self.budget.give(self.flow)

    def on_response_complete(self) -> None:
        """Called by Uvicorn, which goes on with the next request or begins to wait for one."""
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
        """Make room by ending the connection that was idle longest. False if none was for long enough."""
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
        """True for what orchestrators ask: without an answer they would end a server that only has many clients."""
        return self.parser.get_method() in (b"GET", b"HEAD") and path_of(self.url) in PROBES

    def _unset_keepalive_if_required(self) -> None:
        """No longer idle."""
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
        """Close, unless there was progress or it is we who do not read."""
        if self._spare:
            limit = SPARE_TIMEOUT
        else:
            limit = HEAD_TIMEOUT if self._in_head else BODY_WINDOW
        ours = self.flow.read_paused or self.flow.no_room or (self._in_head and self._busy)
        if ours or (not self._in_head and self._window_bytes >= BODY_RATE * limit):
            self._moved()
        if (left := self._progress + limit - self.loop.time()) > 0:
            self._start_timer(left)
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
        super()._start_asgi_task(
            cycle, unchunked(cycle, app) if cycle.scope["http_version"] == "1.0" else app
        )

    def pause_writing(self) -> None:
        """More is unread than goes into the transport's buffer: from now on the client has to read."""
        super().pause_writing()
        if self._write_timer is None:
            self._unread, self._read_at = unread_bytes(self.transport), self.loop.time()
            self._watch_reader()

    def resume_writing(self) -> None:
        """It has read."""
        self._stop_write_timer()
        super().resume_writing()

    def _watch_reader(self) -> None:
        self._write_timer = self.loop.call_later(self.write_timeout / _LOOKS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """A client may be slow: what counts is that its side has taken something, however little. Time until our buffer has
        room again would not do; behind it the kernel has one of megabytes."""
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
        """True while a request has no complete answer."""
        return self._active is not None and not self._active.response_complete

    @property
    def owes_an_answer(self) -> bool:
        """True while a client is to get an answer, or the rest of one, to a call that was taken in. The engine may be done with
        it before the first byte is sent."""
        active = self._active if self._busy else None
        taken = active is not None and (active.response_started or RESPONSE_ID in active.scope)
        return taken or self.transport.get_write_buffer_size() > 0

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """Say so and close: once what came before has its answer, and unless that would break into an answer to this one."""
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
                self.answered(path_of(self.url) if self._receiving and self._target_known else None, status)
                self._owed = answer
                return
        else:
            refused.disconnected = True  # its handler writes nothing more, and hears of the end
            refused.message_event.set()
            if refused.response_started:
                self.transport.close()
                return
            refused.scope[COUNTED] = True  # type: ignore[literal-required]
        self.answered(path_of(self.url) if self._receiving and self._target_known else None, status)
        self._tell(answer)

    def _tell(self, answer: bytes) -> None:
        """The last thing that is said on this connection."""
        self.transport.write(answer)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.close)
