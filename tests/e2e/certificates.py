"""Certificates for tests of TLS, made with the standard library alone: no dependency and no committed private key.

RSA as in RFC 8017 (PKCS #1), certificates as in RFC 5280, both in DER. The keys are from a seeded generator and protect
nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import math
import random
import textwrap
import time
from dataclasses import dataclass

_SHA256_WITH_RSA = "1.2.840.113549.1.1.11"
_RSA = "1.2.840.113549.1.1.1"
_SHA256 = "2.16.840.1.101.3.4.2.1"
_COMMON_NAME = "2.5.4.3"
_E = 65537


@dataclass(frozen=True)
class Key:
    """An RSA key of 2048 bits."""

    p: int
    q: int

    @property
    def n(self) -> int:
        return self.p * self.q

    @property
    def d(self) -> int:
        return pow(_E, -1, math.lcm(self.p - 1, self.q - 1))

    def pem(self) -> str:
        d, p, q = self.d, self.p, self.q
        numbers = (0, self.n, _E, d, p, q, d % (p - 1), d % (q - 1), pow(q, -1, p))
        return _pem("RSA PRIVATE KEY", _sequence(*map(_integer, numbers)))

    def sign(self, data: bytes) -> bytes:
        """RSASSA-PKCS1-v1_5 with SHA-256."""
        digest = _sequence(_sequence(_oid(_SHA256), _NULL), _tlv(4, hashlib.sha256(data).digest()))
        padded = b"\x00\x01" + b"\xff" * (256 - 3 - len(digest)) + b"\x00" + digest
        return pow(int.from_bytes(padded), self.d, self.n).to_bytes(256)

    @property
    def public(self) -> bytes:
        return _sequence(_integer(self.n), _integer(_E))

    @property
    def identifier(self) -> bytes:
        return hashlib.sha1(self.public, usedforsecurity=False).digest()


@functools.cache
def key(seed: int) -> Key:
    """A key; the same for the same seed."""
    source = random.Random(seed)
    first, second = _prime(source), _prime(source)
    return Key(max(first, second), min(first, second))


def certificate(name: str, subject: Key, issuer: str, signer: Key, hosts: tuple[str, ...] | None) -> str:
    """In PEM, valid from yesterday on for a month. `hosts` None makes it an authority's."""
    serial = int.from_bytes(hashlib.sha256(f"{name}{issuer}".encode()).digest()[:8]) >> 1
    now = time.time()
    extensions = [
        _extension("2.5.29.14", _tlv(4, subject.identifier)),
        _extension("2.5.29.35", _sequence(_tlv(0x80, signer.identifier))),
    ]
    if hosts is None:
        extensions.append(_extension("2.5.29.19", _sequence(_tlv(1, b"\xff")), critical=True))
        extensions.append(_extension("2.5.29.15", _tlv(3, b"\x01\x06"), critical=True))  # signs certificates
    elif hosts:
        extensions.append(_extension("2.5.29.17", _sequence(*map(_host, hosts))))
    algorithm = _sequence(_oid(_SHA256_WITH_RSA), _NULL)
    body = _sequence(
        _tlv(0xA0, _integer(2)),
        _integer(serial),
        algorithm,
        _name(issuer),
        _sequence(_time(now - 86400), _time(now + 30 * 86400)),
        _name(name),
        _sequence(_sequence(_oid(_RSA), _NULL), _tlv(3, b"\x00" + subject.public)),
        _tlv(0xA3, _sequence(*extensions)),
    )
    return _pem("CERTIFICATE", _sequence(body, algorithm, _tlv(3, b"\x00" + signer.sign(body))))


def _prime(source: random.Random) -> int:
    while True:
        candidate = source.getrandbits(1024) | 1 << 1023 | 1 << 1022 | 1
        if math.gcd(candidate - 1, _E) == 1 and _is_prime(candidate, source):
            return candidate


def _is_prime(number: int, source: random.Random) -> bool:
    """Miller and Rabin's test."""
    if any(number % small == 0 for small in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)):
        return False
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for _ in range(8):
        x = pow(source.randrange(2, number - 1), (number - 1) >> twos, number)
        if x in (1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


def _tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    octets = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(octets))) + octets + content


_NULL = _tlv(5, b"")


def _sequence(*parts: bytes) -> bytes:
    return _tlv(0x30, b"".join(parts))


def _integer(number: int) -> bytes:
    return _tlv(2, number.to_bytes(number.bit_length() // 8 + 1))


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    out = bytearray()
    for number in (first * 40 + second, *rest):
        septets = [number & 127]
        while number := number >> 7:
            septets.append(number & 127 | 128)
        out += bytes(reversed(septets))
    return _tlv(6, bytes(out))


def _name(text: str) -> bytes:
    return _sequence(_tlv(0x31, _sequence(_oid(_COMMON_NAME), _tlv(12, text.encode()))))


def _time(seconds: float) -> bytes:
    return _tlv(23, time.strftime("%y%m%d%H%M%SZ", time.gmtime(seconds)).encode())


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(oid), _tlv(1, b"\xff") if critical else b"", _tlv(4, value))


def _host(host: str) -> bytes:
    try:
        return _tlv(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return _tlv(0x82, host.encode())


def _pem(kind: str, data: bytes) -> str:
    lines = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"
