"""The listening socket, in a module of its own so that the port is open before any large import."""

from __future__ import annotations

import os
import resource
import socket

from server.settings.load import SettingsError

MAX_CONNECTIONS = 8192
"""Number of connections that may be open at a time, where the system allows it: more than the sequences that may wait and run.
A connection takes 5 kB, or 14 kB once it was used."""
_OTHER_FILES = 256
"""Number of file descriptors kept for other uses than connections: the executor, logs, a model's files."""
SPARE_CONNECTIONS = 64
"""Number of connections that may be open briefly above the limit: health probes are answered, other requests are refused."""
_UNSENT = 128 * 1024
"""Size of the kernel's send buffer in bytes. Without a limit it grows to megabytes for each client that does not read."""
_IDLE, _BETWEEN = 30, 10
"""Idle time before the kernel's first keep-alive probe, and interval between its probes, in seconds."""


def most_connections() -> int:
    """The number of connections that may be open. Raises this process's limit of open files for them, as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    room = soft - _OTHER_FILES
    return max(1, min(MAX_CONNECTIONS, room - min(SPARE_CONNECTIONS, room // 2)))


def listen(host: str, port: int, patience: float = 60.0) -> socket.socket:
    """A bound and listening socket. Raises SettingsError with a one-line message if the address is not available.

    On Linux the kernel ends a connection whose peer has vanished, or takes none of the data sent to it, after one and a half
    times `patience` seconds. A connection that the server itself closes for this reason is logged.
    """
    where = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # Of a name with several addresses the IPv4 one: who looks for us on this machine asks 127.0.0.1. And "::" is any of both.
        family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        if isinstance(error, socket.gaierror):
            raise SettingsError(f"--host {host}: not an address of this machine") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        hint = "; take another with --port" if "in use" in reason else ""
        raise SettingsError(f"cannot listen on {where}: {reason.lower()}{hint}") from None
    listener.setblocking(False)
    _watch_connections(listener, patience)
    return listener


def _watch_connections(listener: socket.socket, patience: float) -> None:
    """Set the options that connections inherit from the listening socket."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    questions = max(1, round((patience - _IDLE) / _BETWEEN))
    for name, value in (
        ("TCP_KEEPIDLE", _IDLE),
        ("TCP_KEEPINTVL", _BETWEEN),
        ("TCP_KEEPCNT", questions),
        ("TCP_USER_TIMEOUT", max(1, round(patience * 1500))),
        ("TCP_NOTSENT_LOWAT", _UNSENT),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
