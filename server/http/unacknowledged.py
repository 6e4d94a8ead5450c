"""Bytes sent to a client that its side has not acknowledged yet."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import struct
import termios


def unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes in the transport's buffer and, where the system reports them, in the kernel's: those that the peer's kernel has not
    acknowledged. It does not acknowledge bytes for which it has no room because its program does not read."""
    unread: int = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):  # closed, or of a kind without a queue
            (queued,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
            unread += queued
    return unread
