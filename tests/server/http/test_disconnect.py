"""Work that is cancelled when its client disconnects: what it returns, raises and leaves behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from server.http.disconnect import while_connected
from server.http.errors import ClientDisconnected


class Client:
    """A client's messages: nothing before `leave`."""

    def __init__(self) -> None:
        self._left = asyncio.Event()
        self.waiting = 0

    def leave(self) -> None:
        self._left.set()

    async def receive(self) -> dict[str, Any]:
        self.waiting += 1
        try:
            await self._left.wait()
            return {"type": "http.disconnect"}
        finally:
            self.waiting -= 1


async def test_the_result_and_errors_of_the_work_come_through() -> None:
    client = Client()

    async def result(value: int) -> int:
        await asyncio.sleep(0)
        return value

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    assert await while_connected(client.receive, result(3)) == 3
    with pytest.raises(KeyError):
        await while_connected(client.receive, fail())
    await asyncio.sleep(0.01)
    assert client.waiting == 0, "a wait for the disconnect outlives its call"


async def test_a_client_that_goes_ends_the_work() -> None:
    client, ended = Client(), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # what it does last is waited for
            ended.append(True)
            raise

    asyncio.get_running_loop().call_later(0.01, client.leave)
    with pytest.raises(ClientDisconnected):
        await while_connected(client.receive, work())
    assert ended
    # The task itself is not cancelled: it goes on, and answers.
    await asyncio.sleep(0.01)
    assert asyncio.current_task().cancelling() == 0


async def test_a_client_that_is_gone_already_ends_the_work() -> None:
    client = Client()
    client.leave()
    with pytest.raises(ClientDisconnected):
        await while_connected(client.receive, asyncio.sleep(60))


async def test_work_that_ends_though_it_is_cancelled_gives_its_result() -> None:
    client = Client()

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return "done"

    asyncio.get_running_loop().call_later(0.01, client.leave)
    assert await while_connected(client.receive, work()) == "done"
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0


async def test_cancelling_the_call_is_no_disconnect() -> None:
    client, ended = Client(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    call = asyncio.create_task(while_connected(client.receive, work()))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert call.cancelled() and ended.is_set()
    await asyncio.sleep(0.01)
    assert client.waiting == 0


async def test_both_at_once_end_the_call_as_cancelled() -> None:
    client = Client()
    call = asyncio.create_task(while_connected(client.receive, asyncio.sleep(60)))
    await asyncio.sleep(0.01)
    client.leave()
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises((asyncio.CancelledError, ClientDisconnected)):
        await call


async def test_messages_that_are_no_disconnect_change_nothing() -> None:
    messages = [{"type": "http.request"}, {"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return messages.pop(0)

    with pytest.raises(ClientDisconnected):
        await while_connected(receive, asyncio.sleep(60))
    assert not messages


async def test_a_connection_that_cannot_be_read_counts_as_gone() -> None:
    async def receive() -> dict[str, Any]:
        raise ConnectionError

    with pytest.raises(ClientDisconnected):
        await while_connected(receive, asyncio.sleep(60))
