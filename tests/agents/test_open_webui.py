"""Open WebUI's calls on its connections, written as its source sends them, against a server of two models.

It reads lists and answers as the functions below do: a list's names join with those of the loaded models, a task's answer is one
message, and a stream of Ollama's API ends with the figures that it shows.
"""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import httpx

from tests.agents.recording import RECORDED
from tests.server.models.several_house import SeveralHouse

CALLS: dict[str, Any] = json.loads((RECORDED / "open_webui.json").read_text("utf-8"))
KEY = {"authorization": "Bearer sk-open-webui"}
ANSWER = "Hello!"


def house() -> SeveralHouse:
    """Two models, and an adapter for one of them."""
    return SeveralHouse(["chat", "embed"], loras={"chat": {"chat-fr": "/loras/fr"}})


async def send(client: httpx.AsyncClient, connection: str, step: str) -> list[httpx.Response]:
    """Send the calls of a step; each is answered with 200."""
    answers = []
    for one in CALLS[connection][step]:
        response = await client.request(
            one["method"], one["path"], json=one.get("body"), headers=CALLS["headers"] | KEY
        )
        assert response.status_code == 200, (one, response.text)
        answers.append(response)
    return answers


def state_of(card: dict[str, Any]) -> bool | None:
    """What it shows of a model on a connection to llama.cpp: loaded, not loaded, unknown."""
    return {"loaded": True, "sleeping": True, "loading": False, "unloaded": False}.get(
        card["status"]["value"]
    )


async def test_the_connection_to_ollama() -> None:
    several = house()
    async with several.client() as client:
        [version] = await send(client, "ollama", "check")
        assert [int(part) for part in version.json()["version"].split(".")]

        tags, loaded = await send(client, "ollama", "list")
        names = {one["model"] for one in tags.json()["models"]}
        assert names == {"chat:latest", "chat-fr:latest", "embed:latest"} and not loaded.json()["models"]

        [shown] = await send(client, "ollama", "show")
        assert shown.json()["capabilities"] and not several.table.entries["chat"].num_loads, (
            "it loads nothing"
        )

        [stream] = await send(client, "ollama", "chat")
        lines = [json.loads(line) for line in stream.text.splitlines()]
        assert "".join(line["message"].get("content", "") for line in lines) == ANSWER
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        for figure in (
            "total_duration",
            "load_duration",
            "prompt_eval_count",
            "prompt_eval_duration",
            "eval_count",
        ):
            assert isinstance(lines[-1][figure], int), figure
        assert lines[-1]["eval_duration"] > 0
        assert stream.headers["x-cohort-ignored"] == "options.num_ctx"

        for task in await send(client, "ollama", "tasks"):
            assert task.headers["content-type"] == "application/json"
            assert task.json()["message"]["content"] == ANSWER and task.json()["done"]

        _, loaded = await send(client, "ollama", "list")
        for one in loaded.json()["models"]:
            assert one["name"] in names
            assert datetime.fromisoformat(one["expires_at"]).timestamp() > 0

        [vectors] = await send(client, "ollama", "embeddings")
        assert len(vectors.json()["embeddings"]) == 2

        [ended] = await send(client, "ollama", "eject")
        assert ended.headers["content-type"] == "application/json" and ended.json()["done_reason"] == "unload"
        await asyncio.sleep(0.02)
        _, loaded = await send(client, "ollama", "list")
        assert [one["name"] for one in loaded.json()["models"]] == ["embed:latest"]


async def test_the_connection_to_openai() -> None:
    async with house().client() as client:
        [listed] = await send(client, "openai", "check")
        assert [one["id"] for one in listed.json()["data"]] == ["chat", "chat-fr", "embed"]

        [stream] = await send(client, "openai", "chat")
        events = [
            line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: ")
        ]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert (
            "".join(one["choices"][0]["delta"].get("content", "") for one in chunks if one["choices"])
            == ANSWER
        )
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"]
        assert "x-cohort-ignored" not in stream.headers

        for task in await send(client, "openai", "tasks"):
            assert task.json()["choices"][0]["message"]["content"] == ANSWER
        [vectors] = await send(client, "openai", "embeddings")
        assert [one["index"] for one in vectors.json()["data"]] == [0, 1]


async def test_the_connection_to_llama_cpp() -> None:
    async with house().client() as client:

        async def states() -> list[bool | None]:
            [listed] = await send(client, "llama.cpp", "list")
            return [state_of(card) for card in listed.json()["data"]]

        assert await states() == [False, False, False]
        await send(client, "llama.cpp", "load")
        assert await states() == [True, True, False]
        [ended] = await send(client, "llama.cpp", "eject")
        assert ended.json() == {"success": True}
        await asyncio.sleep(0.02)
        assert await states() == [False, False, False]
