"""Settings on their way to replicas."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.ray_serve.ingress import check_behind_proxy
from server.ray_serve.placing import placing_of
from server.remote.replicas.node import drain_limit, pack_settings, unpack_settings, without_keys
from server.settings.load import SettingsError, load
from server.settings.table import TABLE


def infinite() -> list[str]:
    """Settings that take inf."""
    found = []
    for name in TABLE:
        with suppress(SettingsError):
            if getattr(load({"model": "m", name: "inf"}, {})[0], name) == math.inf:
                found.append(name)
    return found


def test_infinite_times_arrive() -> None:
    names = infinite()
    assert {"recovery_timeout", "drain_timeout", "responses_store_age"} <= set(names)
    settings, _ = load({"model": "m", **dict.fromkeys(names, "inf")}, {})
    arrived = unpack_settings(pack_settings(settings))
    assert arrived == settings and all(getattr(arrived, name) == math.inf for name in names)
    assert math.isfinite(drain_limit(settings))


@pytest.mark.parametrize("given", [{"executor_option": ["a=1", "b=x", "c=true"]}, {"api_key": ["k"]}])
def test_others_arrive_as_they_are(given: dict[str, Any], tmp_path: Path) -> None:
    settings, _ = load({"model": str(tmp_path), "drain_timeout": "3", **given}, {})
    assert unpack_settings(pack_settings(settings)) == settings and drain_limit(settings) == 3


TLS = {"ssl_certfile": "/c.pem", "ssl_keyfile": "/k.pem", "ssl_ca_certs": "/a.pem", "ssl_cert_reqs": "2"}


def test_what_stays_with_the_ingress() -> None:
    keys = {"api_key": ["secret"], "admin_key": "secret", "metrics_key": "secret", "api_key_file": "/secret"}
    traces = {"otlp_traces_endpoint": "http://secret:4318/v1/traces"}
    settings, _ = load({"model": "m", "admin_key_file": "/secret", **TLS, **keys, **traces}, {})
    sent = pack_settings(without_keys(settings))
    assert b"secret" not in sent and b".pem" not in sent
    assert replace(unpack_settings(sent), explicit=frozenset({"model"})) == load({"model": "m"}, {})[0]


@pytest.mark.parametrize("name", TLS)
def test_tls_is_refused_behind_the_proxies_of_serve(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        check_behind_proxy(load({"model": "m", name: TLS[name]}, {})[0])
    check_behind_proxy(load({"model": "m"}, {})[0])


@pytest.mark.parametrize(
    "device, gpus, cluster, reserved",
    [
        ("auto", None, 0.0, 0),
        ("auto", None, 8.0, 2),
        ("cuda", None, 0.0, 2),
        ("auto", 2, 0.0, 2),
        ("auto", 4, 0.0, 4),
        ("auto", 0, 8.0, 0),
        ("cpu", None, 8.0, 0),
    ],
)
def test_what_is_asked_for_wins_over_what_the_cluster_has_now(
    device: str, gpus: int | None, cluster: float, reserved: int
) -> None:
    settings, _ = load({"model": "m", "device": device, "tensor_parallel_size": "2"}, {})
    assert placing_of(settings, 3, None, gpus, cluster).gpus == reserved
    with pytest.raises(SettingsError, match="2 ranks"):
        placing_of(settings, 3, None, 1, cluster)


def test_a_replica_on_a_gpu_needs_one() -> None:
    with pytest.raises(SettingsError, match="cuda"):
        placing_of(load({"model": "m", "device": "cuda"}, {})[0], 3, None, 0, 8.0)
