"""The executor dies while requests of every kind use LoRA adapters, more than are held at once, with drafts of n-grams."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chaos.asked import kinds
from tests.chaos.client import Stream, another_pid, answers, check, executor_pid, gone, open_client
from tests.chaos.conftest import EXACT
from tests.e2e.server_process import ServerProcess
from tests.e2e.tiny_loras import write

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

NAMES = ("cohort-tiny", "a", "b", "c")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("adapters")
    modules = [f"{name}={write(folder / name, seed, rank=4)}" for seed, name in enumerate(NAMES[1:])]
    args = ["cohort-tiny", *EXACT, "--max-loras", "2", "--num-speculative-tokens", "3"]
    args += ["--lora-modules", *modules]
    with ServerProcess(args, tmp_path_factory.mktemp("server")) as running:
        yield running


def asked() -> list[dict[str, Any]]:
    """Every kind, under each name in turn, and the seeded ones under all names."""
    bodies = list(kinds().values())
    mixed = [{**body, "model": NAMES[number % len(NAMES)]} for number, body in enumerate(bodies)]
    return mixed + [{**bodies[1], "model": name} for name in NAMES]


async def test_no_stream_notices_a_kill(server: ServerProcess) -> None:
    """Grammars, forks, logprobs, penalties and stop strings with adapters go on where they were; a name keeps its adapter.
    What is expected came without drafts and without a kill."""
    bodies = asked()
    expected = await answers(server, [{**body, "speculative": False} for body in bodies])
    accepted = "cohort_spec_decode_num_accepted_tokens_total"
    assert server.metric(accepted) == 0
    said = {stream.choices[0].text for stream in expected[-len(NAMES) :]}
    assert len(said) == len(NAMES), "each adapter says something else"
    for tokens in (1, 7, 23):
        streams = [Stream(body) for body in bodies]
        async with open_client(server) as client:
            tasks = [asyncio.create_task(stream.run(client)) for stream in streams]
            await streams[-1].reaches(tokens)
            pid = await asyncio.to_thread(executor_pid, server)
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            await another_pid(server, pid)
            await asyncio.gather(*tasks)
        check(expected, streams, f"killed at token {tokens}")
    assert server.metric(accepted) > 50


async def test_others_may_come_while_the_executor_is_away(server: ServerProcess) -> None:
    """More adapters than there is room for wait beside streams that resume: neither takes the other's weights."""
    body = {**kinds()["seeded"], "model": "a"}
    [expected] = await answers(server, [body])
    streams = [Stream({**body, "cache_salt": str(number)}) for number in range(6)]
    async with open_client(server) as client:
        tasks = [asyncio.create_task(stream.run(client)) for stream in streams]
        await asyncio.gather(*(stream.reaches(2) for stream in streams))
        pid = await asyncio.to_thread(executor_pid, server)
        os.kill(pid, signal.SIGKILL)
        others = [Stream({**body, "model": name}) for name in ("b", "c") for _ in range(3)]
        tasks += [asyncio.create_task(stream.run(client)) for stream in others]
        await another_pid(server, pid)
        await asyncio.gather(*tasks)
    check([expected] * 6, streams, "beside waiting adapters")
    assert all(stream.error is None for stream in others)
