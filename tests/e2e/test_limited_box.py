"""Inside a container's limits: 2 GiB and one CPU, as a cgroup sets them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.e2e.cgroups import limited
from tests.e2e.checkpoints import write_model
from tests.e2e.conftest import ECHO
from tests.e2e.hungry_executor import MIB_PER_STEP
from tests.e2e.server_process import ServerProcess
from tests.tiny_model import BYTES_PER_TOKEN

pytestmark = [pytest.mark.timeout(180), pytest.mark.long]

GIB = 1 << 30
MIB = 1 << 20
SMALL_POOL = ["cohort-tiny", "--kv-cache-memory-bytes", "40MiB"]
"""Two rounds of 64 streams write all of it; with the usual pool that takes a minute on one CPU."""


async def _round(url: str, streams: int, tokens: int) -> int:
    """Tokens of `streams` answers at once."""
    async with httpx.AsyncClient(
        base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)
    ) as client:

        async def one(number: int) -> int:
            body = {
                "prompt": f"Story {number}: " + "x" * (7 * number),
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            response = await client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            return int(response.json()["usage"]["completion_tokens"])

        return sum(await asyncio.gather(*(one(i) for i in range(streams))))


async def test_cohort_tiny_serves_64_streams_within_2_gib_and_one_cpu(tmp_path: Path) -> None:
    with (
        limited(2 * GIB, 1.0) as box,
        ServerProcess(SMALL_POOL, tmp_path, enter=box.enter, ready_within=120) as server,
    ):
        server.wait_until_ready()
        assert server.metric("cohort_executor_memory_limit_bytes") == 2 * GIB
        # The budget: what is there at the start, the KV pool, whose pages become memory when first written, and room for
        # full steps, requests and what allocators keep of them.
        tokens = int(server.log().split("kv_tokens=")[1].split()[0])
        budget = box.used_bytes() + tokens * BYTES_PER_TOKEN + 192 * MIB
        assert budget < GIB
        used = []
        for _ in range(5):
            assert await _round(server.url, 64, 60) == 64 * 60
            used.append(box.used_bytes())
        assert max(used) < budget, (budget // MIB, [one // MIB for one in used])
        assert used[4] - used[3] < 24 * MIB, [
            one // MIB for one in used
        ]  # every block has been written by then
        assert server.metric('cohort_executor_restarts_total{cause="memory"}') == 0
        assert server.metric("cohort_kv_blocks_used") == 0
        assert server.get("/health").json() == {"status": "ready"}


@pytest.mark.long(extended=True)
async def test_a_kv_pool_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with limited(2 * GIB, 1.0) as box:
        server = ServerProcess(["cohort-tiny", "--max-num-seqs", "100000"], tmp_path, enter=box.enter)
        assert server.process.wait(60) == 2
        line = server.log().splitlines()[-1]
        assert "max_num_seqs is 100000; at most 65536 is supported" in line, line


async def test_the_executor_ends_itself_before_the_limit_and_says_so(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    executor = f"{__name__.replace('test_limited_box', 'hungry_executor')}:HungryFactory"
    args = [str(tokenizer_dir), "--executor", executor, *ECHO[2:], "--served-model-name", "hungry"]
    args += ["--executor-option", "step_delay_ms=4"]  # on a busy machine whoever watches comes late, too
    with limited(GIB, 2.0) as box, ServerProcess(args, tmp_path, enter=box.enter) as server:
        server.wait_until_ready()
        steps = GIB // (MIB_PER_STEP * MIB)
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            body = {"prompt": "x", "max_tokens": steps, "ignore_eos": True}
            response = await client.post("/v1/completions", json=body)
        # The request that was running when it ended went on in its next life.
        assert response.status_code == 200, response.text
        assert response.json()["usage"]["completion_tokens"] == steps
        server.wait_until("/ready", 200)
        assert server.metric('cohort_executor_restarts_total{cause="memory"}') == 1
        assert "MiB are in use" in server.log()


async def test_a_context_of_a_million_tokens_costs_no_memory_that_is_not_used(tmp_path: Path) -> None:
    folder = write_model(tmp_path, max_position_embeddings=1_010_000)
    args = [str(folder), "--load-format", "dummy"]
    with limited(GIB, 2.0) as box, ServerProcess(args, tmp_path, enter=box.enter) as server:
        server.wait_until_ready()
        assert box.used_bytes() < 700 * MIB
        assert await _round(server.url, 4, 20) == 80
