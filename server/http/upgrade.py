"""Requests that offer another protocol (`Upgrade: h2c`, as Java's own client and `curl --http2` send it). They are answered in
HTTP/1.1, which RFC 9110, 7.8, permits. The parser would stop after the head of such a request and not read its body as a body.
"""

from __future__ import annotations

from collections.abc import Iterable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_FRAMING = (b"content-length", b"transfer-encoding")


class _Body:
    """Callbacks of a second parser, which only finds the end of the body: the protocol has processed the head already."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self.in_head = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self.in_head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.in_head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.in_head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self.in_head:
            self._protocol.on_headers_complete()


def go_on(protocol: HttpToolsProtocol, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Give `protocol` a parser that has read a head with these headers (names in lower case), without the offer: it is fed the
    body next, and later requests after it. Raises httptools.HttpParserError."""
    callbacks = _Body(protocol)
    protocol.parser = httptools.HttpRequestParser(callbacks)
    protocol.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as Uvicorn has it
    framing = [b"%s: %s\r\n" % header for header in headers if header[0] in _FRAMING]
    # Of a message without a body this already tells the end.
    protocol.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n" % b"".join(framing))
    callbacks.in_head = False
