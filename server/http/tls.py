"""TLS: the files named by the settings, read once at the start, with a one-line message for each fault."""

from __future__ import annotations

import ssl
from pathlib import Path

from server.settings.load import SettingsError
from server.settings.table import Settings


class _Encrypted(Exception):
    """The key has a password. OpenSSL would ask for it on the terminal, which may be unattended."""


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The TLS context for connections (TLS 1.2 or later), or None for plain HTTP. Raises SettingsError."""
    certificate, key, authorities = settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs
    if certificate is None:
        for name in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"):
            if getattr(settings, name):
                raise SettingsError(f"{_flag(name)} is given, and no --ssl-certfile: TLS needs a certificate")
        return None
    if settings.ssl_cert_reqs and authorities is None:
        reason = "it needs --ssl-ca-certs, the authorities that clients' certificates are checked against"
        raise SettingsError(f"--ssl-cert-reqs {settings.ssl_cert_reqs}: {reason}")
    if authorities is not None and not settings.ssl_cert_reqs:
        raise SettingsError(
            "--ssl-ca-certs has no effect without --ssl-cert-reqs 1 (ask clients) or 2 (demand)"
        )
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        if (path := getattr(settings, name)) is not None:
            _check_readable(name, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _load_chain(context, certificate, key)
    if authorities is not None:
        try:
            context.load_verify_locations(authorities)
        except ssl.SSLError:
            raise SettingsError(f"--ssl-ca-certs {authorities}: no certificates in PEM form") from None
        context.verify_mode = ssl.VerifyMode(settings.ssl_cert_reqs)
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(f"{_flag(name)} {path}: {reason}") from None


def _load_chain(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    def password() -> str:
        raise _Encrypted

    where = f"--ssl-keyfile {key}" if key else f"--ssl-certfile {certificate}"
    try:
        context.load_cert_chain(certificate, key, password)
    except _Encrypted:
        raise SettingsError(f"{where}: the private key has a password; give one without") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            message = f"{where}: it is not the key of --ssl-certfile {certificate}"
        elif not _has(certificate, b"CERTIFICATE-----"):
            message = f"--ssl-certfile {certificate}: no certificate in PEM form"
        elif not _has(key or certificate, b"PRIVATE KEY-----"):
            message = f"{where}: no private key in PEM form" + ("" if key else "; name it with --ssl-keyfile")
        else:
            reason = (error.reason or str(error)).lower().replace("_", " ")
            message = f"{where} and --ssl-certfile {certificate} are of no use together: {reason}"
        raise SettingsError(message) from None


def _has(path: str, mark: bytes) -> bool:
    return mark in Path(path).read_bytes()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
