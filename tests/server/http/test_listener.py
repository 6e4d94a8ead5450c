"""Which addresses a server answers on."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from server.http import listener
from server.http.listener import listen


def reached(port: int, address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(5)
        return client.connect_ex((address, port)) == 0


def has_ipv6() -> bool:
    """Containers often come without it, and the kernel may know it and have no address of it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return socket.has_dualstack_ipv6()
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="needs a loopback address of IPv6, which this machine has not")
def test_any_address_is_any_of_both_kinds() -> None:
    with listen("::", 0) as found:
        port = found.getsockname()[1]
        assert reached(port, "127.0.0.1") and reached(port, "::1")
    with listen("::1", 0) as found:
        assert not reached(found.getsockname()[1], "127.0.0.1")


def test_a_name_with_addresses_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where "localhost" is "::1" first, what asks 127.0.0.1 found nobody."""
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]

    def getaddrinfo(*args: Any, **options: Any) -> Any:
        return found

    monkeypatch.setattr(listener.socket, "getaddrinfo", getaddrinfo)
    with listen("localhost", 0) as made:
        assert made.getsockname()[0] == "127.0.0.1"
