"""`cohort ray serve`, two replicas on a real Ray: answers are those of one server, and a replica's death changes none of them."""

from __future__ import annotations

import asyncio
import random
import time

import httpx
import pytest

from tests.chaos.asked import asks, kinds, mixed
from tests.chaos.client import Stream, answers, check, open_client
from tests.e2e.server_process import ServerProcess
from tests.ray.conftest import LOOPBACK, RayServer, kill, listeners, until_gone

pytestmark = [pytest.mark.external, pytest.mark.timeout(700)]


async def test_streams_are_those_of_one_server(ray_server: RayServer, single: ServerProcess) -> None:
    """30 calls at once: chats and completions, streamed or not, n > 1, best_of, logprobs of output and prompt, JSON schemas,
    forced tools, penalties, stop strings."""
    bodies = mixed(random.Random(7), 30, (30, 90))
    check(await answers(single, bodies), await answers(ray_server, bodies), "on two replicas")
    routed = [
        ray_server.metric(f'cohort_replica_routed_total{{reason="{one}"}}')
        for one in ("hash", "prefix", "load")
    ]
    assert sum(routed) >= 30
    used = [card["metrics"] for card in ray_server.cards()]
    assert len(used) == 2


async def test_a_killed_replica_loses_nothing(ray_server: RayServer, single: ServerProcess) -> None:
    """SIGKILL to the process of one replica in mid-stream, under a call of every kind. Its executor goes with it, and Ray brings
    another one."""
    bodies = [{**body, "max_tokens": 400} for body in kinds().values()]
    bodies += [asks(f"Story {number}.", seed=number, temperature=1.0, max_tokens=400) for number in range(8)]
    expected = await answers(single, bodies)
    pids = await asyncio.to_thread(ray_server.pids)
    executors = await asyncio.to_thread(ray_server.executors)
    moved = ray_server.metric("cohort_replica_sequences_moved_total")
    streams = [Stream(body) for body in bodies]
    async with open_client(ray_server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        begun = [stream for stream in streams if stream.streams]
        await asyncio.gather(*(stream.reaches(5) for stream in begun))
        loads = {name: ray_server.metric(f'cohort_replica_sequences{{replica="{name}"}}') for name in pids}
        busiest = max(loads, key=lambda name: loads[name])
        assert loads[busiest] >= 1
        killed = kill(pids[busiest])
        await asyncio.gather(*running)
    check(expected, streams, "with a killed replica")
    assert ray_server.metric("cohort_replica_sequences_moved_total") > moved
    next_tokens = [at - killed for stream in begun if (at := stream.first_after(killed + 0.2)) is not None]
    pauses = [stream.longest_pause for stream in begun]
    print(
        f"\nresumed: next token of any stream after {min(next_tokens, default=0):.2f} s, longest pause {max(pauses):.2f} s"
    )
    after = await asyncio.to_thread(ray_server.wait_for_replicas, 2, [pids[busiest]])
    print(f"two replicas again {time.monotonic() - killed:.1f} s after the kill")
    assert set(after) != set(pids)
    gone = [pid for pid in executors if pid not in await asyncio.to_thread(ray_server.executors)]
    assert len(gone) == 1
    await until_gone(gone)


async def test_both_killed(ray_server: RayServer, single: ServerProcess) -> None:
    """All streams wait, /ready says so, and they go on when a replica is back."""
    bodies = [asks(f"Tale {number}.", seed=number, temperature=1.0, max_tokens=300) for number in range(10)]
    expected = await answers(single, bodies)
    pids = await asyncio.to_thread(ray_server.wait_for_replicas, 2)
    streams = [Stream(body) for body in bodies]
    async with open_client(ray_server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(5) for stream in streams))
        for pid in pids.values():
            kill(pid)
        killed = time.monotonic()
        await asyncio.to_thread(ray_server.wait_until, "/ready", 503, 20)
        assert (await asyncio.to_thread(ray_server.get, "/live")).status_code == 200
        late = asyncio.create_task(Stream(bodies[0]).run(client))
        await asyncio.gather(*running, late)
    check(expected, streams, "with both killed")
    assert late.result().said() == expected[0].said()
    print(
        f"\nboth killed: the longest pause of a stream was {max(one.longest_pause for one in streams):.1f} s"
    )
    print(f"all ended {time.monotonic() - killed:.1f} s after the kill")
    await asyncio.to_thread(ray_server.wait_for_replicas, 2, list(pids.values()))


async def test_a_killed_executor_is_its_replica_s(ray_server: RayServer, single: ServerProcess) -> None:
    """The replica brings its executor back itself; no sequence moves."""
    bodies = [asks(f"Saga {number}.", seed=number, temperature=1.0, max_tokens=300) for number in range(6)]
    expected = await answers(single, bodies)
    await asyncio.to_thread(ray_server.wait_for_replicas, 2)
    moved = ray_server.metric("cohort_replica_sequences_moved_total")
    streams = [Stream(body) for body in bodies]
    async with open_client(ray_server) as client:
        running = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(5) for stream in streams))
        kill(ray_server.executors()[0])
        await asyncio.gather(*running)
    check(expected, streams, "with a killed executor")
    assert ray_server.metric("cohort_replica_sequences_moved_total") == moved


async def test_a_client_that_leaves(ray_server: RayServer) -> None:
    """Its sequence ends at the replica."""
    async with open_client(ray_server) as client:
        body = asks("Something long.", max_tokens=1500, stream=True)
        with pytest.raises(httpx.TimeoutException):
            await client.post("/v1/chat/completions", json={**body, "stream": False}, timeout=0.5)
    async with asyncio.timeout(20):
        while sum(  # noqa: ASYNC110  # another process
            ray_server.metric(f'cohort_requests_running{{replica="{one}"}}') for one in ray_server.pids()
        ):
            await asyncio.sleep(0.1)


def test_keys_are_checked_at_the_ingress(ray_server: RayServer) -> None:
    """The administrator's paths do not exist without an admin key, and no part of the command opens Ray to the network."""
    for path in ("/v1/settings", "/v1/requests"):
        assert ray_server.get(path).status_code == 404, path
    for word in ("kill_executor", "load_lora_adapter"):
        assert ray_server.post(f"/v1/{word}", {}).status_code == 404, word
    listening = {(pid, address, port) for pid in ray_server.descendants() for address, port in listeners(pid)}
    assert len(listening) > 5
    # Serve's replicas take calls of other deployments on a port of every interface; it asks for the token of this Ray.
    replicas = set(ray_server.pids().values())
    assert {pid for pid, address, _ in listening if address not in LOOPBACK} <= replicas


def test_ray_asks_for_its_token(ray_server: RayServer) -> None:
    """A process that does not know the token gets nothing from the port that a replica opens."""
    import grpc

    [(port, *_), *_] = [
        [port for address, port in listeners(pid) if address not in LOOPBACK]
        for pid in ray_server.pids().values()
    ]
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=10)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED, refused.value
