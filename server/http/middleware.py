"""Middleware around every request: an id, an access log line, limits on the request's size, and an answer to every exception.

Pure ASGI: Starlette's BaseHTTPMiddleware puts a queue between a stream and its client.
"""

from __future__ import annotations

import time
from urllib.parse import quote

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.call import Call, Refusal, call_of
from server.http.cors import Cors
from server.http.endpoints import Answered
from server.http.errors import http_error_response, internal_error_response
from server.http.form import form_of
from server.schemas.extras import MAX_TOLD
from server.telemetry.stories.record import AccessLine, CallStory
from server.telemetry.stories.wire import log_fields, server_timing

log = structlog.get_logger("server")
access_log = structlog.get_logger("server.access")

PROBES = frozenset({"/live", "/ready", "/health", "/metrics"})
"""Paths of probes, which are polled every few seconds and answered even when other requests are refused. Their answers 200 and
503 are expected and would make up most of the log."""
_FILES = "/console/"
"""Where the files of the console lie. A page loads dozens of them: its own line is enough."""
MAX_HEADER_BYTES = 64 * 1024
_MAX_IGNORED_BYTES = 2048
"""Limit on the header's value in characters, names and separators together."""
_MAX_NAME = 100
"""Number of characters of a name that are reported; the client may have sent megabytes."""
_SEPARATOR, _MORE = b", ", b"..."


class RequestLogging:
    """Creates `x-request-id` (and the header in which clients of another API look for it), lists ignored parameters in
    `x-cohort-ignored`, answers preflights of browsers, writes the access log, counts answers, and answers an unexpected
    exception with a 500 in the API's own form."""

    def __init__(self, app: ASGIApp, cors: Cors, answered: Answered) -> None:
        self._app = app
        self._cors = cors
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = call_of(scope)
        request_id = call.request_id.encode()
        always = [(b"x-request-id", request_id), *self._cors.headers(scope)]
        if (header := form_of(scope).id_header) is not None:
            always.append((header.encode(), request_id))
        status = 0
        start = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *always, *_ignored(call), *_timing(call)]
            await send(message)

        try:
            await (self._cors.preflight(scope) or self._app)(scope, receive, send_with_id)
        except Exception as error:
            log.exception("a request failed", exc_info=error, request_id=call.request_id)
            if not status:
                await internal_error_response()(scope, receive, send_with_id)
        finally:
            self._record(scope, call, call.sent_status(status), time.perf_counter() - start)

    def _record(self, scope: Scope, call: Call, status: int, seconds: float) -> None:
        """Count the answer, and write its line to the access log."""
        if not call.counted:
            self._answered(scope["path"], call.end_status(status))
        if scope["path"] in PROBES and status in (200, 503):
            return
        if scope["path"].startswith(_FILES) and status in (200, 304):
            return
        fields = {
            "status": status,
            "ms": round(seconds * 1000, 1),
            "request_id": call.request_id,
            # What the client has, where its library hides the headers.
            "response_id": call.response_id,
            "client_request_id": client_request_id(scope),
            "key": call.key_name,
            **_told(call.refusal),
        }
        line = AccessLine(
            _line(scope), {name: value for name, value in fields.items() if value not in (None, "")}
        )
        if call.story is None:
            access_log.info(line.event, **line.fields)
        else:
            _end_story(call, status, line)


def log_call(story: CallStory) -> None:
    """Write the access log's line of a call that is over."""
    if story.line is not None:
        access_log.info(story.line.event, **story.line.fields, **log_fields(story))


def client_request_id(scope: Scope) -> str | None:
    """The id that the client gave its request, made harmless as in paths; None without one. It is shown and not used."""
    value_sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
    if not value_sent:
        return None
    value: str = value_sent[:_MAX_NAME].decode("latin-1")
    return value.encode("unicode_escape").decode("ascii")


class AnswerFailures:
    """Answers an unexpected exception with a 500 in the API's own form, and ends the story of a call, for an application without
    `RequestLogging`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        call = call_of(scope)
        status = 0

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            log.exception("a request failed", exc_info=error, request_id=call.request_id)
            if not status:
                await internal_error_response()(scope, receive, send_noting)
        finally:
            _end_story(call, call.sent_status(status))


def _end_story(call: Call, status: int, line: AccessLine | None = None) -> None:
    """Tell the story, if there is one, that the call is answered."""
    if call.story is not None:
        code = None if call.refusal is None else call.refusal.code
        call.story.answer(time.monotonic(), call.end_status(status), code, line)


def _timing(call: Call) -> list[tuple[bytes, bytes]]:
    """The header that tells how long the parts of a call took, if it was queued."""
    value = None if call.story is None else server_timing(call.story, call.story.stream)
    return [] if value is None else [(b"server-timing", value)]


def _ignored(call: Call) -> list[tuple[bytes, bytes]]:
    """The header that lists ignored parameters, if there are any. The client chose the names: they are percent-encoded, since a
    header must be ASCII and commas separate them. A name that is cut ends with "...", and so does a list that is cut."""
    names = call.ignored
    quoted_names: list[bytes] = []
    size = 0
    for name in names[:MAX_TOLD]:
        quoted = quote(name[:_MAX_NAME], safe="[]", errors="replace").encode()
        quoted += _MORE if len(name) > _MAX_NAME else b""
        size += len(quoted) + len(_SEPARATOR)
        if size > _MAX_IGNORED_BYTES:
            break
        quoted_names.append(quoted)
    if len(quoted_names) < len(names):
        quoted_names.append(_MORE)
    return [(b"x-cohort-ignored", _SEPARATOR.join(quoted_names))] if quoted_names else []


def _told(refusal: Refusal | None) -> dict[str, str]:
    """The fields of a refusal for the log. `param` may hold names that the client chose: as in paths, line breaks and escape
    sequences in them must not reach the log."""
    if refusal is None:
        return {}
    fields = {"code": refusal.code, "param": refusal.param}
    return {
        name: value[:_MAX_NAME].encode("unicode_escape").decode("ascii")
        for name, value in fields.items()
        if value is not None
    }


def _line(scope: Scope) -> str:
    """Method and path as they were sent. A decoded path may hold line breaks and escape sequences, which would forge lines
    of the log and control the terminal that shows it."""
    path = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogatepass")
    line = f"{scope['method']} {path[:200].decode('latin-1')}"
    return line.encode("unicode_escape").decode("ascii")


class BodyLimit:
    """Refuses headers and bodies that are too large: at once by the declared length, otherwise while reading."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._message = f"The request body is larger than {max_bytes} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            # Any number of zeros may stand in front, and Python refuses to read thousands of digits.
            if (
                name == b"content-length"
                and value.isdigit()
                and int(value.lstrip(b"0")[:20] or 0) > self._max_bytes
            ):
                await self._refuse(413, self._message, scope, receive, send)
                return
        if size > MAX_HEADER_BYTES:
            await self._refuse(431, "The request's headers are too large.", scope, receive, send)
            return
        read = 0

        async def receive_limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._max_bytes:
                # Inside a route this is an HTTP error like any other, and the connection is not used again.
                raise HTTPException(413, self._message, {"Connection": "close"})
            return message

        await self._app(scope, receive_limited, send)

    async def _refuse(self, status: int, message: str, scope: Scope, receive: Receive, send: Send) -> None:
        response = http_error_response(status, message, {"Connection": "close"})
        await response(scope, receive, send)
