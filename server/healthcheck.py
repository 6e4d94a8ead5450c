"""The container's health check: exit code 0 when /ready answers 200, else 1. `python -I -m server.healthcheck`.

The port is COHORT_PORT's, or 8000: a container that serves elsewhere says so by the environment and not by --port, which
this process cannot see. Standard library only, so that it costs little to ask often.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping

_DEFAULT_PORT = 8000
_TIMEOUT = 4.0
"""Seconds; less than the time-out of the image's HEALTHCHECK, so that the reason is printed."""


def main(environ: Mapping[str, str]) -> int:
    """Ask once. What is wrong goes to stderr, in one line."""
    port = environ.get("COHORT_PORT", "")
    # Kubernetes' service link of that name (tcp://...) is not the setting, here as in server.settings.
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(port) if port.isdecimal() else _DEFAULT_PORT, timeout=_TIMEOUT
    )
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


if __name__ == "__main__":
    sys.exit(main(os.environ))
