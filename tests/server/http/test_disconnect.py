"""Work that is cancelled when its client disconnects: what it returns, raises and leaves behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.text.generation import TextDelta
from server.http.call import Call
from server.http.disconnect import while_connected
from server.http.errors import ClientDisconnected
from tests.server.fakes import House, steps
from tests.server.http import raw_http


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


async def test_a_client_that_goes_in_the_turn_in_which_the_work_ends_cancels_nothing_more() -> None:
    client, done = Client(), asyncio.Event()

    def leave() -> None:
        client.leave()
        done.set()

    async def work() -> str:
        await done.wait()
        return "done"

    asyncio.get_running_loop().call_later(0.01, leave)
    assert await while_connected(client.receive, work()) == "done"
    await asyncio.sleep(0.01)
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


def call_on(connection: Any) -> Call:
    """A call of which a protocol tells when its client is gone."""
    return Call(connection=cast(Any, lambda: connection))


def connected() -> Any:
    """A connection whose client is there."""
    return SimpleNamespace(disconnected=False, flow=SimpleNamespace(resume_reading=lambda: None))


async def unread() -> Any:
    raise AssertionError("the messages of a call with a protocol are not waited for")


async def test_a_protocol_that_tells_of_the_disconnect_needs_no_other_task() -> None:
    call = call_on(connected())

    async def work() -> int:
        await asyncio.sleep(0)
        return len(asyncio.all_tasks())

    before = len(asyncio.all_tasks())
    assert await while_connected(unread, work(), call) == before
    call.client_gone()
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0, "work that has ended is not cancelled"


async def test_what_the_protocol_tells_ends_the_work_and_not_its_task() -> None:
    call, ended = call_on(connected()), []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    loop = asyncio.get_running_loop()
    loop.call_later(0.01, call.client_gone)
    loop.call_later(0.01, call.client_gone)  # a second time is no second cancellation
    with pytest.raises(ClientDisconnected):
        await while_connected(unread, work(), call)
    await asyncio.sleep(0.02)
    assert ended and asyncio.current_task().cancelling() == 0


async def test_a_protocol_whose_client_is_gone_already_ends_the_work() -> None:
    call = call_on(SimpleNamespace(disconnected=True))

    async def at_once() -> str:
        return "done"

    assert await while_connected(unread, at_once(), call) == "done"
    await asyncio.sleep(0)
    assert asyncio.current_task().cancelling() == 0
    with pytest.raises(ClientDisconnected):
        await while_connected(unread, asyncio.sleep(60), call)


async def test_a_call_whose_connection_is_no_more_is_watched_by_its_messages() -> None:
    client = Client()
    client.leave()
    with pytest.raises(ClientDisconnected):
        await while_connected(client.receive, asyncio.sleep(60), call_on(None))


async def test_work_within_work_is_ended_too() -> None:
    client, call = Client(), call_on(connected())

    def leave() -> None:
        client.leave()
        call.client_gone()

    async def outer() -> None:
        await while_connected(client.receive, asyncio.sleep(60), call)

    asyncio.get_running_loop().call_later(0.01, leave)
    with pytest.raises(ClientDisconnected):
        await while_connected(unread, outer(), call)
    await asyncio.sleep(0.01)
    assert client.waiting == 0 and asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("body", [raw_http.WHOLE, b" " * 500_000 + raw_http.WHOLE], ids=["small", "large"])
@pytest.mark.parametrize("pipelined", [False, True])
async def test_a_client_that_closes_its_connection_ends_its_generation(pipelined: bool, body: bytes) -> None:
    """Over a socket: the first of one or two calls on a connection runs when the client goes. A large body pauses reading."""
    house = House()
    house.engine.script = steps(TextDelta(0, "Hel", (1,)), asyncio.Event())
    async with raw_http.serving(house) as running:
        host, port = running.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw_http.post(body, close=b"") * (1 + pipelined))
        await asyncio.wait_for(house.engine.paused.wait(), 5)
        assert len(house.engine.open) == 1 and not house.engine.aborted
        writer.close()
        await raw_http.until(lambda: bool(house.engine.aborted))
        assert not house.engine.open
