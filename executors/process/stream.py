"""`MessageStream`: the server's end of the socketpair, on the event loop, without a thread and never blocking.

It is not an asyncio transport. A transport is created by awaiting, where a cancelled start could leave a child behind, and it
cannot return the bytes that are in the socket at once, which is needed when the child is known to be gone.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice

from executors.process.messages import ToServer
from executors.process.wire import FrameDecoder, WireError

_READ_BYTES = 1 << 18
_MOST_AT_ONCE = 64
"""Frames that one call of the system takes; Linux takes 1,024."""


class MessageStream:
    """Calls `deliver` with each message, then `ended` once: with None at the end of the stream, or with the fault in it.

    Both are called on the loop, `ended` never after `close`.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        deliver: Callable[[ToServer], None],
        ended: Callable[[str | None], None],
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._sock = sock
        self._deliver = deliver
        self._ended = ended
        self._decoder: FrameDecoder[ToServer] = FrameDecoder(ToServer)
        self._unsent: deque[memoryview] = deque()
        self._writing = False
        """Whether the socket is full, and the loop waits until it accepts more."""
        self._flushing: asyncio.Handle | None = None
        """What sends frames that wait for others."""
        # One buffer for all reads: as new objects, cut down to what has come, they leave the heap full of holes.
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self.open = True
        loop.add_reader(sock, self._read)

    def send(self, frame: bytearray) -> None:
        """Send a frame, with those before it, at once or when the socket accepts it. Silently dropped once closed."""
        if not self.open:
            return
        self._unsent.append(memoryview(frame))
        if not self._writing:
            self._flush()

    def send_soon(self, frame: bytearray) -> None:
        """Send a frame with the next one, or when the event loop comes round: a call of the system, and a wake-up of the other
        side, for each of many small frames would take longer than the frames. Silently dropped once closed."""
        if not self.open:
            return
        self._unsent.append(memoryview(frame))
        if not self._writing and self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def hand_over(self, deliver: Callable[[ToServer], None], ended: Callable[[str | None], None]) -> None:
        """Call these from now on."""
        self._deliver, self._ended = deliver, ended

    def drain(self) -> None:
        """Read and deliver all that has arrived."""
        while self.open and self._read():
            pass

    def close(self) -> None:
        """Idempotent."""
        if self.open:
            self.open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
            self._unsent.clear()
            if self._flushing is not None:
                self._flushing.cancel()
                self._flushing = None

    def _read(self) -> bool:
        """Read once; False if there was nothing to read or the stream is over."""
        try:
            size = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if not size:
            self._end(None)
            return False
        try:
            for message in self._decoder.feed(self._buffer[:size]):
                if self.open:
                    self._deliver(message)
        except WireError as error:
            self._end(str(error))
        return self.open

    def _flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        self._write()
        if self._unsent and self.open:
            self._writing = True
            self._loop.add_writer(self._sock, self._write_more)

    def _write(self) -> None:
        try:
            while self._unsent:
                count = self._sock.sendmsg(list(islice(self._unsent, _MOST_AT_ONCE)))
                while self._unsent and count >= len(self._unsent[0]):
                    count -= len(self._unsent.popleft())
                if count:
                    self._unsent[0] = self._unsent[0][count:]
        except BlockingIOError:
            return
        except OSError:
            # The other end is closed. What it said before may still lie in the socket: reading finds the end.
            self._unsent.clear()

    def _write_more(self) -> None:
        self._write()
        if not self._unsent:
            self._writing = False
            self._loop.remove_writer(self._sock)

    def _end(self, reason: str | None) -> None:
        self.close()
        self._ended(reason)
