"""Every answer that is not a success has OpenAI's error body; this is where it is made.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

The engine's errors know their own status, type and code (engine/errors.py); those of the HTTP layer are mapped here.
"""

from __future__ import annotations

from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from engine.errors import EngineError, Overloaded, Unavailable

log = structlog.get_logger("server")

CLIENT_CLOSED_REQUEST = 499
"""Nobody reads this status: it is what the access log says of a client that went away."""

_RETRY_AFTER_UNAVAILABLE = 5
"""Seconds. Loading and draining take about that long; without the header the SDKs hammer twice a second."""

_HTTP_TYPES = {
    400: ("invalid_request_error", "invalid_http"),
    401: ("authentication_error", "invalid_api_key"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "request_timeout"),
    413: ("invalid_request_error", "request_too_large"),
    431: ("invalid_request_error", "headers_too_large"),
    503: ("service_unavailable", "service_unavailable"),
}


class ClientDisconnected(Exception):
    """The client closed its connection; what was being made for it is aborted."""


def error_object(
    message: str, type_: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The whole body as plain data."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def error_response(
    status: int,
    message: str,
    type_: str,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    """An error as an HTTP response."""
    body = msgspec.json.encode(error_object(message, type_, param, code))
    return Response(body, status, headers, media_type="application/json")


def http_error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error of the HTTP layer itself: unknown route, wrong method, too large, no key."""
    fallback = ("invalid_request_error" if status < 500 else "internal_error", None)
    type_, code = _HTTP_TYPES.get(status, fallback)
    return error_response(status, message, type_, None, code, headers)


def engine_error_response(error: EngineError) -> Response:
    """An engine error as an HTTP response; those that pass by themselves say when to come back, and those that would come
    again keep OpenAI's clients, which try a 500 three times, from that."""
    headers = None
    if isinstance(error, Overloaded):
        headers = {"Retry-After": str(max(1, int(error.retry_after)))}
    elif isinstance(error, Unavailable):
        headers = {"Retry-After": str(_RETRY_AFTER_UNAVAILABLE)}
    elif error.repeats:
        headers = {"x-should-retry": "false"}
    return error_response(error.status, error.message, error.type, error.param, error.code, headers)


def internal_error_response() -> Response:
    """The answer to an exception nobody foresaw: it says nothing of the inside, the log does."""
    return error_response(500, "Internal server error.", "internal_error", None, "internal_error")


def install_handlers(app: FastAPI) -> None:
    """Make every error that a route raises an answer in the one shape."""

    async def on_engine_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, EngineError)
        return engine_error_response(error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = error.detail
        if error.status_code == 404:
            message = f"There is no {request.method} {request.scope['path']} here."
        elif error.status_code == 405:
            message = f"{request.method} is not allowed for {request.scope['path']}."
        headers = dict(error.headers) if error.headers else None
        return http_error_response(error.status_code, message, headers)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    app.add_exception_handler(EngineError, on_engine_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(ClientDisconnected, on_disconnect)
    app.add_exception_handler(ClientDisconnect, on_disconnect)  # while its body was being read
