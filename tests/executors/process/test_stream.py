"""Both ends of the socketpair read into a buffer of their own."""

import asyncio
import socket
import tracemalloc

from executors.process import messages as m
from executors.process.child import Channel
from executors.process.stream import MessageStream
from executors.process.wire import encode

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
