"""Clients that go away, read slowly or not at all. None of them is owed anything; the server has to get over them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from urllib.parse import urlsplit

from tests.hostile.case import encoded, posted
from tests.hostile.wire import Wire
from tests.soak.asks import COMPLETION

_LONG = {"max_tokens": 300, "ignore_eos": True, "temperature": 1.0}


def _request(rng: random.Random, key: str, *, stream: bool, prompt: int = 8, n: int = 1) -> bytes:
    """One that takes a while. No two have the same prompt: the prefix cache turns over."""
    words = " ".join(rng.choice(("fox", "king", "river", "seven", "blue", "once")) for _ in range(prompt))
    body = {"prompt": f"{rng.randrange(10**9)} {words}", "stream": stream, "n": n, **_LONG}
    if rng.random() < 0.3:
        body["logprobs"] = 5
    return posted(COMPLETION, encoded(body), key=key)[0]


async def leaves(url: str, key: str, rng: random.Random) -> str:
    """Goes away at some moment; returns which."""
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    when = rng.choice(
        ("in its headers", "in its body", "at once", "in its prefill", "in its stream", "while it waits")
    )
    sent = _request(rng, key, stream=when != "while it waits", prompt=90 if when == "in its prefill" else 8)
    if when == "in its headers":
        sent = sent[: rng.randrange(1, 60)]
    elif when == "in its body":
        sent = sent[: -rng.randrange(1, 40)]
    pause = {"at once": 0.0, "in its prefill": 0.04, "in its headers": 0.05, "in its body": 0.05}.get(
        when, 0.8
    )
    async with await Wire.to(place.hostname, place.port) as wire:
        await wire.ask([sent], patience=max(0.001, rng.random() * pause))
    return when


async def reads_slowly(url: str, key: str, rng: random.Random) -> str:
    """Asks for much and reads little of it, or nothing, for some seconds; with a receive buffer as small as can be."""
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    never = rng.random() < 0.4
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    link.setblocking(False)
    loop = asyncio.get_running_loop()
    with contextlib.closing(link), contextlib.suppress(ConnectionError, TimeoutError):
        await loop.sock_connect(link, (place.hostname, place.port))
        await loop.sock_sendall(link, _request(rng, key, stream=True, n=4))
        until = loop.time() + rng.uniform(1, 5)
        while loop.time() < until:
            # Behind an answer that has ended, a 429 say, the connection stays open and silent for a minute.
            async with asyncio.timeout(max(0.001, until - loop.time())):
                if not never and not await loop.sock_recv(link, 400):
                    break
            await asyncio.sleep(0.05)
    return "never reads" if never else "reads slowly"


async def stays_idle(url: str, key: str, rng: random.Random) -> str:
    """Connects, says little, and waits."""
    place = urlsplit(url)
    assert place.hostname is not None and place.port is not None
    async with await Wire.to(place.hostname, place.port) as wire:
        await wire.ask([rng.choice((b"", b"GET /li", b"\r\n"))], patience=rng.uniform(0.1, 3))
    return "idle"
