"""Which addresses a server answers on, and which faults may pass by themselves."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from server.http import listener
from server.http.listener import AddressNotYet, Listener, listen
from server.settings.load import SettingsError
from server.startup.banner import url_of
from server.system.exit_codes import MISTAKE, NOT_YET, code_of

Info = tuple[int, int, int, str, tuple[Any, ...]]
V4: Info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
V6: Info = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
ELSEWHERE: Info = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))
"""An address for documentation (RFC 5737), which no machine has."""


def reached(port: int, address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(5)
        return client.connect_ex((address, port)) == 0


def addresses(made: Listener) -> list[str]:
    assert {one.getsockname()[1] for one in made.sockets} == {made.port}, "one port at all addresses"
    return [one.getsockname()[0] for one in made.sockets]


def has_ipv6() -> bool:
    """Containers often come without it, and the kernel may know it and have no address of it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return socket.has_dualstack_ipv6()
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(
    not has_ipv6(), reason="needs a loopback address of IPv6, which this machine has not"
)


@pytest.fixture
def resolves(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Names are resolved to these addresses, or fail with that error."""

    def set_answer(*found: Info, error: Exception | None = None) -> None:
        def getaddrinfo(host: str, port: int, **options: Any) -> list[Info]:
            if error is not None:
                raise error
            return [(*one[:4], (one[4][0], port, *one[4][2:])) for one in found]

        monkeypatch.setattr(listener.socket, "getaddrinfo", getaddrinfo)

    return set_answer


@pytest.fixture
def without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a kernel that was started with ipv6.disable=1."""
    real = socket.socket

    def made(family: int = -1, *rest: Any, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *rest, **more)

    monkeypatch.setattr(listener.socket, "socket", made)


@needs_ipv6
@pytest.mark.parametrize("host", ["::", "", "*", "::0"])
def test_any_address_is_any_of_both_kinds(host: str) -> None:
    with listen(host, 0) as made:
        assert addresses(made) == ["::"] and made.any_address
        assert reached(made.port, "127.0.0.1") and reached(made.port, "::1")


@needs_ipv6
def test_one_address_is_only_that_one() -> None:
    with listen("::1", 0) as made:
        assert not reached(made.port, "127.0.0.1") and not made.any_address
    with listen("0.0.0.0", 0) as made:
        assert reached(made.port, "127.0.0.1") and not reached(made.port, "::1")
        assert made.any_address


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("[::1]", "::1", "http://[::1]:"),
        ("::ffff:127.0.0.1", "127.0.0.1", "http://[::ffff:127.0.0.1]:"),
        ("127.1", "127.0.0.1", "http://127.1:"),
        ("[::]", "::1", "http://localhost:"),
    ],
)
def test_other_forms_of_an_address(host: str, address: str, url: str) -> None:
    with listen(host, 0) as made:
        assert reached(made.port, address)
        assert url_of("" if made.any_address else host, made.port) == f"{url}{made.port}"


@pytest.mark.parametrize("host", ["::", "", "*"])
def test_any_address_without_ipv6(without_ipv6: None, host: str) -> None:
    with listen(host, 0) as made:
        assert addresses(made) == ["0.0.0.0"] and reached(made.port, "127.0.0.1")
        assert bool(made.notes) is (host == "::"), "it was asked for by name"


@needs_ipv6
@pytest.mark.parametrize("found", [[V4], [V6, V4], [V6], []])
@pytest.mark.parametrize("host", ["localhost", "LocalHost", "model.localhost"])
def test_localhost_is_both_whatever_the_table_of_hosts_says(
    resolves: Callable[..., None], found: Sequence[Info], host: str
) -> None:
    unknown = None if found else socket.gaierror(socket.EAI_NONAME, "unknown")
    resolves(*found, error=unknown)
    with listen(host, 0) as made:
        assert addresses(made) == ["127.0.0.1", "::1"] and made.address == "127.0.0.1"
        assert reached(made.port, "127.0.0.1") and reached(made.port, "::1")
        assert made.notes == ()


def test_localhost_without_ipv6(without_ipv6: None) -> None:
    with listen("localhost", 0) as made:
        assert addresses(made) == ["127.0.0.1"] and made.notes == ()


@needs_ipv6
def test_a_port_that_one_of_the_addresses_has_taken() -> None:
    """Half of the clients would reach another server."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressNotYet, match=rf"localhost:{port} \(at ::1\): address already in use"):
            listen("localhost", port)
        with socket.create_server(("127.0.0.1", port)):  # nothing is left bound
            pass


@needs_ipv6
def test_a_free_port_is_free_at_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first free port of one family is taken in the other: it tries again."""
    real, tried = listener._bind, []

    def bind(family: int, address: tuple[Any, ...]) -> socket.socket:
        tried.append(address)
        if len(tried) == 2:
            raise OSError(errno.EADDRINUSE, "in use")
        return real(family, address)

    monkeypatch.setattr(listener, "_bind", bind)
    with listen("localhost", 0) as made:
        assert addresses(made) == ["127.0.0.1", "::1"]
    assert [address[1] == 0 for address in tried] == [True, False, True, False]


@needs_ipv6
def test_a_name_of_several_addresses_has_all_that_this_machine_has(resolves: Callable[..., None]) -> None:
    resolves(V6, ELSEWHERE, V4, V4)
    with listen("server.example", 0) as made:
        assert sorted(addresses(made)) == ["127.0.0.1", "::1"]
        assert made.notes == (
            "--host server.example: 192.0.2.1 is left out: cannot assign requested address",
        )


def test_an_address_that_others_reach_decides_who_may_connect() -> None:
    """Whether other machines can connect is what the check of the Host header goes by."""

    class Bound:
        def __init__(self, address: str) -> None:
            self.address = address

        def getsockname(self) -> tuple[str, int]:
            return self.address, 80

    both: Any = [Bound("127.0.1.1"), Bound("192.0.2.1")]
    assert Listener(both).address == "192.0.2.1"
    assert Listener(both[:1]).address == "127.0.1.1"


def test_faults_that_may_pass_have_a_code_of_their_own(resolves: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(SettingsError, match=r"in use; .*--port") as in_use:
            listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1:0: cannot assign .*--host") as absent:
        listen("192.0.2.1", 0)
    resolves(error=socket.gaierror(socket.EAI_AGAIN, "temporary"))
    with pytest.raises(SettingsError, match="cannot be resolved at the moment") as unresolved:
        listen("server.example", 0)
    resolves(error=socket.gaierror(socket.EAI_NONAME, "unknown"))
    with pytest.raises(SettingsError, match="not an address of this machine") as unknown:
        listen("server.example", 0)
    passing = [code_of(caught.value) for caught in (in_use, absent, unresolved)]
    assert passing == [NOT_YET] * 3 and code_of(unknown.value) == MISTAKE
    for caught in (in_use, absent, unresolved, unknown):
        assert "\n" not in str(caught.value)


def test_an_interface_that_comes_up_late_may_be_there_later() -> None:
    with pytest.raises(AddressNotYet, match=r"\[fe80::1%none0\]:80: .*bring up the network"):
        listen("fe80::1%none0", 80)


@pytest.mark.parametrize("host", ["http://127.0.0.1", "127.0.0.1:8000", "http://[::1]:8000/"])
def test_a_url_is_no_host(resolves: Callable[..., None], host: str) -> None:
    resolves(error=socket.gaierror(socket.EAI_NONAME, "unknown"))
    with pytest.raises(SettingsError, match="without scheme and port, which --port has") as caught:
        listen(host, 0)
    assert code_of(caught.value) == MISTAKE


def test_a_port_of_the_system() -> None:
    error = listener._fault("127.0.0.1", 80, OSError(errno.EACCES, "denied"))
    assert str(error) == "cannot listen on 127.0.0.1:80: permission denied; take a --port from 1024 up"
    assert code_of(error) == MISTAKE
