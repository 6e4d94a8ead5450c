"""What the tests of the HTTP protocol speak with a server: bytes over a socket, whole answers."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from server.http import protocol
from tests.server.fakes import House
from tests.server.startup.test_lifecycle import Running, run

PIECE = b"x" * 65536
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
STREAM = b'{"prompt": "Hi", "stream": true}'
WHOLE = b'{"prompt": "Hi"}'


@asynccontextmanager
async def serving(house: House) -> AsyncIterator[Running]:
    """A server that is ready, until it has shut down."""
    one = run(house)
    one.loads.set()
    one.core.work.set()
    await one.until("/ready", 200)
    try:
        yield one
    finally:
        one.signals.arrived()
        await asyncio.wait_for(one.task, 10)


async def talk(running: Running, *pieces: bytes, pause: float = 0.0) -> tuple[bytes, int]:
    """What comes back until the server closes, and how much it let us send."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = asyncio.create_task(reader.read())
    sent = 0
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(pause)
            if answer.done():
                break
    try:
        return await asyncio.wait_for(answer, 5), sent
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def status_of(answer: bytes) -> int:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    return int(head.split()[1])


def post(body: bytes, close: bytes = b"Connection: close\r\n") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n%s%sContent-Length: %d\r\n\r\n"
    return head % (JSON, close, len(body)) + body


def dial(running: Running, buffer: int = 8192) -> socket.socket:
    """A client whose kernel takes little for it."""
    host, port = running.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    client.setblocking(False)
    client.connect_ex((host, int(port)))
    return client


async def until(ready: Callable[[], bool], within: float = 10.0) -> None:
    for _ in range(int(within / 0.02)):
        if ready():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came to that")


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.sleep(0.05)  # until it is connected
    await asyncio.get_running_loop().sock_sendall(client, data)


def limits(**values: object) -> None:
    """Of the server that runs."""
    for name, value in values.items():
        setattr(protocol.BoundedHttpProtocol.__subclasses__()[-1], name, value)


def protocol_of(running: Running) -> type[protocol.BoundedHttpProtocol]:
    return protocol.BoundedHttpProtocol.__subclasses__()[-1]
