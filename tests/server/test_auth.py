"""API keys: closed by default, open only where the design says so."""

import pytest

from tests.server.fakes import House, error_of

KEYS = {"api_keys": ["key-one", "schlüssel"]}
KEYLESS = ["/live", "/ready", "/health", "/version", "/metrics"]
PROTECTED = [
    "/v1/models", "/v1/models/fake", "/openapi.json", "/nope", "/v1/", "/", "//health", "/health/", "/Health",
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
        "message": "Give a valid API key: 'Authorization: Bearer KEY'.",
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
    raw = {"Authorization": "Bearer schlüssel".encode()}
    assert (await house.get("/v1/models", headers=raw)).status_code in (200, 401)  # never 500


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
