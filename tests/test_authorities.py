"""Clients of this test process."""

import ssl
from pathlib import Path

import httpx
import pytest

from tests.e2e.certificates import certificate, key


def context_of(client: httpx.Client | httpx.AsyncClient) -> ssl.SSLContext:
    found = client._transport._pool._ssl_context  # type: ignore[attr-defined]
    assert isinstance(found, ssl.SSLContext)
    return found


async def test_clients_share_what_was_read_and_check_certificates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = context_of(httpx.Client())
    assert context_of(httpx.Client()) is usual is context_of(httpx.AsyncClient())
    assert usual.verify_mode == ssl.CERT_REQUIRED and usual.check_hostname and usual.get_ca_certs()
    assert context_of(httpx.Client(verify=False)).verify_mode == ssl.CERT_NONE
    named = ssl.create_default_context()
    assert context_of(httpx.Client(verify=named)) is named
    own = certificate("Own", key(1), "Own", key(1), None)
    (tmp_path / "ca.pem").write_text(own)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    [authority] = context_of(httpx.Client()).get_ca_certs()
    assert authority["subject"] == ((("commonName", "Own"),),)
    assert context_of(httpx.Client(trust_env=False)) is not usual
