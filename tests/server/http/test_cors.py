"""Cross-origin requests: off unless told so, and then for the origins named alone."""

import httpx
import pytest
import structlog

from server.apis import dialects
from server.apis.base.dialect import Dialect
from server.http.cors import Cors
from server.http.form import Form, plain_error
from server.settings.load import SettingsError, load
from server.settings.table import Settings
from tests.server.fakes import House, error_of

APP = "https://app.example.com"
EVIL = "https://evil.example.com"


def house_with(**options: object) -> House:
    cors = Cors(**options)  # type: ignore[arg-type]
    return House(options={"cors": cors, "api_keys": ["key"]})


async def preflight(
    house: House, origin: str = APP, headers: str = "authorization, content-type"
) -> httpx.Response:
    async with house.client() as client:
        return await client.options(
            "/v1/chat/completions",
            headers={
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": headers,
            },
        )


def allowed(response: httpx.Response) -> dict[str, str]:
    return {
        name: value for name, value in response.headers.items() if name.startswith("access-control-allow")
    }


async def test_off_by_default() -> None:
    house = House(options={"api_keys": ["key"]})
    response = await preflight(house)
    assert response.status_code == 401
    for path in ("/health", "/v1/models"):
        response = await house.get(path, headers={"Origin": APP, "Authorization": "Bearer key"})
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("access-control")]
        assert "vary" not in response.headers
    assert (await preflight(House())).status_code == 405


async def test_a_preflight_needs_no_key_and_the_request_does() -> None:
    house = house_with(origins=[APP])
    response = await preflight(house)
    assert (response.status_code, response.content) == (204, b"")
    assert allowed(response) == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT",
        "access-control-allow-headers": "authorization, content-type",
    }
    assert set(response.headers.get_list("vary", split_commas=True)) == {
        "Origin",
        "Access-Control-Request-Headers",
    }
    assert response.headers["x-request-id"].startswith("req_")
    refused = await house.get("/v1/models", headers={"Origin": APP})
    assert refused.status_code == 401
    assert error_of(refused)["code"] == "invalid_api_key"
    assert allowed(refused) == {"access-control-allow-origin": APP}  # or the page could not read why


async def test_other_origins_hear_nothing() -> None:
    house = house_with(origins=[APP])
    for origin in (
        EVIL,
        "null",
        APP + ".evil.example.com",
        APP + ":8443",
        "http://app.example.com",
        APP + "/",
        "*",
    ):
        response = await preflight(house, origin)
        assert response.status_code == 401, origin
        assert not allowed(response)
        response = await house.get("/health", headers={"Origin": origin})
        assert not allowed(response)
        assert response.headers["vary"] == "Origin"
    two = await house.get("/health", headers=[("Origin", APP), ("Origin", EVIL)])
    assert not allowed(two)


async def test_any_origin_without_credentials() -> None:
    house = house_with(origins=["*"])
    response = await house.get("/health", headers={"Origin": EVIL})
    assert allowed(response) == {"access-control-allow-origin": "*"}
    assert not allowed(await house.get("/health"))
    with pytest.raises(ValueError, match="credentials"):
        Cors(["*"], credentials=True)


async def test_credentials_lists_and_case() -> None:
    house = house_with(
        origins=["https://App.example.com"], methods=["post"], headers=["Authorization"], credentials=True
    )
    response = await preflight(house, headers="x-evil")
    assert allowed(response) == {
        "access-control-allow-origin": APP,
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": "Authorization",
        "access-control-allow-credentials": "true",
    }


@pytest.mark.parametrize("headers", ["a b", "x\x00y", "a" * 2000, "a,,b", "é"])
async def test_only_names_of_headers_are_repeated(headers: str) -> None:
    house = house_with(origins=[APP])
    async with house.client() as client:
        response = await client.options(
            "/v1/models",
            headers=[
                (b"origin", APP.encode()),
                (b"access-control-request-method", b"GET"),
                (b"access-control-request-headers", headers.encode()),
            ],
        )
    assert response.status_code == 204
    assert "access-control-allow-headers" not in response.headers


async def test_an_api_s_own_header_of_ids_is_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form(lambda path: path == "/v1/models", plain_error, id_header="x-own-id")
    own = Dialect(package=__name__, routers=(), form=form)
    monkeypatch.setattr(dialects, "DIALECTS", (*dialects.DIALECTS, own))
    house = house_with(origins=[APP])
    headers = {"Origin": APP, "Authorization": "Bearer key"}
    for path, exposed in (("/v1/models", True), ("/v1/models/fake", False)):
        response = await house.get(path, headers=headers)
        assert ("x-own-id" in response.headers["access-control-expose-headers"].split(", ")) is exposed
        assert ("x-own-id" in response.headers) is exposed


async def test_streams_and_failures_carry_the_headers() -> None:
    house = house_with(origins=[APP])
    headers = {"Origin": APP, "Authorization": "Bearer key"}
    body = {"prompt": "Hi", "stream": True, "user": "u"}
    async with house.client(headers=headers) as client:
        response = await client.post("/v1/completions", json=body)
        assert response.text.endswith("data: [DONE]\n\n")
        assert response.headers["access-control-allow-origin"] == APP
        assert response.headers["access-control-expose-headers"] == (
            "x-request-id, request-id, x-cohort-ignored, server-timing, retry-after, x-should-retry"
        )
        house.engine.refusal = RuntimeError("unforeseen")
        for path, status in (("/v1/completions", 500), ("/nope", 404)):
            with structlog.testing.capture_logs():
                response = await client.post(path, json={"prompt": "Hi"})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == APP


async def test_an_options_request_that_is_no_preflight() -> None:
    house = house_with(origins=[APP])
    async with house.client(headers={"Origin": APP}) as client:
        assert (await client.options("/v1/models")).status_code == 401
        response = await client.options("/v1/models", headers={"Authorization": "Bearer key"})
    assert response.status_code == 405


# -- settings ----------------------------------------------------------------------------------------------------------


def chosen(**flags: object) -> Settings:
    return load({"model": "x", **flags}, {})[0]


def test_origins_in_every_form() -> None:
    two = ("https://a.example", "https://b.example:8443")
    assert chosen(allowed_origins=list(two)).allowed_origins == two
    assert chosen(allowed_origins=['["https://a.example", "https://b.example:8443"]']).allowed_origins == two
    assert chosen(allowed_origins=['["*"]']).allowed_origins == ("*",)
    environ = {"COHORT_ALLOWED_ORIGINS": "https://a.example, https://b.example:8443"}
    assert load({"model": "x"}, environ)[0].allowed_origins == two
    environ["COHORT_ALLOW_CREDENTIALS"] = "true"
    assert load({"model": "x"}, environ)[0].allow_credentials
    assert chosen().allowed_origins == ()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"allowed_origins": ["app.example.com"]}, "--allowed-origins 'app.example.com': it should be"),
        ({"allowed_origins": [APP + "/"]}, "without a path"),
        ({"allowed_origins": ["null"]}, "--allowed-origins 'null'"),
        ({"allowed_origins": ["https://*.example.com"]}, "--allowed-origins 'https://*.example.com'"),
        ({"allowed_origins": ['["unfinished']}, "--allowed-origins: it should be a name, or a JSON list"),
        ({"allowed_origins": ["[1]"]}, "--allowed-origins: it should be"),
        ({"allowed_origins": ["*"], "allow_credentials": True}, "name the origins"),
        (
            {"allowed_origins": [APP], "allowed_methods": ["GET POST"]},
            "--allowed-methods 'GET POST': no such name",
        ),
        ({"allowed_origins": [APP], "allowed_headers": ["x:y"]}, "--allowed-headers 'x:y': no such name"),
        ({"allowed_methods": ["GET"]}, "--allowed-methods has no effect without --allowed-origins"),
        ({"allow_credentials": True}, "--allow-credentials has no effect without --allowed-origins"),
    ],
)
def test_what_makes_no_sense_is_one_line(flags: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        chosen(**flags)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
