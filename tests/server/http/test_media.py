"""Bodies are JSON and say so: a page of another site cannot send such a one without a preflight."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

import pytest

from server.http.cors import Cors
from server.http.media import is_json
from tests.server.apis.test_security import filled, routes
from tests.server.fakes import House, error_of
from tests.tiers import sweep

BODY = b'{"prompt": "Hi"}'
POSTS = sorted(path for method, path in routes(House()) if method == "POST")
OTHERS = [path for path in POSTS if not path.startswith("/api/")]
FOREIGN = [
    "application/x-www-form-urlencoded", "text/plain", "text/plain; charset=application/json", "text/json",
    "multipart/form-data; boundary=x", "application/octet-stream", "application/xml", "application/jsonp", "json", "",
    "application/json, text/plain", "text/plain, application/json", "application/", "*/*",
]  # fmt: skip


@pytest.mark.parametrize("path", OTHERS)
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


# -- Ollama's paths ------------------------------------------------------------------------------------------------------

EVIL = "http://evil.example"
OLLAMA: dict[str, dict[str, Any]] = {
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "stream": False},
    "/api/generate": {"prompt": "Hi", "stream": False},
    "/api/embed": {"input": "Hi"},
    "/api/embeddings": {"prompt": "Hi"},
    "/api/show": {},
}
PAGES = [
    {"Origin": EVIL}, {"Origin": "null"}, {"Origin": ""}, {"Origin": "file://"}, {"Origin": "http://server:3000"},
    {"Origin": "http://server.evil.example"}, {"Origin": "http://evil-server"}, {"Origin": "app://server@evil.example"},
    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "odd"}, {"Sec-Fetch-Site": ""},
    {"Origin": EVIL, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"}, {"Origin": "http://server", "Sec-Fetch-Site": "cross-site"},
]  # fmt: skip
"""Headers of pages that are not the server's own, http://server."""
CALLERS = [
    {}, {"Sec-Fetch-Mode": "cors"}, {"Sec-Fetch-Site": "none"}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://server"},
    {"Origin": "http://server:80"}, {"Origin": "https://server"}, {"Origin": "http://SERVER", "Sec-Fetch-Site": "same-origin"},
]  # fmt: skip
"""Headers of programs, Node's `fetch` among them, and of the server's own pages."""
COMMON = [None, "application/octet-stream", "application/x-www-form-urlencoded", "text/plain;charset=UTF-8"]


def test_all_paths_of_ollama_with_a_body_are_known() -> None:
    assert set(OLLAMA) == {path for path in POSTS if path.startswith("/api/")}


def typed(kind: str | None, headers: dict[str, str]) -> dict[str, str]:
    return headers if kind is None else {**headers, "Content-Type": kind}


@pytest.mark.parametrize("path", OLLAMA)
async def test_ollamas_paths_read_any_type(house: House, path: str) -> None:
    body = json.dumps({"model": "fake", **OLLAMA[path]}).encode()
    async with house.client() as client:
        for kind in (*FOREIGN, None):
            response = await client.post(path, content=body, headers=typed(kind, {}))
            assert response.status_code == 200, (kind, response.text)
        for headers, kind in itertools.product(CALLERS, COMMON):
            response = await client.post(path + "/", content=body, headers=typed(kind, headers))
            assert response.status_code == 200, (headers, kind, response.text)
        for content in (b"a=1&b=2", b"model=fake", b""):
            response = await client.post(path, content=content, headers=typed(COMMON[2], {}))
            assert response.status_code == 400 and "not valid JSON" in error_of(response)["message"]


@pytest.mark.parametrize("path", OLLAMA)
async def test_a_byte_order_mark_is_skipped(house: House, path: str) -> None:
    """Files that PowerShell or an editor of Windows wrote begin with one. A second one is a fault, and so is UTF-16."""
    text = json.dumps({"model": "fake", **OLLAMA[path]})
    async with house.client() as client:
        marked = text.encode("utf-8-sig")
        response = await client.post(path, content=marked, headers=typed(COMMON[2], {}))
        assert response.status_code == 200, response.text
        for wrong in (b"\xef\xbb\xbf" + marked, text.encode("utf-16")):
            response = await client.post(path, content=wrong, headers=typed(COMMON[2], {}))
            assert response.status_code == 400 and "not valid JSON" in error_of(response)["message"]


@pytest.mark.parametrize("path", OLLAMA)
async def test_a_page_of_another_origin_needs_json_there_too(house: House, path: str) -> None:
    body = json.dumps({"model": "fake", **OLLAMA[path]}).encode()
    async with house.client() as client:
        for headers, kind in itertools.product(PAGES, COMMON):
            response = await client.post(path, content=body, headers=typed(kind, headers))
            assert response.status_code == 415, (headers, kind, response.text)
        assert not house.engine.requests and not house.engine.embedded
        twice = [("Origin", "http://server"), ("Origin", EVIL)]
        assert (await client.post(path, content=body, headers=twice)).status_code == 415
        for headers in PAGES:  # for this type a browser asks first, which --allowed-origins answers
            response = await client.post(path, content=body, headers=typed("application/json", headers))
            assert response.status_code == 200


async def test_an_allowed_page_may_send_any_type_to_ollamas_paths() -> None:
    body = json.dumps({"model": "fake", **OLLAMA["/api/chat"]}).encode()
    for origins, origin, status in (
        (["http://app.example"], "http://app.example", 200),
        (["http://app.example"], EVIL, 415),
        (["*"], EVIL, 200),
    ):
        house = House(options={"cors": Cors(origins)})
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}
        async with house.client() as client:
            assert (await client.post("/api/chat", content=body, headers=headers)).status_code == status
            elsewhere = await client.post("/v1/completions", content=BODY, headers=headers)
            assert elsewhere.status_code == 415
        house.state.threads.close()


@pytest.mark.parametrize("name", ["pull", "push", "create", "copy", "delete", "blobs/sha256:0"])
async def test_what_ollama_alone_has_is_refused_by_its_path_whatever_the_type(
    house: House, name: str
) -> None:
    async with house.client() as client:
        for method, kind in itertools.product(("POST", "DELETE"), COMMON):
            response = await client.request(method, f"/api/{name}", content=b"{}", headers=typed(kind, {}))
            assert response.status_code == 404, (method, kind, response.text)


# -- other forms of JSON -------------------------------------------------------------------------------------------------


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


@sweep(every=1)
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
