"""What an ingress and a replica have to agree on, as they may run on different machines: settings, a key, the machine's start."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from server.settings.table import Settings

PASSED_ON = "passed-on"
"""The administrator's key of a replica's own application. It is no secret: the application has no port, and the ingress has
checked the client's key."""
_MOST_DRAIN = 30 * 86_400.0
"""Seconds after which Ray ends a replica that still has sequences, where the settings say never."""


def boot_id() -> str:
    """What the kernel calls this start of the machine; "" where it does not say."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def without_keys(settings: Settings) -> Settings:
    """The settings as a replica gets them: keys, TLS and traces stay with the ingress, and a replica's node lacks their files."""
    return replace(
        settings,
        ssl_keyfile=None,
        ssl_certfile=None,
        ssl_ca_certs=None,
        ssl_cert_reqs=0,
        otlp_traces_endpoint=None,
        api_key=(),
        api_key_file=None,
        admin_key=None,
        admin_key_file=None,
        metrics_key=None,
        api_server_count=0,
    )


def pack_settings(settings: Settings) -> bytes:
    """Settings on their way to another process. As JSON infinite times would be null."""
    return msgspec.msgpack.encode(settings)


def unpack_settings(data: bytes) -> Settings:
    """What `pack_settings` made."""
    return msgspec.msgpack.decode(data, type=Settings)


def drain_limit(settings: Settings) -> float:
    """Seconds that Ray gives a replica or an ingress for its end; finite."""
    return min(settings.drain_timeout, _MOST_DRAIN)
