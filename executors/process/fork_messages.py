"""Messages between the server and its fork server: each is one datagram that holds a frame (`wire.py`).

server -> fork server   LoadShared at most once at a time; Fork, with descriptors beside it: the child's socket, its stderr
                        and, where it has one, its memory file
fork server -> server   Imported; Alive and Progress while it loads, then SharedLoaded or LoadFailed; Forked or NotForked
                        for each Fork; Ended for each child
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from executors.contract import ExecutorConfig
from executors.process.messages import LoadFailed, Progress
from executors.process.wire import FrameDecoder, WireError, encode

MOST_BYTES = 1 << 17
"""Longest datagram in either direction."""
THREADS_END_S = 3.0
"""Time in which the threads of a load must end before a fork, in seconds. Then it is refused."""


class LoadShared(msgspec.Struct, tag=1, array_like=True):
    """Load what the lives of this executor share."""

    config: ExecutorConfig


class Fork(msgspec.Struct, tag=2, array_like=True):
    """Begin a child."""


class Imported(msgspec.Struct, tag=20, array_like=True):
    """All modules are imported."""


class Alive(msgspec.Struct, tag=21, array_like=True):
    """The fork server loads, and its main thread runs."""


class SharedLoaded(msgspec.Struct, tag=22, array_like=True):
    """The end of a load. `shared`: children are forked with what was loaded; else each loads for itself."""

    shared: bool


class Forked(msgspec.Struct, tag=23, array_like=True):
    """A child has begun."""

    pid: int


class NotForked(msgspec.Struct, tag=24, array_like=True):
    """The system has refused a fork."""

    reason: str


class Ended(msgspec.Struct, tag=25, array_like=True):
    """A child has ended and was reaped. `status`: its exit code, or the negative number of a signal."""

    pid: int
    status: int


ToForkServer = LoadShared | Fork
FromForkServer = Imported | Alive | SharedLoaded | Forked | NotForked | Ended | Progress | LoadFailed

M = TypeVar("M")
_to_fork_server: FrameDecoder[ToForkServer] = FrameDecoder(ToForkServer)
_from_fork_server: FrameDecoder[FromForkServer] = FrameDecoder(FromForkServer)


def datagram(message: ToForkServer | FromForkServer) -> bytearray:
    """Return the bytes of a message. Raises WireError if it cannot be encoded or is too long."""
    frame = encode(message)
    if len(frame) > MOST_BYTES:
        raise WireError(f"{type(message).__name__}: {len(frame)} bytes do not fit a datagram of {MOST_BYTES}")
    return frame


def request_of(data: bytes) -> ToForkServer:
    """Return the message of a datagram to the fork server. Raises WireError."""
    return _only(_to_fork_server.feed(data))


def answer_of(data: bytes) -> FromForkServer:
    """Return the message of a datagram of the fork server. Raises WireError."""
    return _only(_from_fork_server.feed(data))


def _only(messages: list[M]) -> M:
    if len(messages) != 1:
        raise WireError("a datagram that is no message")
    return messages[0]
