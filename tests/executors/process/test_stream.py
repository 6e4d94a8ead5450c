"""Both ends of the socketpair read into a buffer of their own."""

import asyncio
import socket
import tracemalloc

import pytest

from executors.process import messages as m
from executors.process.child import Channel
from executors.process.stream import MessageStream
from executors.process.wire import HEADER, encode

BEAT = m.Heartbeat(None, "loading", None)
MOST = 32 << 10
"""Bytes that reading a small message may take."""


def test_reading_small_messages_takes_little_memory() -> None:
    """A read that asks for 256 KiB as an object of its own leaves the heap full of holes as large (10 MiB in an hour)."""
    ours, theirs = socket.socketpair()
    loop = asyncio.new_event_loop()
    heard: list[m.ToServer] = []
    stream = MessageStream(loop, ours, heard.append, lambda reason: None)
    channel = Channel(theirs)
    received = b""
    try:
        tracemalloc.start()
        for _ in range(100):
            channel.send(BEAT)
            stream.drain()
            stream.send(encode(m.Release(7)))
            received = bytes(channel.receive(1.0))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        stream.close()
        theirs.close()
        loop.close()
    assert [type(one) for one in heard] == [m.Heartbeat] * 100
    assert received == encode(m.Release(7))
    assert peak < MOST, f"{peak} bytes at once"


def numbers_of(data: bytes) -> list[int]:
    """The sequences that frames release, in their order."""
    found = []
    while data:
        size = HEADER.size + HEADER.unpack_from(data)[0]
        found.append(next(id_ for id_ in range(4000) if encode(m.Release(id_)) == data[:size]))
        data = data[size:]
    return found


async def test_small_messages_wait_for_the_next_frame_or_the_loop() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    stream = MessageStream(asyncio.get_running_loop(), ours, lambda message: None, lambda reason: None)
    try:
        for number in range(3):
            stream.send_soon(encode(m.Release(number)))
        with pytest.raises(BlockingIOError):
            theirs.recv(1 << 16)
        stream.send(encode(m.Release(3)))
        assert numbers_of(theirs.recv(1 << 16)) == [0, 1, 2, 3]
        stream.send_soon(encode(m.Release(4)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert numbers_of(theirs.recv(1 << 16)) == [4]
        stream.send_soon(encode(m.Release(5)))
        stream.close()
        await asyncio.sleep(0.01)
        assert theirs.recv(1 << 16) == b""
    finally:
        stream.close()
        theirs.close()


async def test_frames_keep_their_order_though_the_socket_is_full() -> None:
    """Also more of them than one call of the system takes, in pieces that end within frames."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    stream = MessageStream(asyncio.get_running_loop(), ours, lambda message: None, lambda reason: None)
    received, count = bytearray(), 3000
    try:
        for number in range(count):
            (stream.send if number % 7 == 0 else stream.send_soon)(encode(m.Release(number)))
        size = sum(len(encode(m.Release(number))) for number in range(count))
        while len(received) < size:
            try:
                received += theirs.recv(1000)
            except BlockingIOError:
                await asyncio.sleep(0)
    finally:
        stream.close()
        theirs.close()
    assert bytes(received) == b"".join(bytes(encode(m.Release(number))) for number in range(count))
