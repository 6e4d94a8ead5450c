"""The listening sockets, in a module of its own so that the port is open before any large import."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Self

from server.settings.host_names import is_address, is_loopback
from server.settings.load import SettingsError
from server.system.exit_codes import NotYet

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
    needed_files = MAX_CONNECTIONS + SPARE_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed_files:
        soft = needed_files if hard == resource.RLIM_INFINITY else min(needed_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    room = soft - _OTHER_FILES
    return max(1, min(MAX_CONNECTIONS, room - min(SPARE_CONNECTIONS, room // 2)))


_BACKLOG = 2048
_ATTEMPTS = 20
"""Attempts to find one port that is free at all addresses of a host."""
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
"""This machine has no such address, or no such family of addresses."""
_ANY = ("", "*")
"""Hosts that stand for every address of both families."""
_ANY_IPV4 = "0.0.0.0"
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_Address = tuple[int, tuple[Any, ...]]
"""Family and address of a socket."""


class AddressNotYet(SettingsError, NotYet):
    """The address is taken, or is not there: a network comes up late, another process ends soon."""


class Listener:
    """The listening sockets of a server: one, or one for each address that the name of its host has."""

    def __init__(self, sockets: Sequence[socket.socket], notes: Sequence[str] = ()) -> None:
        self.sockets = tuple(sockets)
        self.notes = tuple(notes)
        """Lines for the log: addresses of the host that are left out, and why."""

    @property
    def port(self) -> int:
        """The port, the same at all addresses."""
        return int(self.sockets[0].getsockname()[1])

    @property
    def address(self) -> str:
        """The address that most clients reach: one that is not of the loopback interface, if there is any."""
        hosts = [str(one.getsockname()[0]) for one in self.sockets]
        return next((one for one in hosts if not is_loopback(one)), hosts[0])

    @property
    def any_address(self) -> bool:
        """True if it answers at every address of the machine."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_unspecified

    def close(self) -> None:
        """Close all sockets."""
        for one in self.sockets:
            one.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listen(host: str, port: int, patience: float = 60.0) -> Listener:
    """Sockets that are bound and listening, at every address of `host`, with one port. Port 0: a free one. "", "*" and "::" are
    every address of both families; "::" is that of IPv4 alone where the machine has no IPv6.

    Raises SettingsError with a one-line message, AddressNotYet if the address may be available later.

    On Linux the kernel ends a connection whose peer has vanished, or takes none of the data sent to it, after one and a half
    times `patience` seconds. A connection that the server itself closes for this reason is logged.
    """
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]  # as in a URL
    sockets, notes = _bind_all(host, port)
    for one in sockets:
        one.setblocking(False)
        _watch_connections(one, patience)
    return Listener(sockets, notes)


def of_descriptors(numbers: Iterable[int]) -> Listener:
    """The listener of another process, by the descriptors that were inherited from it."""
    sockets = [socket.socket(fileno=number) for number in numbers]
    for one in sockets:
        one.setblocking(False)
    return Listener(sockets)


def _bind_all(host: str, port: int) -> tuple[list[socket.socket], list[str]]:
    addresses = _addresses(host, port)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _bind_each(host, port, addresses)
        except OSError as error:
            # A port that is free at one address may be taken at the other.
            if port == 0 and error.errno == errno.EADDRINUSE and attempt < _ATTEMPTS:
                continue
            raise _fault(host, port, error) from None
    raise AssertionError("unreachable")


def _addresses(host: str, port: int) -> list[_Address]:
    """Where to listen, without doubles, IPv4 first: its address is what a person is shown. Raises SettingsError."""
    everywhere: list[_Address] = [(socket.AF_INET6, ("::", port, 0, 0)), (socket.AF_INET, (_ANY_IPV4, port))]
    if host in _ANY:
        return everywhere
    listed: list[_Address] = []
    if _is_localhost(host):
        # Browsers and clients know both addresses by themselves, whatever the machine's table of hosts says (RFC 6761, 6.3).
        listed = [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port, 0, 0))]
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listed += [(family, address) for family, _, _, _, address in infos if family in _FAMILIES]
    except socket.gaierror as error:
        if not listed:
            raise _unresolved(host, port, error) from None
    except UnicodeError:
        raise SettingsError(f"--host {host[:100]}: neither an address nor a name") from None
    if any(address[0] == "::" for _, address in listed):
        return everywhere
    return sorted(dict.fromkeys(listed), key=lambda one: one[0] != socket.AF_INET)


def _is_localhost(host: str) -> bool:
    name = host.lower().removesuffix(".")
    return name == "localhost" or name.endswith(".localhost")


def _unresolved(host: str, port: int, error: socket.gaierror) -> SettingsError:
    if "%" in host and is_address(host):  # fe80::1%eth0: the interface comes up late
        return _fault(host, port, OSError(errno.EADDRNOTAVAIL, ""))
    if error.errno == socket.EAI_AGAIN:
        return AddressNotYet(
            f"--host {host}: the name cannot be resolved at the moment; check the network, or give an address"
        )
    hint = "; give it without scheme and port, which --port has" if ":" in host else ""
    return SettingsError(f"--host {host}: not an address of this machine, and no name of one{hint}")


def _bind_each(host: str, port: int, addresses: Sequence[_Address]) -> tuple[list[socket.socket], list[str]]:
    """Bind at each address that this machine has. Raises OSError if it has none of them, or one is taken."""
    bound: list[socket.socket] = []
    left_out: list[OSError] = []
    notes: list[str] = []
    try:
        for family, address in addresses:
            chosen = port or (bound[0].getsockname()[1] if bound else 0)
            try:
                bound.append(_bind(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in _ABSENT:
                    error.filename = address[0]
                    raise
                left_out.append(error)
                notes.append(f"--host {host}: {address[0]} is left out: {_reason(error)}")
            if bound and address[0] == "::":
                return bound, []  # which is IPv4 too
        if not bound:
            raise left_out[0]
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound, [] if host in _ANY or _is_localhost(host) else notes


def _bind(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # Each address has a socket of its own, but for "every address", which is one for both families, and those of IPv4 in
            # the form of IPv6.
            both = address[0] == "::" or address[0].startswith("::ffff:")
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _fault(host: str, port: int, error: OSError) -> SettingsError:
    where = f"[{host}]:{port}" if ":" in host else f"{host or '*'}:{port}"
    if error.filename not in (None, host):
        where += f" (at {error.filename})"  # one of several: others may be free
    if error.errno == errno.EADDRINUSE:
        hint = "; end the process that has it, or take another with --port"
        return AddressNotYet(f"cannot listen on {where}: {_reason(error)}{hint}")
    if error.errno in _ABSENT:
        hint = "; name an address of this machine with --host, or bring up the network that has it"
        return AddressNotYet(f"cannot listen on {where}: {_reason(error)}{hint}")
    hint = "; take a --port from 1024 up" if error.errno == errno.EACCES and port < 1024 else ""
    return SettingsError(f"cannot listen on {where}: {_reason(error)}{hint}")


def _reason(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


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
