"""Which names the server answers to, where a page could give it a name of its own."""

from __future__ import annotations

from typing import Any

import pytest

from server.http.hosts import Hosts, hosts_of
from server.settings.load import SettingsError, load
from tests.server.apis.test_security import filled, routes
from tests.server.fakes import House, error_of

LOOPBACK = [
    "localhost", "localhost:8000", "LOCALHOST", "localhost.", "app.localhost:3000", "127.0.0.1", "127.0.0.1:8000",
    "127.9.8.7:1", "[::1]", "[::1]:8000", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:80",
]  # fmt: skip
FOREIGN = [
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "evil-localhost", "xlocalhost",
    "192.168.1.5:8000", "0.0.0.0:8000", "[::]", "[fd00::1]:80", "", ":8000", "127.0.0.1@evil.example", "localhost,evil.example",
    "1270.0.0.1", "[::1].evil.example", "2130706433",
]  # fmt: skip


def policy(
    names: tuple[str, ...] = (), host: str = "127.0.0.1", address: str = "127.0.0.1", keys: bool = False
) -> Hosts:
    return hosts_of(names, host, address, keys=keys)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"])
def test_on_the_loopback_only_its_names(address: str) -> None:
    hosts = policy(address=address)
    assert all(hosts.allow(host) for host in LOOPBACK)
    assert not [host for host in FOREIGN if hosts.allow(host)]


@pytest.mark.parametrize(
    "more", [{"address": "0.0.0.0"}, {"address": "::"}, {"address": "192.168.1.5"}, {"keys": True}]
)
def test_elsewhere_and_with_keys_any(more: dict[str, Any]) -> None:
    hosts = policy(**more)
    assert all(hosts.allow(host) for host in [*LOOPBACK, *FOREIGN])


@pytest.mark.parametrize("more", [{}, {"address": "0.0.0.0"}, {"keys": True}])
def test_names_that_are_opened(more: dict[str, Any]) -> None:
    hosts = policy(names=("App.Example", "*.lan.example", "fd00::1", "192.168.1.5"), **more)
    for host in (
        "app.example",
        "APP.example.:80",
        "a.lan.example",
        "a.b.lan.example:1",
        "[fd00::1]:80",
        "192.168.1.5:80",
    ):
        assert hosts.allow(host), host
    for host in ("example", "x.app.example", "lan.example", "evillan.example", "[fd00::2]", "evil.example"):
        assert not hosts.allow(host), host
    assert all(hosts.allow(host) for host in LOOPBACK), "what asks from this machine goes on working"


def test_a_star_opens_all_and_the_name_of_host_is_one() -> None:
    assert policy(names=("*",)).allow("evil.example")
    assert policy(host="mybox", address="127.0.1.1").allow("mybox:8000")
    assert not policy(host="mybox", address="127.0.1.1").allow("other:8000")


async def test_every_route_is_behind_it() -> None:
    house = House(options={"hosts": policy()})
    house.state.draining = True  # the feed of steps ends
    async with house.client() as client:
        for method, path in [*routes(house), ("GET", "/nope"), ("OPTIONS", "/v1/models")]:
            for host, refused in (("evil.example:8000", True), ("localhost:8000", False)):
                response = await client.request(method, filled(path), headers={"Host": host}, json={})
                assert (response.status_code == 403) is refused, (method, path, host)
                if refused and method != "HEAD":
                    error = error_of(response)
                    assert error["type"] in ("permission_error", None)  # Ollama's form has neither
                    assert error["code"] in ("host_not_allowed", None)
                    assert "--allowed-hosts" in error["message"] and "evil.example" in error["message"]
    assert not house.engine.requests


async def test_forwarded_hosts_do_not_count() -> None:
    house = House(options={"hosts": policy()})
    games = {"Host": "evil.example", "X-Forwarded-Host": "localhost", "Forwarded": "host=localhost"}
    assert (await house.get("/v1/models", headers=games)).status_code == 403


def test_settings() -> None:
    assert load({"model": "x"}, {})[0].allowed_hosts == ()
    assert load({"model": "x", "allowed_hosts": ["a.example,b", "[::1]"]}, {})[0].allowed_hosts == (
        "a.example",
        "b",
        "[::1]",
    )
    environ = {"COHORT_ALLOWED_HOSTS": "a.example, *.b.example"}
    assert load({"model": "x"}, environ)[0].allowed_hosts == ("a.example", "*.b.example")
    for wrong in ("http://a.example", "a.example:8000", "a.example/", "*example", "a b", "a.*.b", "*."):
        with pytest.raises(SettingsError, match=r"--allowed-hosts '.*': it should be a name"):
            load({"model": "x", "allowed_hosts": [wrong]}, {})
