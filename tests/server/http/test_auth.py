"""API keys: closed by default, open only where the design says so."""

from collections.abc import MutableMapping
from typing import Any

import pytest

from engine.errors import DeadlinePassed
from server.apis import dialects
from server.apis.base.dialect import Dialect
from server.http.form import Form, plain_error
from tests.server.fakes import House, error_of

KEYS = {"api_keys": ["key-one", "schlüssel"]}
KEYLESS = ["/live", "/ready", "/health", "/version", "/metrics", "/", "/docs", "/console/app.js"]
PROTECTED = [
    "/v1/models", "/v1/models/fake", "/openapi.json", "/nope", "/v1/", "/x//health", "/docs//", "/console//",
    "/console/nope.js", "/consoles/app.js", "/health/", "/Health",
    "/metrics/", "/v1/chat/completions", "/tokenize", "/live/x",
]  # fmt: skip


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", KEYLESS)
async def test_keyless_paths(path: str) -> None:
    assert (await House(options=KEYS).get(path)).status_code == 200


@pytest.mark.parametrize("path", PROTECTED)
async def test_everything_else_wants_a_key(path: str) -> None:
    house = House(options=KEYS)
    response = await house.get(path)
    assert response.status_code == 401
    assert error_of(response) == {
        "message": "Give a valid API key: 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        bearer("key"), bearer("key-one2"), bearer(""), {"Authorization": "key-one"}, {"Authorization": "Basic key-one"},
        {"Authorization": ""}, {"api-key": "key-one"}, {"Host": "x/health", "X-Forwarded-Path": "/health"},
    ],
)  # fmt: skip
async def test_wrong_keys(headers: dict[str, str]) -> None:
    assert (await House(options=KEYS).get("/v1/models", headers=headers)).status_code == 401


async def test_right_keys() -> None:
    house = House(options=KEYS)
    assert (await house.get("/v1/models", headers=bearer("key-one"))).status_code == 200
    assert (await house.get("/v1/models", headers={"Authorization": "bearer key-one"})).status_code == 200
    for sent, status in (
        ("schlüssel".encode(), 200),
        ("schlüssel".encode("latin-1"), 401),
        (b"\xff\xfe", 401),
    ):
        raw = {"Authorization": b"Bearer " + sent}
        assert (await house.get("/v1/models", headers=raw)).status_code == status


async def test_anthropics_header_counts_without_the_other() -> None:
    house = House(options=KEYS)
    for path in ("/v1/models", "/v1/messages"):
        for key, right in (("key-one", True), (" key-one ", True), ("key", False), ("", False)):
            status = (await house.get(path, headers={"x-api-key": key})).status_code
            assert (status != 401) is right, (path, key)
    twice = [("x-api-key", "key-one"), ("x-api-key", "key-one")]
    assert (await house.get("/v1/models", headers=twice)).status_code == 401
    for wrong in ("Bearer wrong", "Basic key-one", ""):
        headers = {"x-api-key": "key-one", "Authorization": wrong}
        assert (await house.get("/v1/models", headers=headers)).status_code == 401


async def test_a_header_of_the_path_s_own_api(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form(lambda path: path == "/v1/models", plain_error, key_header="x-own-key")
    own = Dialect(package=__name__, routers=(), form=form)
    monkeypatch.setattr(dialects, "DIALECTS", (*dialects.DIALECTS, own))
    house = House(options=KEYS)
    own_key = {"x-own-key": "key-one"}
    for headers, status in (
        (own_key, 200),
        ({"x-api-key": "key-one"}, 200),
        ({**own_key, "x-api-key": "wrong"}, 200),
        ({"x-own-key": "wrong", "x-api-key": "key-one"}, 401),
        ({**own_key, **bearer("wrong")}, 401),
        ([("x-own-key", "key-one"), ("x-own-key", "key-one")], 401),
    ):
        response = await house.get("/v1/models", headers=headers)
        assert response.status_code == status, headers
        if status == 401:
            assert error_of(response)["message"].endswith("or 'x-own-key: KEY'.")
    assert (await house.get("/v1/models/fake", headers=own_key)).status_code == 401, "another API's path"


async def test_no_body_is_read_without_a_key() -> None:
    house = House(options=KEYS)
    async with house.client() as client:
        response = await client.post("/v1/chat/completions", content=b"{")
    assert response.status_code == 401


async def test_metrics_key_closes_metrics_only() -> None:
    house = House(options={"metrics_key": "m"})
    assert (await house.get("/metrics")).status_code == 401
    assert (await house.get("/metrics", headers=bearer("m"))).status_code == 200
    assert (await house.get("/v1/models")).status_code == 200
    both = House(options={**KEYS, "metrics_key": "m"})
    assert (await both.get("/metrics", headers=bearer("key-one"))).status_code == 401
    assert (await both.get("/v1/models", headers=bearer("m"))).status_code == 401


async def test_without_keys_everything_is_open(house: House) -> None:
    assert (await house.get("/v1/models")).status_code == 200


async def test_two_keys_are_none() -> None:
    house = House(options=KEYS)
    good = ("Authorization", "Bearer key-one")
    for other in ("Bearer key-one", "Bearer wrong", ""):
        for headers in ([good, ("Authorization", other)], [("Authorization", other), good]):
            assert (await house.get("/v1/models", headers=headers)).status_code == 401
    assert (await house.get("/v1/models", headers=[good, ("X-Api-Key", "wrong")])).status_code == 200
    both = {"Authorization": "Bearer key-one, Bearer wrong"}
    assert (await house.get("/v1/models", headers=both)).status_code == 401


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND"])
async def test_every_method_wants_a_key(method: str) -> None:
    house = House(options=KEYS)
    async with house.client() as client:
        for path in ("/v1/models", "/v1/chat/completions", "/openapi.json", "/nope"):
            response = await client.request(method, path)
            assert response.status_code == 401, (method, path)
            assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "path",
    [
        "/v1%2Fmodels", "/%76%31/models", "/v1/models%00", "/v1/models/..%2f..%2fhealth", "/health/../v1/models",
        "/health%2f..%2fv1%2fmodels", "/%2e/v1/models", "/health;/v1/models", "/health%20", "/health%0a", "//v1/models",
        "/v1/models?/health", "/v1/models%ff", "/metrics%2f",
    ],
)  # fmt: skip
async def test_no_spelling_of_a_path_gets_around_the_key(path: str) -> None:
    house = House(options=KEYS)
    async with house.client() as client:
        response = await client.get("http://server" + path, headers={"Host": "health"})
    assert response.status_code == 401, response.text


@pytest.mark.parametrize("path", ["/%68ealth", "/health?x=/v1/models", "/health?"])
async def test_another_spelling_of_an_open_path_is_that_path(path: str) -> None:
    assert (await House(options=KEYS).get(path)).status_code == 200


async def test_a_websocket_is_closed() -> None:
    house = House(options=KEYS)
    sent = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    await house.app({"type": "websocket", "path": "/health", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_neither_host_nor_forwarded_headers_matter() -> None:
    house = House(options=KEYS)
    games = {
        "Host": "x/health?", "X-Forwarded-Host": "localhost", "X-Forwarded-For": "127.0.0.1", "X-Original-URL": "/health",
        "X-Rewrite-URL": "/health", "Forwarded": "for=127.0.0.1", "X-HTTP-Method-Override": "GET",
        "x-request-id": "mine",
    }  # fmt: skip
    response = await house.get("/v1/models", headers=games)
    assert response.status_code == 401
    assert response.headers["x-request-id"] != "mine"
    assert response.headers.get_list("x-request-id") == [response.headers["x-request-id"]]


async def test_a_key_is_a_tenant_and_none_is_nobody() -> None:
    house = House(options=KEYS)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    async with house.client() as client:
        for key in ("key-one", "schlüssel", "key-one"):
            headers = {b"authorization": b"Bearer " + key.encode()}
            assert (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
        assert (await client.post("/v1/embeddings", json={"input": "a"}, headers=headers)).status_code == 200
    one, two, again = (asked.context.tenant for asked in house.engine.requests)
    assert one == again != two
    assert one and two and "key" not in one, "something of the key's hash"
    assert house.engine.embedded[0].context.tenant == one
    plain = House()
    await plain.chat()
    assert plain.engine.requests[0].context.tenant == ""


async def test_a_deadline_reaches_the_engine() -> None:
    house = House()
    assert (await house.chat(deadline_ms=250)).status_code == 200
    context = house.engine.requests[0].context
    assert context.deadline == context.arrival_time + 0.25
    for wrong in (0, -1, 1.5, "1", True):
        response = await house.chat(deadline_ms=wrong)
        assert response.status_code == 400 and response.json()["error"]["param"] == "deadline_ms", wrong
    house.engine.refusal = DeadlinePassed("too late", 7)
    response = await house.chat(deadline_ms=1)
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert response.json()["error"]["code"] == "deadline_exceeded"


ADMINS = {**KEYS, "admin_key": "root"}
CLIENTS_PATHS = ["/v1/models", "/openapi.json", "/api/tags", "/api/ps", "/v1/models/fake"]


@pytest.mark.parametrize("path", CLIENTS_PATHS)
async def test_the_admin_key_opens_what_a_client_key_opens(path: str) -> None:
    house = House(options=ADMINS)
    for headers in (bearer("root"), {"x-api-key": "root"}, bearer("key-one")):
        assert (await house.get(path, headers=headers)).status_code == 200, headers
    for headers in (bearer("roo"), bearer("rootkey-one"), {"x-api-key": "roots"}):
        assert (await house.get(path, headers=headers)).status_code == 401, headers
    assert (await house.get("/nope", headers=bearer("root"))).status_code == 404


async def test_the_admin_key_in_every_api() -> None:
    house = House(options=ADMINS)
    turns = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    calls = {
        "/v1/chat/completions": turns,
        "/v1/completions": {"model": "fake", "prompt": "Hi"},
        "/v1/responses": {"model": "fake", "input": "Hi"},
        "/v1/messages": {**turns, "max_tokens": 5},
        "/api/chat": {**turns, "stream": False},
        "/api/generate": {"model": "fake", "prompt": "Hi", "stream": False},
    }
    async with house.client() as client:
        for path, body in calls.items():
            for headers in (bearer("root"), {"x-api-key": "root"}):
                response = await client.post(path, json=body, headers=headers)
                assert response.status_code == 200, (path, response.text)
            assert (await client.post(path, json=body)).status_code == 401


async def test_a_client_key_opens_no_path_of_the_admin() -> None:
    house = House(options=ADMINS)
    for path in ("/v1/settings", "/v1/requests", "/v1/steps"):
        assert (await house.get(path, headers=bearer("key-one"))).status_code == 401
    for path in ("/v1/settings", "/v1/requests"):
        assert (await house.get(path, headers=bearer("root"))).status_code == 200


async def test_the_admin_is_a_tenant_of_its_own_name() -> None:
    house = House(options=ADMINS)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    async with house.client() as client:
        for key in ("key-one", "root"):
            assert (
                await client.post("/v1/chat/completions", json=body, headers=bearer(key))
            ).status_code == 200
    client_context, admin_context = (asked.context for asked in house.engine.requests)
    assert (client_context.key_name, admin_context.key_name) == ("key-1", "admin-1")
    assert client_context.tenant != admin_context.tenant


async def test_an_admin_key_alone_closes_nothing() -> None:
    house = House(options={"admin_key": "root"})
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    async with house.client() as client:
        for headers in ({}, bearer("wrong"), bearer("root")):
            response = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == 200
    assert {(asked.context.key_name, asked.context.tenant) for asked in house.engine.requests} == {("", "")}
    assert (await house.get("/v1/settings", headers=bearer("wrong"))).status_code == 401


async def test_the_admin_key_leaves_a_metrics_key_alone() -> None:
    house = House(options={**ADMINS, "metrics_key": "m"})
    assert (await house.get("/metrics", headers=bearer("root"))).status_code == 401
    assert (await house.get("/v1/models", headers=bearer("root"))).status_code == 200
