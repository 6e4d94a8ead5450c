"""The listening socket. Apart from the rest, so that the port is open before anything large is imported."""

from __future__ import annotations

import os
import socket

from server.settings import SettingsError


def listen(host: str, port: int) -> socket.socket:
    """A bound and listening socket. Raises SettingsError, one line, when the address cannot be had."""
    where = f"{host}:{port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise SettingsError(f"--host {host}: not an address of this machine") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "; take another with --port" if "in use" in reason else ""
        raise SettingsError(f"cannot listen on {where}: {reason.lower()}{hint}") from None
    listener.setblocking(False)
    return listener
