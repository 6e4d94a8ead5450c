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

    __slots__ = ("_buffer", "_connection", "_sending")

    def __init__(self) -> None:
        self._connection: RequestResponseCycle | None = None
        self._sending: Sending | None = None
        self._buffer = b""
        """Chunks that `flush` writes, before the turn of the event loop ends."""

    def open(self, connection: RequestResponseCycle, sending: Sending) -> None:
        """Write to this connection, until `close`; `sending` is told of each chunk. The stream has not ended."""
        self._connection = connection
        self._sending = sending

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
        """Write what is held, as one chunk. `now`: `time.monotonic()`."""
        chunk, connection, sending = self._buffer, self._connection, self._sending
        if chunk:
            assert connection is not None and sending is not None
            self._buffer = b""
            connection.transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            sending.at = now

    def text_writer(self, encode: Callable[[str], bytes]) -> Callable[[str], bool]:
        """Function that holds the chunk which `encode` makes of a text, unless that is empty. It returns False, and has made
        nothing, unless the writer is `ready`. To be asked for once the writer was."""

        connection, sending = self._connection, self._sending
        assert connection is not None and sending is not None
        flow = connection.flow

        def hold(text: str) -> bool:
            # `_goes_on`, without the call.
            if (
                self._connection is not connection
                or sending.gone
                or sending.busy
                or sending.telling
                or flow.write_paused
                or connection.disconnected
                or connection.response_complete
            ):
                return False
            if text:
                self._buffer += encode(text)
            return True

        return hold
