"""HTTPS: a server with a certificate, clients that must show one, and what the start says of files that are wrong."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from server.commands import healthcheck
from server.http.tls import server_context
from server.settings.load import SettingsError, load
from tests.e2e.certificates import certificate, key
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess, run_until_exit

pytestmark = pytest.mark.long

AUTHORITY = "Test authority"


@dataclass(frozen=True)
class Files:
    authority: str
    server: str
    client: str
    key: str
    other_key: str

    def client_context(self, *, shows: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority)
        if shows is not None:
            context.load_cert_chain(shows, self.key)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")

    def write(name: str, text: str) -> str:
        (folder / name).write_text(text)
        return str(folder / name)

    hosts = ("localhost", "127.0.0.1")
    return Files(
        authority=write("ca.pem", certificate(AUTHORITY, key(1), AUTHORITY, key(1), None)),
        server=write("server.pem", certificate("localhost", key(2), AUTHORITY, key(1), hosts)),
        client=write("client.pem", certificate("a client", key(2), AUTHORITY, key(1), ())),
        key=write("key.pem", key(2).pem()),
        other_key=write("other.pem", key(1).pem()),
    )


def serve(
    model: Path, files: Files, folder: Path, *more: str, verify: ssl.SSLContext | None = None
) -> ServerProcess:
    args = [str(model), *ECHO, "--ssl-certfile", files.server, "--ssl-keyfile", files.key, *more]
    return ServerProcess(args, folder, verify=verify or files.client_context())


@pytest.fixture(scope="module")
def server(
    files: Files, tokenizer_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    with serve(tokenizer_dir, files, tmp_path_factory.mktemp("https"), "--api-key", "secret") as one:
        yield one


def port_of(server: ServerProcess) -> int:
    return int(server.url.rpartition(":")[2])


def test_answers_and_streams_over_tls(server: ServerProcess, files: Files) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    assert f"Cohort {server.get('/version').json()['version']} is ready at {server.url}" in server.log()
    headers = {"Authorization": "Bearer secret"}
    body = {"prompt": "Hi", "max_tokens": 20, "stream": True}
    with httpx.Client(base_url=server.url, verify=files.client_context(), headers=headers) as client:
        streamed = client.post("/v1/completions", json=body).text
        assert streamed.endswith("data: [DONE]\n\n")
        assert client.get("/v1/models").status_code == 200
    assert server.get("/v1/models").status_code == 401


def test_old_protocols_and_plain_http_are_refused(server: ServerProcess, files: Files) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/live")
    with socket.create_connection(("127.0.0.1", port_of(server))) as plain:
        with files.client_context().wrap_socket(plain, server_hostname="localhost") as secure:
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
            assert secure.getpeercert()["subject"] == ((("commonName", "localhost"),),)  # type: ignore[index]
    assert server.get("/live").status_code == 200


def test_limits_hold_over_tls(server: ServerProcess, files: Files) -> None:
    with socket.create_connection(("127.0.0.1", port_of(server))) as plain:
        with files.client_context().wrap_socket(plain, server_hostname="localhost") as secure:
            with suppress(OSError):  # it need not read to the end
                secure.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 1_000_000)
            answer = b""
            while piece := secure.recv(65536):
                answer += piece
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"headers_too_large"' in answer


def test_the_container_s_health_check(server: ServerProcess, files: Files) -> None:
    environ = {"COHORT_PORT": str(port_of(server))}
    assert healthcheck.main({**environ, "COHORT_SSL_CERTFILE": files.server}) == 0
    assert healthcheck.main(environ) == 1  # it speaks no TLS unless told to


def test_the_verbs_speak_tls(server: ServerProcess, files: Files) -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("cohort")), "chat", "--url", server.url, "--max-tokens", "5"],
        input="Hi",
        env={**os.environ, "SSL_CERT_FILE": files.authority, "COHORT_API_KEY": "secret"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_clients_must_show_a_certificate(files: Files, tokenizer_dir: Path, tmp_path: Path) -> None:
    known = files.client_context(shows=files.client)
    more = ("--ssl-ca-certs", files.authority, "--ssl-cert-reqs", "2")
    with serve(tokenizer_dir, files, tmp_path, *more, verify=known) as server:
        assert server.get("/v1/models").status_code == 200
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            httpx.get(f"{server.url}/v1/models", verify=files.client_context())
        stranger = tmp_path / "stranger.pem"
        stranger.write_text(certificate("a stranger", key(2), "Another", key(3), ()))
        with pytest.raises((httpx.TransportError, ssl.SSLError)):
            httpx.get(f"{server.url}/v1/models", verify=files.client_context(shows=str(stranger)))
        environ = {
            "COHORT_PORT": str(port_of(server)),
            "COHORT_SSL_CERTFILE": files.server,
            "COHORT_SSL_KEYFILE": files.key,
            "COHORT_SSL_CERT_REQS": "2",
        }
        assert healthcheck.main(environ) == 0
        assert server.get("/live").status_code == 200


def context_for(**flags: object) -> ssl.SSLContext | None:
    return server_context(load({"model": "x", **flags}, {})[0])


def test_no_certificate_is_plain_http() -> None:
    assert context_for() is None


def test_a_file_with_both_needs_no_second(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_text(Path(files.server).read_text() + Path(files.key).read_text())
    assert context_for(ssl_certfile=str(both)) is not None


def faults(files: Files, folder: Path) -> list[tuple[dict[str, object], str]]:
    junk, locked = folder / "junk.pem", folder / "locked.pem"
    junk.write_text("none")
    locked.write_text(
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00112233445566778899AABBCCDDEEFF\n\n"
        "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n-----END RSA PRIVATE KEY-----\n"
    )
    missing = str(folder / "missing.pem")
    pair: dict[str, object] = {"ssl_certfile": files.server, "ssl_keyfile": files.key}
    return [
        ({"ssl_keyfile": files.key}, "--ssl-keyfile is given, and no --ssl-certfile"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs is given, and no --ssl-certfile"),
        ({"ssl_certfile": missing}, f"--ssl-certfile {missing}: no such file or directory"),
        ({**pair, "ssl_keyfile": missing}, f"--ssl-keyfile {missing}: no such file or directory"),
        ({**pair, "ssl_keyfile": str(folder)}, f"--ssl-keyfile {folder}: is a directory"),
        ({**pair, "ssl_keyfile": files.other_key}, f"{files.other_key}: it is not the key of"),
        ({**pair, "ssl_keyfile": str(locked)}, f"--ssl-keyfile {locked}: the private key has a password"),
        ({**pair, "ssl_keyfile": str(junk)}, f"--ssl-keyfile {junk}: no private key in PEM form"),
        ({**pair, "ssl_certfile": str(junk)}, f"--ssl-certfile {junk}: no certificate in PEM form"),
        ({"ssl_certfile": files.server}, "no private key in PEM form; name it with --ssl-keyfile"),
        ({**pair, "ssl_cert_reqs": 1}, "--ssl-cert-reqs 1: it needs --ssl-ca-certs"),
        ({**pair, "ssl_ca_certs": files.authority}, "--ssl-ca-certs has no effect without --ssl-cert-reqs"),
        ({**pair, "ssl_ca_certs": str(junk), "ssl_cert_reqs": 2}, f"--ssl-ca-certs {junk}: no certificates"),
    ]


def test_every_fault_of_a_file_is_one_line(files: Files, tmp_path: Path) -> None:
    for flags, words in faults(files, tmp_path):
        with pytest.raises(SettingsError) as caught:
            context_for(**flags)
        message = str(caught.value)
        assert words in message, (flags, message)
        assert "\n" not in message


def test_the_start_ends_with_that_line(files: Files, tmp_path: Path) -> None:
    args: Sequence[str] = ["--ssl-certfile", files.server, "--ssl-keyfile", files.other_key]
    code, out, err = run_until_exit(args, tmp_path)
    assert (code, out) == (2, "")
    *_, line = err.splitlines()  # a slow start tells before that it imports
    assert line.startswith(f"cohort: error: --ssl-keyfile {files.other_key}: it is not the key of")
