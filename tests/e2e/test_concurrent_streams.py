"""64 streams at once over HTTP, of random lengths, some left early, on a KV pool too small for them all."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import httpx

from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess


async def test_concurrent_streams(tokenizer_dir: Path, tmp_path: Path) -> None:
    options = ["--executor", "paged_fake", *ECHO[2:], "--executor-option", "num_blocks=64"]
    with ServerProcess([str(tokenizer_dir), *options], tmp_path) as server:
        rng = random.Random(3)
        async with httpx.AsyncClient(
            base_url=server.url, timeout=60, limits=httpx.Limits(max_connections=None)
        ) as client:
            asks = [(rng.randrange(1, 120), rng.random() < 0.25) for _ in range(64)]
            got = await asyncio.gather(*(_stream(client, i, *ask) for i, ask in enumerate(asks)))
        for (length, leaves), count in zip(asks, got, strict=True):
            assert leaves or count == length
        for _ in range(100):
            if server.metric("cohort_kv_blocks_used") == 0:
                break
            await asyncio.sleep(0.05)
        assert server.metric("cohort_kv_blocks_used") == 0
        assert server.metric("cohort_requests_running") == server.metric("cohort_requests_waiting") == 0
        assert server.metric("cohort_preemptions_total") > 0, "the pool was meant to be too small"
        assert server.get("/health").json() == {"status": "ready"}


async def _stream(client: httpx.AsyncClient, seed: int, length: int, leaves: bool) -> int:
    """Tokens that came; a client that leaves does so half way."""
    body = {
        "prompt": "x" * (1 + seed % 50), "max_tokens": length, "seed": seed, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip
    count, last = 0, ""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                count = json.loads(line[6:])["usage"]["completion_tokens"]
            if leaves and count >= length / 2:
                return count
            last = line or last
    assert last == "data: [DONE]"
    return count
