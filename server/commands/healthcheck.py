"""The container's health check: exit code 0 when /ready answers 200, else 1.

    python -I -m cohort_server.run server.commands.healthcheck


The port is COHORT_PORT's, or 8000: a container that serves elsewhere says so by the environment and not by --port, which
this process cannot see. The address is COHORT_HOST's, and that of the loopback interface where the server has every address.
Likewise COHORT_SSL_CERTFILE makes it ask over TLS. It never leaves the machine and sends nothing
secret, so it does not check whose certificate it is shown; where clients must show one (COHORT_SSL_CERT_REQS=2) it shows the
server's own, which the authority must have signed for clients too. Standard library only, so that it costs little to ask
often.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping

_DEFAULT_PORT = 8000
_TIMEOUT = 4.0
"""Seconds; less than the time-out of the image's HEALTHCHECK, so that the reason is printed."""


def main(environ: Mapping[str, str]) -> int:
    """Ask once. What is wrong goes to stderr, in one line."""
    port = environ.get("COHORT_PORT", "")
    # Kubernetes' service link of that name (tcp://...) is not the setting, here as in server.settings.environment.
    number = int(port) if port.isdecimal() else _DEFAULT_PORT
    try:
        connection = _connection(_host(environ.get("COHORT_HOST", "")), number, environ)
    except OSError as error:  # of which ssl.SSLError is one
        print(f"not ready: the certificate cannot be read: {error}", file=sys.stderr)
        return 1
    try:
        connection.request("GET", "/ready")
        response = connection.getresponse()
        if response.status == 200:
            return 0
        reason = f"{response.status} {response.read(200).decode(errors='replace')}"
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
    finally:
        connection.close()
    print(f"not ready: {reason}", file=sys.stderr)
    return 1


def _host(host: str) -> str:
    """Where a server that listens on `host` is reached from this machine. http.client tries all addresses of a name."""
    host = host.removeprefix("[").removesuffix("]")
    return {"": "127.0.0.1", "*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)


def _connection(host: str, port: int, environ: Mapping[str, str]) -> http.client.HTTPConnection:
    certificate = environ.get("COHORT_SSL_CERTFILE")
    if not certificate:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    # An empty variable counts as one that is not set, here as in server.settings.environment.
    if (environ.get("COHORT_SSL_CERT_REQS") or "0") != "0":
        context.load_cert_chain(certificate, environ.get("COHORT_SSL_KEYFILE") or None)
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)


if __name__ == "__main__":
    sys.exit(main(os.environ))
