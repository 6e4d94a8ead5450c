"""Bodies are JSON and say so: a page of another site cannot send such a one without a preflight."""

from __future__ import annotations

import gzip
import json

import pytest

from server.http.media import is_json
from tests.server.fakes import House, error_of
from tests.server.routes.test_security import filled, routes

BODY = b'{"prompt": "Hi"}'
POSTS = sorted(path for method, path in routes(House()) if method == "POST")
FOREIGN = [
    "application/x-www-form-urlencoded", "text/plain", "text/plain; charset=application/json", "text/json",
    "multipart/form-data; boundary=x", "application/octet-stream", "application/xml", "application/jsonp", "json", "",
    "application/json, text/plain", "text/plain, application/json", "application/", "*/*",
]  # fmt: skip


@pytest.mark.parametrize("path", POSTS)
async def test_no_route_takes_what_a_browser_sends_unasked(house: House, path: str) -> None:
    async with house.client() as client:
        for kind in (*FOREIGN, None):
            headers = {} if kind is None else {"Content-Type": kind}
            for address in (filled(path), filled(path) + "/"):
                response = await client.post(address, content=BODY, headers=headers)
                assert response.status_code == 415, (kind, response.text)
                error = error_of(response)
                assert error["code"] in ("unsupported_media_type", None)
                assert "-H 'Content-Type: application/json'" in error["message"]
                assert response.headers["accept"] == "application/json"
    assert not house.engine.requests and not house.engine.embedded


@pytest.mark.parametrize(
    "kind",
    [
        "application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8", "application/json ; x=y",
        "application/vnd.api+json", "application/problem+json; charset=utf-8",
    ],
)  # fmt: skip
async def test_json_by_any_name_is_taken(house: House, kind: str) -> None:
    assert is_json(kind)
    async with house.client() as client:
        response = await client.post("/v1/completions", content=BODY, headers={"Content-Type": kind})
    assert response.status_code == 200, response.text


async def test_two_types_are_none(house: House) -> None:
    twice = [("Content-Type", "application/json"), ("Content-Type", "text/plain")]
    async with house.client() as client:
        for headers in (twice, twice[::-1]):
            response = await client.post("/v1/completions", content=BODY, headers=headers)
            assert response.status_code == 415


async def test_a_chunked_body_needs_a_type_and_no_body_needs_none(house: House) -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        yield BODY

    async with house.client() as client:
        assert (await client.post("/v1/completions", content=pieces())).status_code == 415
        empty = await client.post("/v1/completions")
    assert empty.status_code == 400 and error_of(empty)["code"] == "invalid_json"


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "coding", ["gzip", "deflate", "br", "zstd", "GZIP", "identity, gzip", "x-gzip", "nonsense"]
)
async def test_compressed_bodies_are_refused(house: House, path: str, coding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    async with house.client() as client:
        response = await client.post(filled(path), content=gzip.compress(BODY), headers=headers)
    assert response.status_code == 415
    error = error_of(response)
    assert error["code"] in ("unsupported_media_type", None) and "Content-Encoding" in error["message"]
    assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
async def test_no_compression_by_name(house: House, coding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    async with house.client() as client:
        assert (await client.post("/v1/completions", content=BODY, headers=headers)).status_code == 200


async def test_a_wrong_path_or_key_comes_first() -> None:
    house = House(options={"api_keys": ["key"]})
    async with house.client() as client:
        assert (await client.post("/v1/completions", content=BODY)).status_code == 401
        key = {"Authorization": "Bearer key"}
        response = await client.post("/completions", content=BODY, headers=key)
        assert response.status_code == 404 and "/v1/completions" in json.dumps(error_of(response))
