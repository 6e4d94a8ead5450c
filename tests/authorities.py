"""The certificates of public authorities, which a client reads when it is made, whether or not it will speak TLS."""

from __future__ import annotations

import os
import ssl
from functools import cache
from typing import Any


def read_authorities_once() -> None:
    """Let all clients of httpx in this process that name no context have the same one. Each would read the certificates again:
    20 ms of CPU for every `httpx.get`, and a test that polls a server would take the core on which it starts."""
    try:
        from httpx._transports import default
    except ModuleNotFoundError:  # beside a GPU there is torch and little else
        return
    create = default.create_ssl_context

    @cache
    def usual(*environment: str | None) -> ssl.SSLContext:
        return create()

    def create_ssl_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        if verify is True and cert is None and trust_env:
            return usual(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        return create(verify, cert, trust_env)

    default.create_ssl_context = create_ssl_context
