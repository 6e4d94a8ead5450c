"""Who must not notice: the same requests again and again, each answer compared with the undisturbed one, bit for bit."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.hostile.case import VICTIM_KEY

SEEDED = {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 1.0, "seed": 17, "ignore_eos": True}
GREEDY = {
    "messages": [{"role": "user", "content": "Count from 3 to 9."}],
    "max_tokens": 40, "temperature": 0, "logprobs": True, "top_logprobs": 5,
}  # fmt: skip
CALLS = (("/v1/completions", SEEDED), ("/v1/chat/completions", GREEDY))


@dataclass
class Victims:
    """One writer: the tasks that ask."""

    rounds: int = 0
    faults: list[str] = field(default_factory=list)
    heard: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """The undisturbed answers by path: text, token ids, finish reason, logprobs."""


@asynccontextmanager
async def victims(url: str) -> AsyncIterator[Victims]:
    """Both run until the end of the block; the first answers are the undisturbed ones."""
    seen, stop = Victims(), asyncio.Event()
    async with httpx.AsyncClient(
        base_url=url, headers={"Authorization": f"Bearer {VICTIM_KEY}"}, timeout=60
    ) as client:
        for path, body in CALLS:
            seen.heard[path] = await _ask(client, path, body)
            assert await _ask(client, path, body) == seen.heard[path], "the server is not deterministic"
        tasks = [asyncio.create_task(_again(client, path, body, seen, stop)) for path, body in CALLS]
        try:
            yield seen
        finally:
            stop.set()
            await asyncio.gather(*tasks)


async def _again(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], seen: Victims, stop: asyncio.Event
) -> None:
    while not stop.is_set():
        try:
            if (found := await _ask(client, path, body)) != seen.heard[path]:
                seen.faults.append(f"{found} instead of {seen.heard[path]}")
        except Exception as error:  # to be seen at the end, not to end the campaign
            seen.faults.append(repr(error))
        seen.rounds += 1


async def _ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[Any, ...]:
    text, ids, logprobs, finish = "", [], [], None
    async with client.stream(
        "POST", path, json={**body, "stream": True, "return_token_ids": True}
    ) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
                ids += choice.get("token_ids") or []
                logprobs += (choice.get("logprobs") or {}).get("content") or []
                finish = choice.get("finish_reason") or finish
    assert ids and finish
    return text, ids, finish, logprobs
