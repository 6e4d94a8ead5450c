"""Paths as clients get them wrong: other base URLs, slashes, other servers' endpoints, other methods."""

from __future__ import annotations

from itertools import product

import pytest

from server.http.endpoints import OTHER, Endpoints
from server.http.foreign_paths import _ELSEWHERE, no_such_path
from tests.server.apis.test_security import PATHS, filled, routes
from tests.server.fakes import House, error_of


def test_every_get_answers_head() -> None:
    found = routes(House())
    assert {path for method, path in found if method == "GET"} == {
        path for method, path in found if method == "HEAD"
    }


async def test_head_is_get_without_its_body(house: House) -> None:
    house.state.draining = True  # the feed of steps ends
    async with house.client() as client:
        for path in {path for method, path in routes(house) if method == "GET"}:
            got, head = await client.get(filled(path)), await client.head(filled(path))
            assert head.status_code == got.status_code
            assert head.content == b"" and set(head.headers) == set(got.headers)
            assert head.headers["content-type"] == got.headers["content-type"]


async def test_a_slash_at_the_end_makes_no_difference(house: House) -> None:
    assert (await house.get("/v1/models/")).json() == (await house.get("/v1/models")).json()
    assert (await house.get("/v1/models//")).status_code == 200
    assert (await house.get("/v1/models/org/fake-1/")).json()["id"] == "org/fake-1"
    assert (await house.post("/v1/completions/", {"prompt": "Hi"})).status_code == 200
    assert (await house.post("/v1/embeddings/", {"input": "Hi"})).status_code == 200
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (await house.post("/v1/chat/completions/", body)).status_code == 200
    assert (await house.post("/tokenize/", {"prompt": "Hi"})).status_code == 200
    assert (await house.get("/v1/chat/completions/")).status_code == 405


@pytest.mark.parametrize(
    "path", ["/v1/models/", "/v1/chat/completions/", "/metrics/", "/health/", "/v1/models//"]
)
async def test_no_slash_gets_around_a_key(path: str) -> None:
    """Neither around the API's key nor around that of /metrics."""
    house = House(options={"api_keys": ["key"], "metrics_key": "m"})
    assert (await house.get(path)).status_code == 401
    alone = House(options={"metrics_key": "m"})
    response = await alone.get(path)
    assert "cohort_" not in response.text


WRONG_BASES = [
    ("/chat/completions", "/v1/chat/completions"),
    ("/completions", "/v1/completions"),
    ("/embeddings", "/v1/embeddings"),
    ("/messages", "/v1/messages"),
    ("/v1/v1/messages", "/v1/messages"),
    ("/anthropic/v1/messages/count_tokens", "/v1/messages/count_tokens"),
    ("/models/fake", "/v1/models/{name}"),
    ("/executors", "/v1/executors"),
    ("/v1/v1/chat/completions", "/v1/chat/completions"),
    ("/v1/v1/models", "/v1/models"),
    ("/api/v1/completions", "/v1/completions"),
    ("/api/chat/completions", "/v1/chat/completions"),
    ("/openai/v1/embeddings", "/v1/embeddings"),
    ("/openai/deployments/x/chat/completions", "/v1/chat/completions"),
    ("//v1/chat/completions", "/v1/chat/completions"),
    ("/V1/Chat/Completions", "/v1/chat/completions"),
    ("/chat/completions/", "/v1/chat/completions"),
    ("/v1/chat/completion", "/v1/chat/completions"),
    ("/v1/tokenize", "/tokenize"),
    ("/v1/metrics", "/metrics"),
    ("/v1/health", "/health"),
    ("/v1/api/chat", "/api/chat"),
    ("/ollama/api/tags", "/api/tags"),
    ("/metrics/", "/metrics"),
    ("/v1", "/v1/models"),
    ("/v1/", "/v1/models"),
]


async def test_a_wrong_base_url_is_told_the_right_path(house: House) -> None:
    async with house.client() as client:
        for (path, named), method in product(WRONG_BASES, ("GET", "POST")):
            response = await client.request(method, f"http://server{path}", json={})
            assert response.status_code == 404, response.text
            error = error_of(response)
            assert error["code"] == "not_found" and error["type"] == "invalid_request_error"
            assert f"{named}?" in error["message"] or f"{named} " in error["message"], error["message"]


async def test_a_path_of_a_proxy_that_is_still_there_is_named(house: House) -> None:
    """Nothing is taken off here: who may call a path is decided by the path as it arrives."""
    for path in ("/llm/v1/models", "/llm/docs", "/a/b/v1/chat/completions", "/llm/health"):
        assert "has to take that path off" in error_of(await house.get(path))["message"]
        headers = {"X-Forwarded-Prefix": "/llm"}
        assert (await house.get(path, headers=headers)).status_code == 404
    for path in ("/models/fake", "/v1/v1/models", "/v1/health"):
        assert "proxy" not in error_of(await house.get(path))["message"], path


ELSEWHERE: list[tuple[str, str | None]] = [
    ("/v1/conversations", "/v1/responses"),
    ("/v1/assistants", "/v1/chat/completions"),
    ("/v1/threads/t/runs", "/v1/chat/completions"),
    ("/v1/images/generations", None),
    ("/v1/audio/transcriptions", None),
    ("/v1/audio/speech", None),
    ("/v1/files", None),
    ("/v1/files/f/content", None),
    ("/v1/batches", "/v1/chat/completions"),
    ("/v1/moderations", None),
    ("/v1/fine_tuning/jobs", None),
    ("/v1/messages/batches", "/v1/messages"),
    ("/v1/complete", "/v1/completions"),
    ("/v1/chat/completions/chatcmpl-1", None),
    ("/pooling", "/v1/embeddings"),
    ("/v1/reranking", "/v1/rerank"),
    ("/similarity", "/v1/score"),
    ("/classify", None),
    ("/invocations", "/v1/chat/completions"),
    ("/ping", "/health"),
    ("/load", "/metrics"),
    ("/lora-adapters", "/v1/load_lora_adapter"),
    ("/embed", "/v1/embeddings"),
    ("/completion", "/v1/completions"),
    ("/embedding", "/v1/embeddings"),
    ("/props", "/v1/models"),
    ("/slots", "/metrics"),
    ("/slots/0", "/metrics"),
    ("/infill", "/v1/completions"),
    ("/apply-template", "/tokenize"),
    ("/generate", "/v1/completions"),
    ("/generate_stream", "/v1/completions"),
    ("/info", "/v1/models"),
    ("/get_model_info", "/v1/models"),
    ("/health_generate", "/health"),
    ("/flush_cache", None),
    ("/redoc", "/openapi.json"),
    ("/v1beta/models/gemini:generateContent", "/v1/chat/completions"),
]


async def test_endpoints_of_other_servers_say_so(house: House) -> None:
    for path, instead in ELSEWHERE:
        response = await house.post(path, {})
        assert response.status_code == 404
        message = error_of(response)["message"]
        assert f"There is no POST {path} here. This server does not serve " in message
        assert (f" {instead}" in message.partition("; use ")[2]) if instead else ("; use" not in message), (
            message
        )


async def test_ollamas_store_of_models_is_refused_in_one_sentence(house: House) -> None:
    async with house.client() as client:
        for method, name in (
            ("POST", "pull"), ("POST", "push"), ("POST", "create"), ("POST", "copy"), ("DELETE", "delete"),
            ("HEAD", "blobs/sha256:0"), ("POST", "blobs/sha256:0"),
        ):  # fmt: skip
            response = await client.request(method, f"/api/{name}", json={})
            assert response.status_code == 404
            if method != "HEAD":
                assert response.json() == {
                    "error": "This server does not pull, create, copy, push or delete models: it serves the one that it was "
                    "started with."
                }


def test_what_is_offered_in_their_place_exists() -> None:
    endpoints = {path.replace(":path}", "}") for path in PATHS}
    for _, instead in _ELSEWHERE.values():
        words = [word.strip(",.'") for word in (instead or "").split() if word.startswith("/")]
        assert set(words) <= endpoints, instead
    assert not set(_ELSEWHERE) & endpoints, "nothing that is served is said not to be"


async def test_a_path_that_resembles_nothing_is_told_so(house: House) -> None:
    for path in ("/nope", "/favicon.ico", "/" + "x" * 5000):
        message = error_of(await house.get(path))["message"]
        assert message == f"There is no GET {path[:200]} here."


METHODS = [
    ("GET", "/v1/chat/completions", "POST"),
    ("PUT", "/v1/completions", "POST"),
    ("HEAD", "/tokenize", "POST"),
    ("POST", "/v1/models", "GET, HEAD"),
    ("DELETE", "/v1/models/fake", "GET, HEAD"),
    ("POST", "/health", "GET, HEAD"),
    ("PATCH", "/metrics", "GET, HEAD"),
    ("POST", "/openapi.json", "GET, HEAD"),
    ("OPTIONS", "/v1/embeddings", "POST"),
]


async def test_a_wrong_method_is_told_the_right_ones(house: House) -> None:
    for method, path, allow in METHODS:
        async with house.client() as client:
            response = await client.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allow
        if method != "HEAD":
            error = error_of(response)
            assert error["code"] == "method_not_allowed" and error["message"].endswith(f"it takes {allow}.")


async def test_a_post_to_the_console_is_told_where_the_api_is(house: House) -> None:
    response = await house.post("/", {})
    assert response.status_code == 405 and "POST /v1/chat/completions" in error_of(response)["message"]


def test_templates() -> None:
    endpoints = Endpoints(PATHS)
    assert set(endpoints.templates) == {path.replace(":path}", "}") for path in PATHS}
    assert endpoints.template_of("/v1/models/org/name") == "/v1/models/{name}"
    assert endpoints.template_of("/v1/models/") == endpoints.template_of("/v1/models") == "/v1/models"
    for path in (None, "/v1", "/nope", "/v1/modelsx"):
        assert endpoints.template_of(path) == OTHER


def test_a_path_below_endpoints_of_ours_is_not_another_server_s() -> None:
    """A dialect may serve what the table names as another's: a path of it that is missing is a plain 404."""
    path = "/v1beta/models/m:countTokens"
    assert "Google" in no_such_path("POST", path, ["/v1/chat/completions"])
    message = no_such_path("POST", path, ["/v1/chat/completions", "/v1beta/models/{name}:generateContent"])
    assert message == f"There is no POST {path} here."
