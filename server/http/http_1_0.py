"""Answers to HTTP/1.0 clients. HTTP/1.0 has no chunks (RFC 9112, 6.1): a body without a length ends with the connection.

Uvicorn closes the connection after each such answer, and announces this, but would send chunks.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_FRAMED = (b"content-length", b"transfer-encoding")


def unchunked(cycle: RequestResponseCycle, app: Any) -> Any:
    """`app`, an ASGI application, whose answers to the request of `cycle` are sent without chunks."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        until_close = False

        async def send_plain(message: Any) -> None:
            nonlocal until_close
            if message["type"] == "http.response.start":
                until_close = not any(name.lower() in _FRAMED for name, _ in message.get("headers", ()))
                if until_close:
                    cycle.chunked_encoding = False
            elif until_close:
                # Uvicorn counts what is left of a length. Nothing else may send between the count and its use: so wait
                # here until the client has read, not there.
                while cycle.flow.write_paused and not cycle.disconnected:
                    await cycle.flow.drain()
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run
