"""`cohort doctor --bundle`: complete, readable, and without secrets, whatever of the server answers."""

from __future__ import annotations

import json
import stat
import tarfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clients.doctor.bundle import ClientKeys, Redactor, write_bundle

FACTS = {"versions": {"cohort": "1"}, "hub": {"cache": str(Path.home() / "cache"), "token": True}}
ENVIRON = {
    "COHORT_API_KEY": "key-of-alice,key-of-bob",
    "COHORT_ADMIN_KEY": "key-of-admin",
    "COHORT_MODEL": "m",
    "HF_TOKEN": "secret-of-the-hub",
    "HF_ENDPOINT": "https://user:word@hub.example",
    "MY_PASSWORD": "never read",
}
KEYS = ClientKeys("key-of-alice", "key-of-admin", "key-of-metrics")


class Server(BaseHTTPRequestHandler):
    """Answers `answers` by path; records which key came with which path."""

    answers: Mapping[str, tuple[int, str]] = {}
    keys: dict[str, str | None] = {}

    def do_GET(self) -> None:
        self.keys[self.path] = self.headers.get("Authorization")
        status, body = self.answers.get(self.path, (404, '{"error": {"message": "There is no such path."}}'))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    Server.answers, Server.keys = {}, {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def unpacked(path: Path) -> tuple[dict[str, Any], str]:
    """Contents by name, and all of them as one text."""
    found, texts = {}, []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None and member.mode == 0o600
            text = file.read().decode()
            texts.append(text)
            name = member.name.partition("/")[2]
            found[name] = json.loads(text) if name.endswith(".json") else text
    return found, "\n".join(texts)


def test_a_bundle_of_a_server_that_answers_everything(tmp_path: Path, url: str) -> None:
    story = {"id": "chatcmpl-1", "key": "alice", "client_request_id": "Bearer abc.def", "prompt_tokens": 3}
    Server.answers = {
        "/version": (200, '{"version": "1"}'),
        "/ready": (503, '{"status": "recovering"}'),
        "/health": (200, '{"status": "recovering"}'),
        "/v1/models": (200, '{"data": []}'),
        "/v1/executors": (200, '{"data": [{"token": "of-the-executor"}]}'),
        "/v1/settings": (200, '{"settings": {"api_key": {"value": null, "set": true}, "model": {"value": "/m/key-of-bob"}}}'),
        "/v1/requests?limit=200": (200, json.dumps({"data": [story]})),
        "/metrics": (200, 'cohort_key_requests_total{key="alice"} 1.0\n'),
    }  # fmt: skip
    path = tmp_path / "b.tar.gz"
    assert write_bundle(path, FACTS, url=url, keys=KEYS, environ=ENVIRON) == {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found, text = unpacked(path)
    assert set(found) == {
        "doctor.json", "packages.json", "environment.json", "missing.json", "server/version.json", "server/ready.json",
        "server/health.json", "server/models.json", "server/executors.json", "server/settings.json", "server/requests.json",
        "server/metrics.txt",
    }  # fmt: skip
    for secret in ("key-of-", "secret-of", "user:word", "never read", "of-the-executor", "abc.def"):
        assert secret not in text, secret
    assert str(Path.home()) not in text and found["doctor.json"]["hub"]["cache"] == "~/cache"
    assert found["server/ready.json"] == {"status": "recovering"}
    assert found["server/requests.json"]["data"][0]["key"] == "alice", "a name, not a key"
    assert found["server/metrics.txt"] == 'cohort_key_requests_total{key="alice"} 1.0\n'
    assert found["environment.json"]["COHORT_MODEL"] == "m"
    assert found["packages.json"]["fastapi"]
    for name in ("/v1/settings", "/v1/requests?limit=200"):
        assert Server.keys[name] == "Bearer key-of-admin"
    assert Server.keys["/metrics"] == "Bearer key-of-metrics"
    assert Server.keys["/v1/models"] == "Bearer key-of-alice"


def test_a_bundle_of_a_server_without_stories_and_keys(tmp_path: Path, url: str) -> None:
    Server.answers = {"/version": (200, '{"version": "1"}')}
    path = tmp_path / "b.tar.gz"
    missing = write_bundle(path, FACTS, url=url, keys=ClientKeys(), environ={})
    assert missing["requests"] == "/v1/requests?limit=200: 404 There is no such path."
    found, _ = unpacked(path)
    assert found["missing.json"] == missing and "server/version.json" in found
    assert set(Server.keys.values()) == {None}


def test_a_bundle_without_a_server(tmp_path: Path, url: str) -> None:
    for address, reason in (("http://127.0.0.1:1", "failed"), ("http://us er", "address")):
        path = tmp_path / f"{reason}.tar.gz"
        missing = write_bundle(path, FACTS, url=address, keys=KEYS, environ=ENVIRON)
        assert reason in str(missing)
        assert unpacked(path)[0]["doctor.json"]["versions"] == {"cohort": "1"}


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        write_bundle(path, FACTS, url="http://127.0.0.1:1", keys=KEYS, environ=ENVIRON)
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a hf_abcdefgh1234 b", "a (removed) b"),
        ("sk-proj-abcdefgh", "(removed)"),
        ("https://a:b@c/d", "https://(removed)@c/d"),
        ("https://c/d?x=1&api_key=abc&y=2", "https://c/d?x=1&(removed)&y=2"),
        ("Authorization: Bearer x.y-z", "Authorization: Bearer (removed)"),
        ("risk-free hf_ml", "risk-free hf_ml"),
    ],
)
def test_what_looks_like_a_secret(text: str, expected: str) -> None:
    assert Redactor(()).text(text) == expected


def test_fields_that_are_called_secrets() -> None:
    data = {
        "api_key": "x",
        "apiKey": "x",
        "hf_token": "x",
        "tokens": 3,
        "prompt_tokens": "5",
        "key": "n",
        "password": "",
    }
    clean = Redactor(["longer-secret", "secret"]).data(
        {**data, "list": [{"token": "x"}], "text": "longer-secret secret"}
    )
    assert clean == {
        "api_key": "(removed)", "apiKey": "(removed)", "hf_token": "(removed)", "tokens": 3, "prompt_tokens": "5", "key": "n",
        "password": "", "list": [{"token": "(removed)"}], "text": "(removed) (removed)",
    }  # fmt: skip
