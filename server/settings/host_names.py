"""Names and addresses of hosts, as they stand in a Host header and in settings. Standard library only: settings are read before
anything large is imported.
"""

from __future__ import annotations

import ipaddress
import re

ANY = "*"
"""Stands for every host."""
_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")


def is_loopback(name: str) -> bool:
    """True for an address of the loopback, and for `localhost` and names below it (RFC 6761, 6.3)."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def fault_of(name: str) -> str | None:
    """What is wrong with an entry of --allowed-hosts, None if nothing is."""
    if name == ANY or is_address(name) or _NAME.fullmatch(name):
        return None
    return "it should be a name or an address, without scheme, port or path; *.example.com for all names below one; or *"


def plain_host(host: str) -> str:
    """In lower case, an address without brackets and in its usual form, a name without the dot at its end."""
    host = host.strip().lower()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return host.removesuffix(".")


def is_address(host: str) -> bool:
    """True for an address without a port, with or without brackets."""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return False
    return True
