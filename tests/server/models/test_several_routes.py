"""Routes of a server of several models: what a client is told of them, and what it hears before its model is there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.apis.base import waiting
from server.http.keys import KeyFileFault, Keys
from server.models.variants import Variant
from tests.server.fakes import error_of
from tests.server.models.several_house import SeveralHouse

MESSAGES = [{"role": "user", "content": "Hi"}]
CALLS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 10},
    "/v1/responses": {"input": "Hi"},
    "/api/chat": {"messages": MESSAGES},
    "/api/generate": {"prompt": "Hi"},
}
"""Bodies of calls that stream."""


async def ask(client: httpx.AsyncClient, model: str | None, **fields: Any) -> httpx.Response:
    body = {"messages": MESSAGES, **({} if model is None else {"model": model}), **fields}
    return await client.post("/v1/chat/completions", json=body)


async def test_models_are_listed_with_their_status() -> None:
    house = SeveralHouse(["chat", "embed"])
    async with house.client() as client:
        house.gates["chat"].clear()
        waiting_call = asyncio.create_task(ask(client, "chat"))
        await asyncio.sleep(0.02)
        house.faults["embed"] = RuntimeError("the disk is gone")
        listed = (await client.get("/models")).json()
        assert {one["id"]: one["status"] for one in listed["data"]} == {
            "chat": {"value": "loading"},
            "embed": {"value": "unloaded"},
        }
        house.gates["chat"].set()
        assert (await waiting_call).status_code == 200
        assert (await ask(client, "embed")).status_code == 503
        listed, same = (await client.get("/models")).json(), (await client.get("/v1/models")).json()
        assert listed == same
        assert {one["id"]: one["status"] for one in listed["data"]} == {
            "chat": {"value": "loaded"},
            "embed": {"value": "failed", "reason": "the disk is gone"},
        }
        assert (await client.post("/models/unload", json={"model": "chat"})).json() == {"success": True}
        await asyncio.sleep(0.02)
        assert (await client.get("/models")).json()["data"][0]["status"] == {"value": "unloaded"}


# -- before the model is there -----------------------------------------------------------------------------------------


class Signs:
    """Signs of life that were sent."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Condition()

    async def sent(self) -> None:
        """Count one."""
        async with self._changed:
            self.count += 1
            self._changed.notify_all()

    async def reach(self, count: int) -> None:
        """Wait until so many were sent."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Signs:
    """They come quickly."""
    monkeypatch.setattr(waiting, "KEEP_ALIVE", 0.02)
    monkeypatch.setattr(waiting, "INTERVAL", 0.02)
    signs, send = Signs(), waiting._WaitingStream._send

    async def counted(self: Any, to: Any, body: bytes, more: bool = True) -> None:
        await send(self, to, body, more)
        if more:
            await signs.sent()

    monkeypatch.setattr(waiting._WaitingStream, "_send", counted)
    return signs


async def stream(client: httpx.AsyncClient, path: str, **headers: str) -> tuple[int, list[str]]:
    """The status and the lines of a streamed call."""
    body = {"model": "chat", "stream": True, **CALLS[path]}
    async with client.stream("POST", path, json=body, headers=headers) as response:
        return response.status_code, [line async for line in response.aiter_lines() if line]


@pytest.mark.parametrize("path", CALLS)
async def test_a_stream_is_kept_alive_until_its_model_is_there(path: str, signs: Signs) -> None:
    house = SeveralHouse(["chat"])
    async with house.client() as client:
        at_once = [line for line in (await stream(client, path))[1] if not line.startswith(":")]
        house.table.unload(house.table.entries["chat"])
        await asyncio.sleep(0.02)
        house.gates["chat"].clear()
        call = asyncio.create_task(stream(client, path))
        await signs.reach(2)
        house.gates["chat"].set()
        status, lines = await call
    assert status == 200
    if path.startswith("/api/"):
        told = [json.loads(line) for line in lines]
        assert all(not one["done"] for one in told[:-1]) and told[-1]["done"]
        assert len(told) >= len(at_once) + 2
        texts = [one.get("response", one.get("message", {}).get("content")) for one in told]
        assert texts[0] == "" and "".join(texts) == "Hello!"
    else:
        comments = [line for line in lines if line.startswith(":")]
        assert len(comments) >= 2 and lines[: len(comments)] == comments == [": keep-alive"] * len(comments)
        assert len(lines) - len(comments) == len(at_once)


@pytest.mark.parametrize("path", CALLS)
async def test_a_load_that_fails_ends_a_stream_that_has_begun(path: str, signs: Signs) -> None:
    house = SeveralHouse(["chat"])
    house.faults["chat"] = RuntimeError("the disk is gone")
    house.gates["chat"].clear()
    async with house.client() as client:
        call = asyncio.create_task(stream(client, path))
        await signs.reach(2)
        house.gates["chat"].set()
        status, lines = await call
        assert status == 200 and "the disk is gone" in "".join(lines[-3:])
        begin = (
            lines[-1] if path.startswith("/api/") else next(one for one in lines if one.startswith("data: "))
        )
        assert json.loads(begin.removeprefix("data: "))["error"]
        assert not house.table.entries["chat"].users


@pytest.mark.parametrize("path", CALLS)
async def test_an_error_before_the_first_sign_of_life_has_its_own_status(path: str) -> None:
    house = SeveralHouse(["chat"])
    house.faults["chat"] = RuntimeError("the disk is gone")
    async with house.client() as client:
        status, lines = await stream(client, path)
        assert status == 503 and "the disk is gone" in lines[0]
        missing = await client.post(path, json={"model": "chart", "stream": True, **CALLS[path]})
        assert missing.status_code == 404 and "Did you mean 'chat'?" in missing.text


async def test_the_console_hears_how_far_the_load_is(signs: Signs) -> None:
    house = SeveralHouse(["chat"])
    house.gates["chat"].clear()
    async with house.client() as client:
        call = asyncio.create_task(stream(client, "/v1/chat/completions", **{"X-Cohort-Progress": "1"}))
        await signs.reach(2)
        house.gates["chat"].set()
        _, lines = await call
    assert json.loads(lines[0].removeprefix(": progress "))["state"] == "loading"


async def test_a_call_that_leaves_while_it_waits_holds_nothing(signs: Signs) -> None:
    house = SeveralHouse(["chat"])
    house.gates["chat"].clear()
    async with house.client() as client:
        call = asyncio.create_task(stream(client, "/v1/chat/completions"))
        await signs.reach(2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await asyncio.sleep(0.02)
        entry = house.table.entries["chat"]
        assert not entry.waiters and not entry.users
        house.gates["chat"].set()


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    path = tmp_path / "keys"
    path.write_text("all key-all\nalice key-alice models=chat,em*\nbob key-bob models=none-of-them\n")
    return Keys(file=str(path), limits=True)


async def test_a_key_knows_its_models_alone(keys: Keys) -> None:
    house = SeveralHouse(["secret", "chat", "embed"], api_keys=keys)
    async with house.client() as client:

        async def names(key: str, path: str = "/v1/models") -> list[str]:
            client.headers["Authorization"] = f"Bearer {key}"
            body = (await client.get(path)).json()
            names = [one.get("id") or one["name"] for one in body.get("data", body.get("models"))]
            return [name.removesuffix(":latest") for name in names]

        assert await names("key-all") == ["secret", "chat", "embed"]
        for path in ("/v1/models", "/models", "/api/tags"):
            assert await names("key-alice", path) == ["chat", "embed"]
        assert await names("key-bob") == []

        client.headers["Authorization"] = "Bearer key-alice"
        assert (await ask(client, "chat")).status_code == 200
        assert (await ask(client, None)).json()["model"] == "chat", "the first that it knows"
        hidden, missing = await ask(client, "secret"), await ask(client, "absent")
        assert hidden.status_code == missing.status_code == 404
        for response in (hidden, missing):
            message = error_of(response)["message"]
            assert message.endswith("This server has: 'chat', 'embed'."), message
        for method, path, body in (
            ("GET", "/v1/models/secret", None),
            ("POST", "/models/load", {"model": "secret"}),
            ("POST", "/models/unload", {"model": "secret"}),
            ("POST", "/api/show", {"model": "secret"}),
            ("POST", "/api/generate", {"model": "secret", "keep_alive": 0}),
            ("POST", "/tokenize", {"model": "secret", "prompt": "Hi"}),
            ("POST", "/v1/embeddings", {"model": "secret", "input": "Hi"}),
            *(("POST", path, {"model": "secret", "stream": True, **body}) for path, body in CALLS.items()),
        ):
            response = await client.request(method, path, json=body)
            assert response.status_code == 404, (method, path, response.text)
            assert "'secret'" not in response.text.replace("The model 'secret' does not exist", "")
        client.headers["Authorization"] = "Bearer key-all"
        await ask(client, "secret")
        assert await names("key-all", "/api/ps") == ["secret", "chat"]
        assert await names("key-alice", "/api/ps") == ["chat"]
        executors = (await client.get("/v1/executors")).json()
        assert "secret" not in json.dumps(executors)
        assert (await ask(client, "secret")).status_code == 404
        client.headers["Authorization"] = "Bearer key-bob"
        assert (await ask(client, None)).status_code == 404


def test_keys_are_limited_where_there_are_several_models_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice key-alice models=chat\n")
    with pytest.raises(KeyFileFault, match="line 1: models= limits clients of several models"):
        Keys(file=str(path))
    path.write_text("alice key-alice models=,\n")
    with pytest.raises(KeyFileFault, match="line 1: models= names no model"):
        Keys(file=str(path), limits=True)
    path.write_text("key-alice models=chat\n")
    [key] = Keys(file=str(path), limits=True).current()
    assert key.models == ("chat",) and key.name == "key-line-1"


# -- variants ----------------------------------------------------------------------------------------------------------


async def test_a_variant_has_other_variables_and_defaults() -> None:
    variant = Variant(name="thinker", template={"enable_thinking": True}, sampling={"temperature": 0.25})
    house = SeveralHouse(["chat"], {"chat": [variant]})
    engine = house.houses["chat"].engine
    async with house.client() as client:
        for name in ("chat", "thinker", "thinker:latest"):
            answer = await ask(client, name)
            assert answer.status_code == 200 and answer.json()["model"] == name
        off = await ask(client, "thinker", chat_template_kwargs={"enable_thinking": False}, temperature=0.5)
        assert off.status_code == 200
        listed = (await client.get("/v1/models")).json()["data"]
        tags = (await client.get("/api/tags")).json()["models"]
    prompts = [bytes(one for one in request.prompts[0] if one < 256) for request in engine.requests]
    assert [prompt.endswith(b"<think>") for prompt in prompts] == [False, True, True, False]
    assert [request.sampling.temperature for request in engine.requests] == [1.0, 0.25, 0.25, 0.5]
    assert [(one["id"], one["parent"]) for one in listed] == [("chat", None), ("thinker", "chat")]
    assert [one["name"] for one in tags] == ["chat:latest", "thinker:latest"]


# -- adapters ----------------------------------------------------------------------------------------------------------


async def test_an_adapter_is_a_model_whose_parent_is_loaded_for_it() -> None:
    house = SeveralHouse(["chat", "embed"], loras={"chat": {"fr": "/loras/fr"}})
    engine = house.houses["chat"].engine
    async with house.client() as client:

        async def cards() -> dict[str, dict[str, Any]]:
            return {one["id"]: one for one in (await client.get("/v1/models")).json()["data"]}

        before = await cards()
        assert list(before) == ["chat", "fr", "embed"]
        assert (before["fr"]["parent"], before["fr"]["root"]) == ("chat", "/loras/fr")
        assert before["fr"]["status"] == before["chat"]["status"] == {"value": "unloaded"}
        assert before["fr"]["aliases"] == [] and before["chat"]["parent"] is None

        for name in ("fr", "fr:latest", "chat"):
            answer = await ask(client, name)
            assert answer.status_code == 200 and answer.json()["model"] == name
        assert [request.adapter for request in engine.requests] == ["fr", "fr", None]

        after = await cards()
        assert after["fr"]["status"] == {"value": "loaded"} and after["fr"]["parent"] == "chat"
        assert after["fr"]["notes"] and "notes" not in after["chat"]
        assert (await client.get("/v1/models/fr")).json() == after["fr"]
        for path in ("/api/tags", "/api/ps"):
            listed = (await client.get(path)).json()["models"]
            parents = {one["name"]: one["details"]["parent_model"] for one in listed}
            assert parents["fr:latest"] == "chat" and parents["chat:latest"] == ""
        shown = (await client.post("/api/show", json={"model": "fr:latest"})).json()
        assert shown["details"]["parent_model"] == "chat" and "FROM fr" in shown["modelfile"]

        assert (await client.post("/models/unload", json={"model": "fr"})).json() == {"success": True}
        await asyncio.sleep(0.02)
        assert (await cards())["chat"]["status"] == {"value": "unloaded"}
        near = await ask(client, "f")
        assert near.status_code == 404 and "Did you mean 'fr'?" in near.text
        refused = await client.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "y"})
        assert refused.status_code in (400, 401, 403)
