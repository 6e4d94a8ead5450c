"""The error body of every answer that is not a success, in the form of the API that the path belongs to (`server/http/form.py`).

The engine's errors know their own status, type and code (engine/errors.py); those of the HTTP layer are mapped here.
"""

from __future__ import annotations

import msgspec
import structlog
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import EngineError, ModelUnavailable, Overloaded, Unavailable
from server.http.call import CLIENT_CLOSED_REQUEST, Refusal, call_of
from server.http.endpoints import Endpoints
from server.http.foreign_paths import MAX_PATH_TOLD, WHERE_THE_API_IS, is_foreign, no_such_path
from server.http.form import PLAIN, Failure, Form, form_of

log = structlog.get_logger("server")

_RETRY_AFTER_UNAVAILABLE = 5
"""Value of Retry-After in seconds. Loading and draining take about that long; without the header the SDKs retry twice a
second."""

_HTTP_TYPES = {
    400: ("invalid_request_error", "invalid_http"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "host_not_allowed"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    431: ("invalid_request_error", "headers_too_large"),
    500: ("internal_error", "internal_error"),
    501: ("invalid_request_error", "unsupported_transfer_encoding"),
    503: ("service_unavailable", "service_unavailable"),
    505: ("invalid_request_error", "unsupported_http_version"),
}


class ClientDisconnected(Exception):
    """The client closed its connection; its call is aborted."""


class ErrorResponse(Response):
    """An error as an HTTP response. It leaves its `refusal` in the `Call`."""

    def __init__(
        self,
        status: int,
        message: str,
        type_: str,
        param: str | None,
        code: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._failure = Failure(status, message, type_, param, code, None)
        super().__init__(
            msgspec.json.encode(PLAIN.error(self._failure)), status, headers, media_type="application/json"
        )
        self.refusal = Refusal(status, code, param)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, in the form of the API that the path belongs to."""
        call = call_of(scope)
        call.refusal = self.refusal
        self.shape(form_of(scope), call.request_id)
        await super().__call__(scope, receive, send)

    def shape(self, form: Form, request_id: str | None) -> None:
        """Give the body a form; `PLAIN` is the one that it has."""
        if form is PLAIN:
            return
        self.body = msgspec.json.encode(form.error(self._failure._replace(request_id=request_id)))
        self.headers["content-length"] = str(len(self.body))


def http_error_response(status: int, message: str, headers: dict[str, str] | None = None) -> ErrorResponse:
    """An error of the HTTP layer itself: unknown route, wrong method, too large, no key."""
    fallback = ("invalid_request_error", "invalid_value") if status < 500 else _HTTP_TYPES[500]
    type_, code = _HTTP_TYPES.get(status, fallback)
    return ErrorResponse(status, message, type_, None, code, headers)


def engine_error_response(error: EngineError) -> ErrorResponse:
    """An engine error as an HTTP response. A transient error has a Retry-After header; an error that would recur has a header
    that stops OpenAI's clients from retrying it (they try a 500 three times)."""
    headers = None
    if isinstance(error, (Overloaded, ModelUnavailable)):
        headers = {"Retry-After": str(max(1, int(error.retry_after)))}
    elif isinstance(error, Unavailable):
        headers = {"Retry-After": str(_RETRY_AFTER_UNAVAILABLE)}
    elif error.repeats:
        headers = {"x-should-retry": "false"}
    return ErrorResponse(error.status, error.message, error.type, error.param, error.code, headers)


def internal_error_response() -> ErrorResponse:
    """The answer to an unexpected exception: it gives no internal details, which are in the log."""
    return ErrorResponse(500, "Internal server error.", "internal_error", None, "internal_error")


def install_handlers(app: FastAPI, endpoints: Endpoints) -> None:
    """Register the handlers that turn every error raised by a route into an error body."""

    async def on_engine_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return engine_error_response(error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = error.detail
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        status = error.status_code
        if status == 405 and is_foreign(request.scope["path"], endpoints.templates):
            status, headers = 404, {}
        if status == 404:
            method = "GET" if request.method == "HEAD" else request.method  # a HEAD tells the length of a GET
            message = no_such_path(method, request.scope["path"], endpoints.templates)
        elif status == 405:
            headers["allow"] = ", ".join(sorted(headers["allow"].split(", ")))
            path = request.scope["path"][:MAX_PATH_TOLD]
            message = f"{request.method} is not allowed for {path}; it takes {headers['allow']}."
            if path == "/":  # the base URL is wrong
                message += f" {WHERE_THE_API_IS}"
        return http_error_response(status, message, headers)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(EngineError, on_engine_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnected, on_disconnect)
    app.add_exception_handler(ClientDisconnect, on_disconnect)  # while its body was being read
