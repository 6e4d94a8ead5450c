"""Writes the bytes of GGUF files field by field, faulty ones included."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """One entry of metadata."""
    return string(key) + struct.pack("<I", kind) + value


def u32(key: str, value: int) -> bytes:
    return entry(key, U32, struct.pack("<I", value))


def u16(key: str, value: int) -> bytes:
    return entry(key, 2, struct.pack("<H", value))


def text(key: str, value: str | bytes) -> bytes:
    return entry(key, STRING, string(value))


def array(key: str, kind: int, count: int, elements: bytes) -> bytes:
    return entry(key, ARRAY, struct.pack("<IQ", kind, count) + elements)


def strings(key: str, values: Sequence[str | bytes]) -> bytes:
    return array(key, STRING, len(values), b"".join(map(string, values)))


def tensor(name: str, sizes: Sequence[int], kind: int, begin: int, dimensions: int | None = None) -> bytes:
    """One entry of the index; `sizes` in the file's order, the contiguous one first."""
    count = len(sizes) if dimensions is None else dimensions
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, begin)


def gguf(
    entries: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    num_tensors: int | None = None,
    num_entries: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file, with counts of its own if they are given."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    head += b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data
