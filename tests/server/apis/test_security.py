"""Rules of docs/security.md for the application as a whole: every route, every key, every id."""

from __future__ import annotations

import asyncio
import hmac
import re
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import BaseRoute

from server.http import keys
from server.http.auth import KEYLESS, METRICS
from server.settings.load import SettingsError, load
from tests.server.fakes import House, error_of

KEYS = {"api_keys": ["key-one", "key-two", "key-three"], "metrics_key": "metrics"}
PATHS = {
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/{name:path}", "/v1/executors",
    "/v1/messages", "/v1/messages/count_tokens",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/kill_executor", "/v1/steps", "/v1/settings",
    "/", "/docs", "/console/{path:path}", "/models", "/models/load", "/models/unload",
    "/v1/responses", "/v1/responses/input_tokens", "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel",
    "/v1/responses/{response_id}/input_items", "/v1/requests", "/v1/requests/{request_id}",
    "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score",
    "/api/version", "/api/tags", "/api/ps", "/api/show", "/api/chat", "/api/generate", "/api/embed", "/api/embeddings",
    "/tokenize", "/detokenize", "/tokenizer_info", "/openapi.json", "/live", "/ready", "/health", "/version", "/metrics",
}  # fmt: skip
"""All there are. Those that change the server need a key of their own (`--admin-key`): tests/server/adapters."""


def routes(house: House) -> list[tuple[str, str]]:
    """(method, path) of every route of the application, however it was added."""
    found = []
    waiting: list[BaseRoute] = list(house.app.routes)
    while waiting:
        route = waiting.pop()
        waiting += getattr(route, "routes", None) or getattr(
            getattr(route, "original_router", None), "routes", []
        )
        if (path := getattr(route, "path", None)) and getattr(route, "methods", None):
            found += [(method, path) for method in sorted(route.methods)]  # type: ignore[attr-defined]
    return found


def filled(path: str, name: str = "fake") -> str:
    """The path with a name for each parameter."""
    return re.sub(r"\{[^}]*\}", name, path)


def test_there_are_no_other_routes() -> None:
    assert {path for _, path in routes(House())} == PATHS


async def test_every_route_is_closed_but_the_short_list() -> None:
    house = House(options=KEYS)
    async with house.client() as client:
        for method, path in routes(house):
            for headers in (
                {},
                {"Host": "server/health"},
                {"Host": "/live?"},
                {"Authorization": "Bearer key"},
            ):
                response = await client.request(method, filled(path), headers=headers)
                assert (response.status_code == 401) is (path not in KEYLESS), (method, path, headers)
    assert {"/live", "/ready", "/health", "/version", "/", "/docs"} == KEYLESS and METRICS == "/metrics"


async def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them with each request, by their hashes, whichever fits."""
    compared: list[tuple[bytes, bytes]] = []

    def watched(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return hmac_compare(a, b)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(keys.hmac, "compare_digest", watched)
    house = House(options=KEYS)
    for key, status in (("key-one", 200), ("key-three", 200), ("wrong", 401)):
        compared.clear()
        headers = {"Authorization": f"Bearer {key}"}
        assert (await house.get("/v1/models", headers=headers)).status_code == status
        assert len(compared) == 4, "three of clients, and the admin key of House"
        assert {len(part) for pair in compared for part in pair} == {32}, "hashes, all of one length"


def test_no_middleware_puts_a_queue_between_a_stream_and_its_client() -> None:
    for middleware in House(options=KEYS).app.user_middleware:
        assert isinstance(middleware.cls, type)
        assert not issubclass(middleware.cls, BaseHTTPMiddleware)


async def test_ids_of_clients_are_no_keys() -> None:
    """The same X-Request-Id on requests that run at once: each is answered under an id of its own."""
    house = House()
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    mine = {"X-Request-Id": "mine", "X-Correlation-Id": "mine", "Idempotency-Key": "mine"}
    async with house.client() as client:
        ask = (
            client.post("/v1/chat/completions", json=body | {"request_id": "mine"}, headers=mine)
            for _ in range(8)
        )
        answers = await asyncio.gather(*ask)
    assert {answer.status_code for answer in answers} == {200}
    for ids in (
        {answer.json()["id"] for answer in answers},
        {answer.headers["x-request-id"] for answer in answers},
        {asked.context.request_id for asked in house.engine.requests},
    ):
        assert len(ids) == 8 and not any("mine" in one for one in ids)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_no_template_comes_with_a_request(path: str) -> None:
    house = House()
    text = "{{ cycler.__init__.__globals__ }}"
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "chat_template": text}
    refused = await house.post(path, body)
    assert refused.status_code == 400 and error_of(refused)["param"] == "chat_template"
    del body["chat_template"]
    body["chat_template_kwargs"] = {"chat_template": text, "messages": [], "tools": [{"a": text}]}
    answer = await house.post(path, body)
    assert answer.status_code in (200, 400), answer.text
    assert "__globals__" not in answer.text or text in answer.text, "nothing of it was rendered"


async def salts(house: House, *asked: tuple[str, str | None]) -> list[str | None]:
    """What requests of (key, own salt) share their prefixes by."""
    async with house.client() as client:
        for key, salt in asked:
            headers = {"Authorization": f"Bearer {key}"}
            more = {} if salt is None else {"cache_salt": salt}
            for path, body in (
                ("/v1/completions", {"prompt": "Hi"}),
                ("/v1/embeddings", {"input": "Hi"}),
            ):
                assert (await client.post(path, json=body | more, headers=headers)).status_code == 200
    texts = [one.context.cache_salt for one in house.engine.requests]
    assert [one.context.cache_salt for one in house.engine.embedded] == texts
    return texts


async def test_a_salt_per_key() -> None:
    house = House(options=KEYS)
    assert house.state.model is not None
    plain = await salts(house, ("key-one", None), ("key-two", None), ("key-one", "s"))
    assert plain == [None, None, "s"]
    house = House(options=KEYS)
    assert house.state.model is not None
    object.__setattr__(house.state.model, "salt_per_key", True)
    one, other, again, salted, others = await salts(
        house,
        ("key-one", None),
        ("key-two", None),
        ("key-one", None),
        ("key-one", "s"),
        ("key-two", "s"),
    )
    assert one == again
    assert len({one, other, salted, others}) == 4
    [imitation] = (await salts(House(options=KEYS), ("key-two", other)))[:1]
    assert imitation == other, "without the option a salt is taken as it is"
    pretended = (await salts(house, ("key-two", one)))[-1]
    assert pretended not in (one, other, salted), "nobody's own salt is another key's"


def test_a_salt_per_key_needs_keys() -> None:
    with pytest.raises(SettingsError, match="no effect without --api-key"):
        load({"cache_salt_per_key": True}, {})
    assert load({"cache_salt_per_key": True, "api_key": ["a"]}, {})[0].cache_salt_per_key


def test_every_route_is_one_of_ours() -> None:
    """The walk sees routes that a router brings along."""
    house = House()
    house.app.router.routes.append(APIRoute("/admin/reload", lambda: None, methods=["POST"]))
    assert ("POST", "/admin/reload") in routes(house)
