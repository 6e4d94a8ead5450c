"""A file of the disk tier: a chain of tokens, and the bytes of some of its blocks.

    0         magic, version, bytes of the header, SHA-256 of what follows in the header
    56        lengths of the three parts; facts (JSON); tokens int32 [n]; entries (group, number, checksum) [m]
    header    bytes of entry 0, of entry 1, ...; each begins at a multiple of 4 KiB

The tokens are those of the whole chain, from its first one on, so that all that a block depends on can be compared with a prompt.
The keys of blocks are not stored: a reader derives them from the root and the tokens. A checksum is the seal that the executor
computed over a block, and computes again before the block is used. The length of a complete file follows from its header.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.kv.prefix_cache import block_key
from executors.contract import Int32Array

MAGIC = b"COHORTKV"
VERSION = 1
ALIGNMENT = 4096
"""What direct input and output asks of places and lengths."""
MAX_HEADER_BYTES = 16 << 20
"""More than a chain of a million tokens needs: a length that was damaged must not take memory."""
_FIXED = struct.Struct("<8sII32s")
_LENGTHS = struct.Struct("<III")
_ENTRY = np.dtype([("group", "<i4"), ("number", "<i4"), ("checksum", "<u8")])


class BadFile(Exception):
    """A file that cannot be used. `reason`: a word for metrics: foreign, cut, damaged, stale or other_tokens."""

    def __init__(self, reason: str = "damaged", detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


class Entry(NamedTuple):
    """A block in a file: its group (states are the last one), its number in the chain, and its seal."""

    group: int
    number: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Chain:
    """What a file says of itself.

    - `fingerprint`: of what blocks' bytes depend on beside the tokens, see `KvLayout.content`. `root`: the key before the first
      block, 32 bytes. `sizes`: bytes of a block of each group.
    - `tokens` int32 [n], n a multiple of `block_size`.
    - `model`, `adapter`, `salt`: for people: a name, a digest or "", and a digest of the caller's salt or "".
    """

    fingerprint: str
    root: bytes
    block_size: int
    sizes: tuple[int, ...]
    tokens: Int32Array
    entries: tuple[Entry, ...]
    model: str = ""
    adapter: str = ""
    salt: str = ""

    def keys(self) -> list[bytes]:
        """Compute the keys of the chain's blocks."""
        keys, before = [], self.root
        for begin in range(0, len(self.tokens), self.block_size):
            before = block_key(before, self.tokens[begin : begin + self.block_size])
            keys.append(before)
        return keys

    def offsets(self, begin: int) -> list[int]:
        """Compute where each entry begins in a file whose header takes `begin` bytes; last, where the file ends."""
        offsets = [begin]
        for entry in self.entries:
            offsets.append(offsets[-1] + padded(self.sizes[entry.group]))
        return offsets

    @property
    def data_bytes(self) -> int:
        """Bytes of all entries, padding included."""
        return sum(padded(self.sizes[entry.group]) for entry in self.entries)


def padded(num_bytes: int) -> int:
    """Round up to a multiple of `ALIGNMENT`."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def encode_header(chain: Chain) -> bytes:
    """Return the header, a multiple of `ALIGNMENT` bytes."""
    facts = json.dumps(
        {
            "fingerprint": chain.fingerprint,
            "root": chain.root.hex(),
            "block_size": chain.block_size,
            "sizes": list(chain.sizes),
            "model": chain.model,
            "adapter": chain.adapter,
            "salt": chain.salt,
        }
    ).encode()
    tokens = np.ascontiguousarray(chain.tokens, "<i4").tobytes()
    entries = np.array([tuple(entry) for entry in chain.entries], _ENTRY).tobytes()
    body = _LENGTHS.pack(len(facts), len(tokens), len(entries)) + facts + tokens + entries
    size = padded(_FIXED.size + len(body))
    body += bytes(size - _FIXED.size - len(body))
    return _FIXED.pack(MAGIC, VERSION, size, hashlib.sha256(body).digest()) + body


def header_size(first: bytes) -> int:
    """Return the bytes of a header by the first `ALIGNMENT` bytes of a file. Raises BadFile."""
    if len(first) < _FIXED.size:
        raise BadFile("cut", f"{len(first)} bytes are no header")
    magic, version, size, _ = _FIXED.unpack_from(first)
    if magic != MAGIC or version != VERSION:
        raise BadFile("foreign", f"no file of the disk tier, or of version {version}")
    if not ALIGNMENT <= size <= MAX_HEADER_BYTES or size % ALIGNMENT:
        raise BadFile("damaged", f"a header of {size} bytes")
    return int(size)


def decode_header(header: bytes, file_size: int) -> Chain:
    """Return what a header says. `header`: as many bytes as `header_size` says; `file_size`: bytes of the file. Raises BadFile
    unless header and length are what was written."""
    size = header_size(header)
    if len(header) != size:
        raise BadFile("cut", f"{len(header)} of {size} bytes of a header")
    body = header[_FIXED.size :]
    if hashlib.sha256(body).digest() != _FIXED.unpack_from(header)[3]:
        raise BadFile("damaged", "the header has another digest")
    try:
        chain = _decode_body(body)
    except (ValueError, KeyError, TypeError, struct.error) as error:  # a digest of one's own making
        raise BadFile("foreign", f"a header that cannot be read: {error}") from None
    expected = size + chain.data_bytes
    if file_size != expected:
        raise BadFile("cut", f"{file_size} bytes, not {expected}")
    return chain


def _decode_body(body: bytes) -> Chain:
    lengths = _LENGTHS.unpack_from(body)
    begin = _LENGTHS.size
    if begin + sum(lengths) > len(body) or lengths[1] % 4 or lengths[2] % _ENTRY.itemsize:
        raise ValueError("parts that do not fit")
    ends = np.cumsum((begin, *lengths)).tolist()
    facts = json.loads(body[ends[0] : ends[1]])
    tokens: NDArray[np.int32] = np.frombuffer(body[ends[1] : ends[2]], "<i4").astype(np.int32)
    rows = np.frombuffer(body[ends[2] : ends[3]], _ENTRY).tolist()
    sizes, block_size, root = (
        tuple(map(int, facts["sizes"])),
        int(facts["block_size"]),
        bytes.fromhex(facts["root"]),
    )
    if block_size < 1 or len(tokens) % block_size or len(root) != 32 or min(sizes, default=0) < 1:
        raise ValueError("facts that do not fit")
    num_blocks = len(tokens) // block_size
    entries = tuple(Entry(*row) for row in rows)
    if any(not (0 <= one.group < len(sizes) and 0 <= one.number < num_blocks) for one in entries):
        raise ValueError("an entry outside the chain")
    texts = [str(facts[name]) for name in ("fingerprint", "model", "adapter", "salt")]
    return Chain(texts[0], root, block_size, sizes, tokens, entries, *texts[1:])


def check_chain(
    chain: Chain, fingerprint: str, root: bytes, sizes: Sequence[int], tokens: Int32Array, block_size: int
) -> None:
    """Raise BadFile unless a chain's first blocks are those of a prompt: same layout, same root, and the same `tokens` int32 [n],
    of all blocks up to the last one that is to be used."""
    if (
        chain.fingerprint != fingerprint
        or chain.sizes != tuple(sizes)
        or chain.block_size != block_size
        or chain.root != root
    ):
        raise BadFile("stale", "another layout, model or caller")
    if len(chain.tokens) < len(tokens) or not np.array_equal(chain.tokens[: len(tokens)], tokens):
        raise BadFile("other_tokens", "another prompt with the same key")
