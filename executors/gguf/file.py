"""The header of a GGUF file: metadata and the index of its tensors, read strictly. No data of tensors is read.

Layout, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):

    "GGUF" | u32 version | u64 tensors | u64 metadata entries
    each entry:   string key | u32 kind | value
    each tensor:  string name | u32 dimensions | u64 sizes, the contiguous one first | u32 type | u64 offset
    padding to the alignment, then the data, in which every tensor begins at a multiple of the alignment

A string is a u64 length and its bytes; an array is u32 kind, u64 count and the elements. A count or length is compared with the
bytes that are left before anything is allocated for it: what is allocated is in proportion to the file's size, whatever the file
claims. A model may lie in several files `NAME-00001-of-00003.gguf`; the first has the metadata, each has an index of its own.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import re
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from executors.contract.errors import ConfigError
from executors.gguf.not_whole import fetch_first, put_together
from executors.gguf.types import BY_ID, unknown_type

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_KINDS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Plain values by their kind, as formats of `struct`, which are NumPy's type codes, too."""
_SCALARS = {kind: struct.Struct("<" + code) for kind, code in _KINDS.items()}
_DTYPES = {kind: np.dtype(code).newbyteorder("<") for kind, code in _KINDS.items()}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]
_LEAST_ENTRY = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8
_MOST_DIMENSIONS = 4
_MOST_NESTED = 4
"""Arrays within arrays."""
_MOST_ALIGNMENT = 1 << 20
_MOST_PARTS = 10_000
_SHORT = 1024
_TOKENIZER = "tokenizer."
_SURROGATES, _ESCAPED = "surrogateescape", "backslashreplace"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `type` by name (`Q4_K`), `shape` in row-major order, (rows, columns) for a matrix. Its `num_bytes` bytes begin
    at byte `offset` of the file `path`."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a model in one or several files.

    `parts`: the files in order. `data_offset`: where the data of the first begins, and so the size of its header in bytes.
    """

    path: Path
    parts: tuple[Path, ...]
    data_offset: int
    metadata: dict[str, Any]
    """Numbers, strings, NumPy arrays of numbers, lists of strings and lists of arrays."""
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path, arrays: bool = True) -> GgufFile:
    """Read the header of `path`, which is a whole model or the first of several parts; the other parts are read from beside it.

    Without `arrays`, arrays of more than 1,024 elements are skipped without being decoded and their keys are absent: a
    tokenizer's lists are most of a header.

    Odd bytes in strings of the tokenizer, which are no UTF-8, become surrogates (`surrogateescape`). In other keys and strings,
    which describe the file or name a thing from a list, they become backslash escapes. A truth value is true if it is not 0, as
    in llama.cpp.

    Raises ConfigError, one line that names the file and the field, for everything else that the format forbids.
    """
    first = _read(path, arrays)
    count = first.metadata.get("split.count", 0)
    if type(count) is not int or not 0 <= count <= _MOST_PARTS:
        raise ConfigError(f"{path}: split.count is {_shown(count)}; a number up to {_MOST_PARTS} is needed")
    if count < 2:
        return first
    tensors, parts = dict(first.tensors), _parts(path, first.metadata, count)
    for number, part in enumerate(parts[1:], 1):
        read = _read(part, arrays=False)
        own = (read.metadata.get("split.no"), read.metadata.get("split.count"))
        if own != (number, count):
            raise ConfigError(
                f"{part}: split.no and split.count are {_shown(own)}; {path} makes them {(number, count)}"
            )
        for name, tensor in read.tensors.items():
            if name in tensors:
                raise ConfigError(f"{part}: tensor {_shown(name)} is in {tensors[name].path}, too")
            tensors[name] = tensor
    total = first.metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ConfigError(
            f"{path}: split.tensors.count is {_shown(total)}, its parts hold {len(tensors)} tensors"
        )
    return GgufFile(path, parts, first.data_offset, first.metadata, tensors)


def _parts(path: Path, metadata: dict[str, Any], count: int) -> tuple[Path, ...]:
    """Return the files of a split model, whose first is `path`."""
    match = _PART.fullmatch(path.name)
    if metadata.get("split.no") != 0:
        first = f"{match['stem']}-00001-of-{count:05}.gguf" if match else "the first"
        raise ConfigError(
            f"{path}: split.no is {_shown(metadata.get('split.no'))}: a later part of a model in {count} files; "
            f"take {_shown(first)}"
        )
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise ConfigError(
            f"{path}: split.count is {count}, but the file's name does not end in -00001-of-{count:05}.gguf, "
            "by which its other parts are found"
        )
    others = (path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(2, count + 1))
    return (path, *others)


def _read(path: Path, arrays: bool) -> GgufFile:
    if not arrays:
        with contextlib.suppress(OSError):  # the reading tells of it
            stat = path.stat()
            header = _known(path, (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
            return replace(header, metadata=dict(header.metadata), tensors=dict(header.tensors))
    return _read_now(path, arrays)


@functools.lru_cache(maxsize=8)
def _known(path: Path, stamp: tuple[int, ...]) -> GgufFile:
    """A header without its long arrays, as long as the file is the same: a load asks for it nine times, and to skip a vocabulary
    takes as long as all the rest."""
    return _read_now(path, arrays=False)


def _read_now(path: Path, arrays: bool) -> GgufFile:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise ConfigError(f"{path}: cannot be read ({error})") from None
    with data:
        cursor = _Cursor(path, data)
        num_tensors, num_entries = _counts(cursor)
        metadata = _metadata(cursor, num_entries, arrays)
        return _index(cursor, num_tensors, metadata)


class _Cursor:
    """A place in the bytes of a file, and what reads on from it. `at` may be set; `size` is the file's."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def fail(self, what: str) -> NoReturn:
        raise ConfigError(f"{self.path}: {what}")

    def take(self, length: int, what: str) -> int:
        """Move on by `length` bytes and return where they begin."""
        begin = self.at
        if length > self.size - begin:
            self.fail(f"truncated: {what} needs {length} bytes at byte {begin} of {self.size}")
        self.at = begin + length
        return begin

    def scalar(self, form: struct.Struct, what: str) -> Any:
        return form.unpack_from(self.data, self.take(form.size, what))[0]

    def string(self, what: str, errors: str = "strict") -> str:
        length = self.scalar(_U64, what)
        begin = self.take(length, what)
        try:
            return str(self.data[begin : begin + length], "utf-8", errors)
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8")


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Return the numbers of tensors and of metadata entries."""
    magic = cursor.data[:4]
    if magic != _MAGIC:
        cure = put_together(cursor.path.name) or fetch_first(cursor.data[:64])
        cursor.fail(f"not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}{cure}")
    cursor.at = 4
    version = cursor.scalar(_U32, "the version")
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        form = f"big-endian (version {swapped})" if swapped in (1, *_VERSIONS) else f"version {version}"
        cursor.fail(f"GGUF {form} is not supported; supported: version 2 and 3, little-endian")
    num_tensors = cursor.scalar(_U64, "the number of tensors")
    num_entries = cursor.scalar(_U64, "the number of metadata entries")
    rest = cursor.size - cursor.at
    for count, least, what in (
        (num_entries, _LEAST_ENTRY, "metadata entries"),
        (num_tensors, _LEAST_TENSOR, "tensors"),
    ):
        if count * least > rest:
            cursor.fail(f"corrupt or truncated: {count} {what} do not fit into its {rest} bytes")
    return num_tensors, num_entries


def _metadata(cursor: _Cursor, count: int, arrays: bool) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    keys: set[str] = set()
    for _ in range(count):
        key = cursor.string("a metadata key", _ESCAPED)
        if not key:
            cursor.fail(f"corrupt: a metadata key before byte {cursor.at} is empty")
        what = f"metadata {_shown(key)}"
        if key in keys:
            cursor.fail(f"{what} occurs twice")
        keys.add(key)
        kind = cursor.scalar(_U32, what)
        errors = _SURROGATES if key.startswith(_TOKENIZER) else _ESCAPED
        if kind != _ARRAY:
            metadata[key] = _value(cursor, kind, what, errors)
            continue
        value = _array(cursor, what, arrays, errors, _MOST_NESTED)
        if value is not None:
            metadata[key] = value
    return metadata


def _value(cursor: _Cursor, kind: int, what: str, errors: str) -> Any:
    if kind == _STRING:
        return cursor.string(what, errors)
    if kind not in _SCALARS:
        cursor.fail(f"{what} has values of the unknown kind {kind}")
    if kind == _BOOL:
        return cursor.scalar(_SCALARS[0], what) != 0
    return cursor.scalar(_SCALARS[kind], what)


def _array(cursor: _Cursor, what: str, arrays: bool, errors: str, depth: int) -> Any:
    """Read an array; return None for one that is to be skipped."""
    kind = cursor.scalar(_U32, what)
    count = cursor.scalar(_U64, what)
    with_values = arrays or count <= _SHORT
    if kind == _STRING:
        return _strings(cursor, count, what, with_values, errors)
    if kind == _ARRAY:
        if depth <= 1:
            cursor.fail(f"{what} has arrays nested more than {_MOST_NESTED} deep")
        _fits(cursor, count, 12, what)
        inner = [_array(cursor, what, arrays, errors, depth - 1) for _ in range(count)]
        return inner if with_values and all(one is not None for one in inner) else None
    if kind not in _DTYPES:
        cursor.fail(f"{what} has values of the unknown kind {kind}")
    dtype = _DTYPES[kind]
    _fits(cursor, count, dtype.itemsize, what)
    begin = cursor.take(count * dtype.itemsize, what)
    if not with_values:
        return None
    raw = np.frombuffer(cursor.data[begin : cursor.at], np.uint8 if kind == _BOOL else dtype)
    return raw.astype(bool) if kind == _BOOL else raw.astype(dtype.newbyteorder("="))


def _fits(cursor: _Cursor, count: int, least: int, what: str) -> None:
    """Refuse a count of elements, of at least `least` bytes each, that the rest of the file cannot hold."""
    if count * least > cursor.size - cursor.at:
        cursor.fail(f"truncated: {what} has {count} elements, {cursor.size - cursor.at} bytes are left")


def _strings(cursor: _Cursor, count: int, what: str, with_values: bool, errors: str) -> list[str] | None:
    _fits(cursor, count, 8, what)
    # A tokenizer has 262,144 of them: the loop has names of its own for all that it uses.
    data, size, at, length_at = cursor.data, cursor.size, cursor.at, _U64.unpack_from
    strings: list[str] = []
    try:
        for _ in range(count):
            (length,) = length_at(data, at)
            at += 8
            end = at + length
            if end > size:
                cursor.fail(f"truncated: a string of {what} needs {length} bytes at byte {at} of {size}")
            if with_values:
                strings.append(str(data[at:end], "utf-8", errors))
            at = end
    except struct.error:
        cursor.fail(f"truncated: {what} ends beyond byte {size}")
    except UnicodeDecodeError:
        cursor.fail(f"{what} has a string that is not UTF-8")
    cursor.at = at
    return strings if with_values else None


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    type: str
    shape: tuple[int, ...]
    begin: int
    """Counted from the beginning of the data."""
    num_bytes: int


def _index(cursor: _Cursor, count: int, metadata: dict[str, Any]) -> GgufFile:
    """Read the tensors' entries and check that their data lie in the file without overlap."""
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        entry = _entry(cursor)
        if entry.name in entries:
            cursor.fail(f"tensor {_shown(entry.name)} occurs twice")
        entries[entry.name] = entry
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
        cursor.fail(
            f"metadata general.alignment is {_shown(alignment)}; a power of two up to {_MOST_ALIGNMENT} is needed"
        )
    data = -(-cursor.at // alignment) * alignment
    end, before = 0, ""
    for entry in sorted(entries.values(), key=lambda one: one.begin):
        what = f"tensor {_shown(entry.name)}"
        if entry.begin % alignment:
            cursor.fail(f"{what} begins at byte {entry.begin} of the data, no multiple of {alignment}")
        if entry.begin < end:
            cursor.fail(f"{what} begins at byte {entry.begin} of the data, within tensor {_shown(before)}")
        end, before = entry.begin + entry.num_bytes, entry.name
        if data + end > cursor.size:
            cure = put_together(cursor.path.name)
            cursor.fail(f"truncated: {what} ends at byte {data + end} of {cursor.size}{cure}")
    tensors = {
        name: GgufTensor(name, one.type, one.shape, data + one.begin, one.num_bytes, cursor.path)
        for name, one in entries.items()
    }
    return GgufFile(cursor.path, (cursor.path,), data, metadata, tensors)


def _entry(cursor: _Cursor) -> _Entry:
    name = cursor.string("the name of a tensor")
    what = f"tensor {_shown(name)}"
    dimensions = cursor.scalar(_U32, what)
    if not 1 <= dimensions <= _MOST_DIMENSIONS:
        cursor.fail(f"{what} has {dimensions} dimensions; supported: 1 to {_MOST_DIMENSIONS}")
    sizes = [cursor.scalar(_U64, what) for _ in range(dimensions)]
    number = cursor.scalar(_U32, what)
    begin = cursor.scalar(_U64, what)
    block = BY_ID.get(number)
    if block is None:
        cursor.fail(f"{what} has the unknown type {unknown_type(number)}")
    if 0 in sizes:
        cursor.fail(f"{what} has the shape {sizes[::-1]}")
    if sizes[0] % block.values:
        cursor.fail(
            f"{what} has rows of {sizes[0]} values, no multiple of the {block.values} of a {block.name} block"
        )
    num_bytes = math.prod(sizes) // block.values * block.num_bytes
    return _Entry(name, block.name, tuple(reversed(sizes)), begin, num_bytes)


def _shown(value: object) -> str:
    """Return a value of the file as part of a message of one line."""
    text = str(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if text.isprintable() else ascii(text)
