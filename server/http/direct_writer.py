"""`DirectWriter`: writes chunks of a stream to its connection without waking the stream's task."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from server.http.disconnect import Sending


class DirectWriter:
    """Writes to the transport what the layers of ASGI between a stream and its connection would pass on unchanged.

    For the time in which the stream's task waits for its next chunk. Head, first and last chunks go through the layers, and so
    does a chunk that comes when `ready` is False: a client that does not read fast enough makes its stream's task wait, as
    before. One writer: the event loop.
    """

    __slots__ = ("_buffer", "_connection", "_in_doubt", "_sending")

    def __init__(self) -> None:
        self._connection: RequestResponseCycle | None = None
        self._sending: Sending | None = None
        self._buffer = b""
        """Chunks that `flush` writes, before the turn of the event loop ends."""
        self._in_doubt = False
        """Whether the connection, at the last look, took nothing more."""

    def open(self, connection: RequestResponseCycle, sending: Sending) -> None:
        """Write to this connection, until `close`; `sending` is told of each chunk. The stream has not ended."""
        self._connection = connection
        self._sending = sending
        self._in_doubt = True

    def close(self) -> None:
        """Write nothing more."""
        self._connection = self._sending = None
        self._buffer = b""

    @property
    def ready(self) -> bool:
        """Whether a chunk may be written now: the head of a chunked answer is sent, the client is there and has read enough, and
        no sign of life waits for it."""
        connection = self._connection
        return (
            connection is not None
            and connection.response_started
            and connection.chunked_encoding is True
            and self._goes_on()
        )

    def _goes_on(self) -> bool:
        """`ready`, once the head is sent."""
        connection, sending = self._connection, self._sending
        return not (
            connection is None
            or sending is None
            or sending.gone
            or sending.busy
            or sending.telling
            or connection.flow.write_paused
            or connection.disconnected
            or connection.response_complete
        )

    def hold(self, chunk: bytes) -> None:
        """Write a chunk with `flush`. Only while `ready` is True."""
        self._buffer += chunk

    def flush(self, now: float) -> None:
        """Write what is held, as one chunk; nothing to a client that has gone. `now`: `time.monotonic()`."""
        chunk, connection, sending = self._buffer, self._connection, self._sending
        if not chunk:
            return
        assert connection is not None and sending is not None
        self._buffer = b""
        if sending.gone or connection.disconnected or connection.response_complete:
            self._in_doubt = True
            return
        connection.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        sending.at = now
        self._in_doubt = sending.busy or sending.telling or connection.flow.write_paused

    def look_again(self) -> None:
        """Take the next text only if the connection is `ready`."""
        self._in_doubt = True

    def text_writer(self, encode: Callable[[str], bytes]) -> Callable[[str], bool]:
        """Function that holds the chunk which `encode` makes of a text, unless that is empty. It returns False, and has made
        nothing, where the writer was not `ready` behind the last `flush`, and is not now. To be asked for once the writer was.

        So one chunk may follow a client that has just stopped reading: looking at hundreds of connections before each text, and
        again for the write, takes a tenth of a token's time."""
        connection = self._connection

        def hold(text: str) -> bool:
            if self._in_doubt or self._connection is not connection:
                if self._connection is not connection or not self._goes_on():
                    return False
                self._in_doubt = False
            if text:
                self._buffer += encode(text)
            return True

        return hold
