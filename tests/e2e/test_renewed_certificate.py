"""A certificate that is renewed while the server runs: new connections get it, open ones go on, a wrong pair is not taken."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import structlog

from server.http.certificates import Certificates
from server.settings.load import load
from tests.e2e.certificates import certificate, key
from tests.e2e.conftest import ECHO
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.long

AUTHORITY, OTHER = "Test authority", "Other authority"
HOSTS = ("localhost", "127.0.0.1")


class Pairs:
    """Certificates for `localhost` by number, each with a key of its own, and their authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts: dict[int, tuple[str, str]] = {}
        self.authority = self._write("ca.pem", certificate(AUTHORITY, key(1), AUTHORITY, key(1), None))
        self.other = self._write("ca2.pem", certificate(OTHER, key(3), OTHER, key(3), None))
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"

    def _write(self, name: str, text: str) -> Path:
        (self.folder / name).write_text(text)
        return self.folder / name

    def texts(self, number: int) -> tuple[str, str]:
        """Certificate and key, the same at each call: the former holds the time at which it was made."""
        if number not in self._texts:
            own = key(10 + number)
            self._texts[number] = certificate(f"number {number}", own, AUTHORITY, key(1), HOSTS), own.pem()
        return self._texts[number]

    def put(self, number: int) -> None:
        """As certbot's hooks do: each file is replaced by a rename."""
        for path, text in zip((self.cert, self.key), self.texts(number), strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_text(text)
            fresh.rename(path)


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    found = Pairs(tmp_path)
    found.put(1)
    return found


def shown(server: ServerProcess, pairs: Pairs) -> str:
    """The name in the certificate that a new connection gets, checked against its authority."""
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as plain:
        context = ssl.create_default_context(cafile=str(pairs.authority))
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            return str(secure.getpeercert()["subject"][0][0][1])  # type: ignore[index]


def until(check: Callable[[], bool], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def serve(pairs: Pairs, model: Path, folder: Path, *more: str) -> ServerProcess:
    args = [str(model), *ECHO, "--executor-option", "step_delay_ms=20", *more]
    args += ["--ssl-certfile", str(pairs.cert), "--ssl-keyfile", str(pairs.key)]
    return ServerProcess(args, folder, verify=ssl.create_default_context(cafile=str(pairs.authority)))


@pytest.mark.long(every=2)
@pytest.mark.parametrize("workers", [[], ["--api-server-count", "2"]], ids=["one process", "api workers"])
def test_new_connections_get_it_and_streams_go_on(
    workers: list[str], pairs: Pairs, tokenizer_dir: Path, tmp_path: Path
) -> None:
    trust = ssl.create_default_context(cafile=str(pairs.authority))
    with serve(pairs, tokenizer_dir, tmp_path, *workers) as server:
        body = {"prompt": "Hi", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with (
            httpx.Client(base_url=server.url, verify=trust, timeout=30) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            next(lines)
            assert shown(server, pairs) == "number 1"
            pairs.put(2)
            count = max(1, len(workers))
            until(lambda: server.log().count("certificate was read again") == count)
            assert {shown(server, pairs) for _ in range(8)} == {"number 2"}
            next(lines)  # the stream that began before still runs
        assert server.get("/live").status_code == 200


def test_a_wrong_pair_is_not_taken_and_a_later_right_one_is(
    pairs: Pairs, tokenizer_dir: Path, tmp_path: Path
) -> None:
    """The new certificate is there and the new key is not yet; then it comes."""
    with serve(pairs, tokenizer_dir, tmp_path) as server:
        new_certificate, new_key = pairs.texts(2)
        pairs.cert.write_text(new_certificate)
        until(lambda: "it is not the key of" in server.log())
        assert "is served on" in server.log() and shown(server, pairs) == "number 1"
        pairs.key.write_text(new_key)
        until(lambda: shown(server, pairs) == "number 2")
        assert server.log().count("it is not the key of") == 1
        pairs.cert.unlink()
        until(lambda: "no such file" in server.log())
        assert shown(server, pairs) == "number 2"
        assert server.get("/live").status_code == 200


# -- one look at the files, without a server -------------------------------------------------------------------------------


def looking(pairs: Pairs, **more: object) -> Certificates:
    flags = {"model": "x", "ssl_certfile": str(pairs.cert), "ssl_keyfile": str(pairs.key), **more}
    return Certificates(load(flags, {})[0])


def age(*paths: Path, seconds: float = 5.0) -> None:
    """Make files that old: a look leaves alone what may still be written."""
    for path in paths:
        before = path.stat()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns - int(seconds * 1e9)))


def handshake(found: Certificates, pairs: Pairs, show: tuple[Path, Path] | None = None) -> str:
    """The fingerprint of the certificate that a connection gets, in memory. Raises ssl.SSLError where it is refused."""
    trust = ssl.create_default_context(cafile=str(pairs.authority))
    if show is not None:
        trust.load_cert_chain(*show)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = found.context.wrap_bio(to_server, to_client, server_side=True)
    client = trust.wrap_bio(to_client, to_server, server_hostname="localhost")
    finished: set[str] = set()
    for _ in range(10):
        for name, side in (("client", client), ("server", server)):
            try:
                side.do_handshake()
                finished.add(name)
            except ssl.SSLWantReadError:
                continue
    assert finished == {"client", "server"}
    return hashlib.sha256(client.getpeercert(binary_form=True) or b"").hexdigest()


def fingerprint(text: str) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text)).hexdigest()


def test_links_that_are_replaced(pairs: Pairs, tmp_path: Path) -> None:
    """Kubernetes mounts a secret as links to a folder behind one link, and replaces that one."""
    for number in (1, 2):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        for name, text in zip(("tls.crt", "tls.key"), pairs.texts(number), strict=True):
            (folder / name).write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    age(*tmp_path.glob("..?/*"))
    found = looking(pairs, ssl_certfile=str(tmp_path / "tls.crt"), ssl_keyfile=str(tmp_path / "tls.key"))
    assert handshake(found, pairs) == fingerprint(pairs.texts(1)[0]) and not found.look()
    (tmp_path / "..fresh").symlink_to("..2")
    (tmp_path / "..fresh").rename(tmp_path / "..data")
    assert found.look() and not found.look()
    assert handshake(found, pairs) == fingerprint(pairs.texts(2)[0])


def test_a_file_that_may_still_be_written_is_left_alone(pairs: Pairs) -> None:
    age(pairs.cert, pairs.key)
    found = looking(pairs)
    pairs.put(2)
    assert not found.look()
    age(pairs.cert, pairs.key)
    assert found.look()


def test_what_is_wrong_is_told_once_at_the_second_look(pairs: Pairs) -> None:
    age(pairs.cert, pairs.key)
    found = looking(pairs)
    new_certificate, new_key = pairs.texts(2)

    def told_by_a_look() -> list[str]:
        with structlog.testing.capture_logs() as lines:
            found.look()
        return [line["event"] for line in lines if line["log_level"] == "warning"]

    pairs.cert.write_text(new_certificate)
    age(pairs.cert)
    assert told_by_a_look() == []
    [line] = told_by_a_look()
    assert "it is not the key of" in line and "is served on" in line
    assert [told_by_a_look() for _ in range(3)] == [[], [], []]
    pairs.key.write_text(new_key)
    age(pairs.key)
    assert [told_by_a_look() for _ in range(3)] == [[], [], []]
    assert handshake(found, pairs) == fingerprint(new_certificate)


def test_authorities_of_clients_are_replaced_as_a_whole(pairs: Pairs, tmp_path: Path) -> None:
    own = key(20)
    names = {AUTHORITY: key(1), OTHER: key(3)}
    client_key = tmp_path / "client.key"
    client_key.write_text(own.pem())
    clients = {}
    for name, signer in names.items():
        path = tmp_path / f"{signer.identifier.hex()}.pem"
        path.write_text(certificate("a client", own, name, signer, ()))
        clients[name] = (path, client_key)
    authorities = tmp_path / "authorities.pem"
    shutil.copy(pairs.authority, authorities)
    age(pairs.cert, pairs.key, authorities)
    found = looking(pairs, ssl_ca_certs=str(authorities), ssl_cert_reqs=2)
    handshake(found, pairs, clients[AUTHORITY])
    with pytest.raises(ssl.SSLError):
        handshake(found, pairs, clients[OTHER])
    shutil.copy(pairs.other, authorities)
    age(authorities)
    assert found.look()
    handshake(found, pairs, clients[OTHER])
    with pytest.raises(ssl.SSLError):
        handshake(found, pairs, clients[AUTHORITY])


def test_a_connection_keeps_what_it_began_with(pairs: Pairs) -> None:
    age(pairs.cert, pairs.key)
    found = looking(pairs)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    begun = found.context.wrap_bio(to_server, to_client, server_side=True)
    before = begun.context
    pairs.put(2)
    age(pairs.cert, pairs.key)
    assert found.look() and begun.context is before


def test_looking_costs_next_to_nothing(pairs: Pairs) -> None:
    age(pairs.cert, pairs.key)
    found = looking(pairs)
    begun = time.process_time()
    for _ in range(1000):
        assert not found.look()
    each = (time.process_time() - begun) / 1000
    print(f"a look at unchanged files: {1e6 * each:.0f} us")
    assert each < 0.001
