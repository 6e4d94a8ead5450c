"""Memory that one request's step takes costs that request its answer, and nobody else anything but time."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.cgroups import limited
from tests.e2e.conftest import ECHO
from tests.e2e.glutton_executor import GLUTTON
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.timeout(120), pytest.mark.long]

EXECUTORS = __name__.replace("test_out_of_memory", "glutton_executor")
NEIGHBOURS = 6


async def answers(url: str, *seeds: int) -> list[httpx.Response]:
    """All at once, so that they are in one step."""
    async with httpx.AsyncClient(base_url=url, timeout=90) as client:

        async def one(seed: int) -> httpx.Response:
            body: dict[str, Any] = {
                "prompt": f"Story {seed}",
                "max_tokens": 60,
                "ignore_eos": True,
                "seed": seed,
            }
            return await client.post("/v1/completions", json=body)

        return list(await asyncio.gather(*map(one, seeds)))


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


async def _only_the_glutton_fails(server: ServerProcess) -> httpx.Response:
    seeds = range(NEIGHBOURS)
    undisturbed = [text(one) for one in await answers(server.url, *seeds)]
    *neighbours, glutton = await answers(server.url, *seeds, GLUTTON)
    assert [text(one) for one in neighbours] == undisturbed
    assert glutton.status_code == 500
    assert server.metric('cohort_requests_total{outcome="error"}') == 1
    server.wait_until("/ready", 200)
    [again] = await answers(server.url, 0)
    assert text(again) == undisturbed[0]
    return glutton


async def test_an_allocation_that_fails_is_a_failed_step_and_the_process_lives(tmp_path: Path) -> None:
    """torch says "DefaultCPUAllocator: can't allocate memory", which is no death: the step is tried again, then the suspects
    one by one."""
    args = ["--executor", f"{EXECUTORS}:AskingFactory", "--deterministic", "--kv-cache-memory-bytes", "16MiB"]
    with ServerProcess(args, tmp_path) as server:
        [child] = server.children()
        glutton = await _only_the_glutton_fails(server)
        assert glutton.json()["error"]["code"] == "out_of_memory"
        assert "DefaultCPUAllocator" in server.log()
        assert server.children() == [child]


async def test_memory_that_is_really_taken_ends_the_executor_and_then_the_culprit(
    tokenizer_dir: Path, tmp_path: Path
) -> None:
    """In a container allocations do not fail, pages run out: the executor ends itself, is restarted, and who was in each of
    those steps is computed alone, and answered with an error."""
    args = [str(tokenizer_dir), "--executor", f"{EXECUTORS}:TakingFactory", *ECHO[2:]]
    with limited(640 << 20, 2.0) as box, ServerProcess(args, tmp_path, enter=box.enter) as server:
        glutton = await _only_the_glutton_fails(server)
        assert glutton.json()["error"]["code"] == "executor_died"
        # The answer does not wait for the last restart.
        for _ in range(100):
            if (restarts := server.metric('cohort_executor_restarts_total{cause="memory"}')) == 3:
                break
            await asyncio.sleep(0.1)
        assert restarts == 3


async def test_the_kernels_kill_is_called_by_its_name(tokenizer_dir: Path, tmp_path: Path) -> None:
    """Below 512 MiB nothing is watched from inside, and the kernel kills. Any other SIGKILL stays one."""
    args = [str(tokenizer_dir), "--executor", f"{EXECUTORS}:TakingFactory", *ECHO[2:]]
    with limited(400 << 20, 2.0) as box, ServerProcess(args, tmp_path, enter=box.enter) as server:
        [child] = server.children()
        os.kill(child, signal.SIGKILL)
        server.wait_until("/ready", 200)
        for _ in range(100):
            if "killed by SIGKILL" in server.log():
                break
            await asyncio.sleep(0.05)
        assert "killed by SIGKILL" in server.log() and "out-of-memory killer" not in server.log()
        assert server.metric('cohort_executor_restarts_total{cause="signal"}') == 1
        # Not to the third death, which answers the request: near the limit the kernel drops the code of all processes first.
        asking = asyncio.create_task(answers(server.url, GLUTTON))
        for _ in range(600):
            if "out-of-memory killer" in server.log():
                break
            await asyncio.sleep(0.05)
        asking.cancel()
        killer = "killed by the kernel's out-of-memory killer (SIGKILL): the container's limit is 400 MiB"
        assert killer in server.log()
        server.kill()
