"""Rules of RFC 9112 for the head of a request, beyond the syntax that the parser checks: the version, the Host header, and
the transfer coding.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]
"""Headers in the order received, with names in lower case."""

_HOST = re.compile(
    rb"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::(?P<port>[0-9]*))?"
)
"""RFC 3986, 3.2.2 and 3.2.3, without addresses of future versions."""
_TARGET = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://(?P<authority>[^/?#]*)")
"""The absolute form of a request target (RFC 9112, 3.2.2)."""
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Fault:
    """Reason to refuse a request."""

    status: int
    message: str


def take_target(target: bytes, headers: Headers) -> None:
    """Replace the Host header's value by the host of an absolute request target, as RFC 9112, 3.2.2, requires: later checks
    then see the host that the request is for. A missing or doubled Host header stays a fault."""
    match = _TARGET.match(target)
    if match is None:
        return
    for place, (name, _) in enumerate(headers):
        if name == b"host":
            headers[place] = (name, match["authority"])


def fault_of(version: str, headers: Headers) -> Fault | None:
    """The first fault of a head in `version` ("1.1"), None if it has none."""
    if version not in ("1.0", "1.1"):
        return Fault(505, f"HTTP/{version} is not supported; use HTTP/1.1.")
    return _host_fault(version, headers) or _coding_fault(version, headers)


def _host_fault(version: str, headers: Headers) -> Fault | None:
    hosts = [value.strip() for name, value in headers if name == b"host"]
    if not hosts:
        return Fault(400, "An HTTP/1.1 request needs a Host header.") if version == "1.1" else None
    if len(hosts) > 1:
        return Fault(400, "The request has more than one Host header.")
    if not is_host(hosts[0]):
        return Fault(400, "The Host header is not a valid host, with or without a port.")
    return None


def is_host(value: bytes) -> bool:
    """True for a name or an address, with or without a port."""
    match = _HOST.fullmatch(value)
    if match is None or int(match["port"] or 0) > _MAX_PORT:
        return False
    if match["six"] is None:
        return True
    try:
        ipaddress.IPv6Address(match["six"].decode())
    except ValueError:
        return False
    return True


def _coding_fault(version: str, headers: Headers) -> Fault | None:
    """The fault of a Transfer-Encoding (RFC 9112, 6.1). Only `chunked` is served: a body that is compressed as well would be
    read as plain."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if not codings:
        return None
    if version == "1.0":
        return Fault(400, "Transfer-Encoding does not exist in HTTP/1.0.")
    if b",".join(codings).strip().lower() != b"chunked":
        return Fault(501, "The only Transfer-Encoding that is supported is chunked.")
    return None
