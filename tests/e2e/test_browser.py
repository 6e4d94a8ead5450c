"""What a page in a browser on the same machine may do with a real server, and what operators and old clients may."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess

BODY = b'{"prompt": "Hi", "max_tokens": 2, "stream": true}'


def answer_to(server: ServerProcess, request: bytes) -> tuple[bytes, bytes]:
    """Head, in lower case, and body of what comes until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request)
        found = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = found.partition(b"\r\n\r\n")
    return head.lower(), body


def served_name(server: ServerProcess) -> str:
    return str(httpx.get(f"{server.url}/v1/models", timeout=20).json()["data"][0]["id"])


def status_for(server: ServerProcess, host: str, path: str = "/v1/models") -> int:
    return httpx.get(f"{server.url}{path}", headers={"Host": host}, timeout=20).status_code


def test_a_page_reaches_nothing(echo_server: ServerProcess) -> None:
    """Neither under a name of its own, nor with a body that needs no preflight."""
    for path in ("/v1/models", "/metrics", "/health", "/openapi.json", "/nope"):
        assert status_for(echo_server, "evil.example:8000", path) == 403
        assert status_for(echo_server, "localhost:1", path) == (404 if path == "/nope" else 200)
    for kind in ("text/plain", "application/x-www-form-urlencoded", None):
        headers = {} if kind is None else {"Content-Type": kind}
        response = httpx.post(f"{echo_server.url}/v1/completions", content=BODY, headers=headers, timeout=20)
        assert response.status_code == 415 and "application/json" in response.json()["error"]["message"]
        # Ollama's paths read any type, but not from a page: browsers name its origin.
        chat = f"{echo_server.url}/api/chat"
        load = b'{"model": "%s", "stream": false}' % served_name(echo_server).encode()
        for page in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            refused = httpx.post(chat, content=load, headers=headers | page, timeout=20)
            assert refused.status_code == 415 and "web pages" in refused.json()["error"], page
        for own in ({}, {"Origin": echo_server.url, "Sec-Fetch-Site": "same-origin"}):
            taken = httpx.post(chat, content=load, headers=headers | own, timeout=20)
            assert taken.status_code == 200 and taken.json()["done_reason"] == "load", taken.text


def test_a_stream_to_an_old_client(echo_server: ServerProcess) -> None:
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n"
    said, body = answer_to(echo_server, head + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert (
        said.startswith(b"http/1.1 200") and b"connection: close" in said and b"transfer-encoding" not in said
    )
    assert body.startswith(b"data: {") and body.endswith(b"\n\ndata: [DONE]\n\n")


def test_refusals_are_counted(echo_server: ServerProcess) -> None:
    sample = 'cohort_http_requests_total{route="/v1/embeddings",status="400"}'
    before = echo_server.metric(sample)
    assert echo_server.post("/v1/embeddings", {}).status_code == 400
    assert echo_server.metric(sample) == before + 1
    assert "code=missing_required_parameter" in echo_server.log() and "param=input" in echo_server.log()


@pytest.mark.long
def test_names_that_the_operator_opens(tokenizer_dir: Path, tmp_path: Path) -> None:
    args = [str(tokenizer_dir), *ECHO, "--allowed-hosts", "app.example"]
    with ServerProcess(args, tmp_path, env={"COHORT_ALLOWED_HOSTS": "ignored.example"}) as server:
        assert status_for(server, "app.example:8000") == status_for(server, "127.0.0.1") == 200
        assert status_for(server, "evil.example") == status_for(server, "ignored.example") == 403


@pytest.mark.long(extended=True)
def test_with_a_key_or_open_to_others_any_name_will_do(tokenizer_dir: Path, tmp_path: Path) -> None:
    with ServerProcess([str(tokenizer_dir), *ECHO, "--api-key", "k"], tmp_path) as server:
        key = {"Host": "any.example", "Authorization": "Bearer k"}
        assert httpx.get(f"{server.url}/v1/models", headers=key).status_code == 200
    with ServerProcess([str(tokenizer_dir), *ECHO, "--host", "0.0.0.0"], tmp_path) as server:
        assert status_for(server, "any.example") == 200
