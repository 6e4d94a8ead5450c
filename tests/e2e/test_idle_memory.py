"""What a server at rest holds: KV is memory from its first use until some time after its last."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from executors.cgroup import cgroup_memory
from tests.e2e.checkpoints import write_model
from tests.e2e.server_process import ServerProcess

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.long,
    pytest.mark.skipif(
        bool(cgroup_memory()), reason="a container's limit makes the server take its KV at the start"
    ),
]

MIB = 1 << 20
BURST = 28
"""Streams: what they write is more than what is kept, with all that is not counted."""
SHAPE = {"num_hidden_layers": 4, "num_key_value_heads": 8, "num_attention_heads": 8, "head_dim": 128}
BYTES_PER_TOKEN = 2 * 4 * 8 * 128 * 4
"""Keys and values of four layers in float32: 32 KiB. 64 sequences of 512 tokens: 1 GiB."""
KEPT = 256 * MIB
"""Of free KV, where the weights take less."""
SPAN = 8 * 2 * MIB
"""A large page of the keys and of the values of each layer."""
LEAST = [*("--load-format", "dummy"), *("--max-num-seqs", "64")]


def resident(server: ServerProcess) -> int:
    """Bytes that the server and its children hold, what they share counted once (PSS)."""
    total = 0
    for pid in server.processes():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total


async def burst(url: str, streams: int) -> list[str]:
    """The texts of so many answers at once, of about 480 tokens each with their prompts."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one(number: int) -> str:
            body = {
                "prompt": f"Story {number}: " + "x" * 440,
                "max_tokens": 24,
                "ignore_eos": True,
                "temperature": 0,
            }
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["text"])

        return await asyncio.gather(*(one(i) for i in range(streams)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), **SHAPE)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that takes KV as it is used."""
    with ServerProcess([str(model), *LEAST], tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def start(server: ServerProcess) -> int:
    """What it holds before the first request."""
    time.sleep(1)  # whatever works in the background after a start
    return resident(server)


def wait_until_given_back(server: ServerProcess, start: int) -> None:
    """Until no more is held than what free KV keeps, and what allocators keep of a full step."""
    deadline = time.monotonic() + 60
    most = start + KEPT + SPAN + 64 * MIB
    while resident(server) > most:
        assert time.monotonic() < deadline, f"{resident(server) // MIB} MiB, {most // MIB} at most"
        time.sleep(0.5)


@pytest.mark.long(extended=True)
def test_memory_is_taken_by_a_burst_and_given_back_after_it(server: ServerProcess, start: int) -> None:
    assert start < 512 * MIB
    assert f"kv_bytes={1 << 30}" in server.log() and "taken as it is used" in server.log()
    assert server.metric("cohort_executor_memory_allocated_bytes") >= 1 << 30, "the guard counts all of it"

    texts = asyncio.run(burst(server.url, BURST))
    written = BURST * 464 * BYTES_PER_TOKEN
    assert resident(server) - start > 0.9 * written
    wait_until_given_back(server, start)
    time.sleep(1)
    assert resident(server) > start + KEPT // 2, "some of it is kept for the next request"

    # The last ones' prefixes are found, the first ones' are gone, and all are computed as before.
    assert asyncio.run(burst(server.url, BURST)) == texts
    assert server.metric("cohort_kv_blocks_used") == 0
    assert server.get("/health").json() == {"status": "ready"}


def test_the_next_life_of_the_executor_takes_memory_on_demand_too(server: ServerProcess, start: int) -> None:
    """It has what it adopts of a burst before, until that is given back as well."""
    assert start < 512 * MIB
    before = resident(server)
    (executor,) = server.children()
    os.kill(executor, signal.SIGKILL)
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status_code == 200
    assert server.children() != [executor]
    time.sleep(1)
    assert resident(server) < before + 128 * MIB
    wait_until_given_back(server, start)


@pytest.mark.long(extended=True)
def test_a_pool_of_a_given_size_is_taken_at_the_start(model: Path, tmp_path: Path) -> None:
    args = [str(model), *LEAST, "--kv-cache-memory-bytes", "600MiB"]
    with ServerProcess(args, tmp_path) as server:
        assert f"kv_bytes={600 * MIB}" in server.log() and "reserved at the start" in server.log()
        deadline = time.monotonic() + 20
        while resident(server) < 650 * MIB:
            assert time.monotonic() < deadline, f"{resident(server) // MIB} MiB"
            time.sleep(0.2)
