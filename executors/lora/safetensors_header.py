"""The header of a safetensors file: names, types, shapes and places of its tensors, each checked before it is used.

8 bytes: length of the header, little-endian | header: JSON {name: {dtype, shape, data_offsets}} | data
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from executors.contract.errors import ConfigError

MOST_HEADER = 16 << 20
"""Bytes of a header: 10,000 tensors take about 1 MiB."""
SIZES = {"F32": 4, "F16": 2, "BF16": 2}
"""Types that an adapter's tensors may have, and their bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor: its type, one of SIZES, its shape, and where its bytes begin in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def num_bytes(self) -> int:
        """Size of its data in bytes."""
        return SIZES[self.dtype] * math.prod(self.shape)


def read_header(file: BinaryIO, path: Path, size: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Return the tensors by name, and the metadata. `size`: bytes of the file. Raises ConfigError naming file and tensor."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= length <= min(MOST_HEADER, size - 8):
        raise ConfigError(f"{path.name}: it is no safetensors file, or it is cut off")
    try:
        header = json.loads(file.read(length).decode("utf-8"))
    except (ValueError, RecursionError):
        raise ConfigError(f"{path.name}: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ConfigError(f"{path.name}: its header is not an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
        raise ConfigError(f"{path.name}: its metadata is not a map of strings")
    data = size - 8 - length
    return {name: _entry(path, name, one, 8 + length, data) for name, one in header.items()}, metadata


def _entry(path: Path, name: str, one: Any, start: int, data: int) -> Entry:
    where = f"{path.name}: tensor {name[:200]}"
    if not isinstance(one, dict):
        raise ConfigError(f"{where} is not described by an object")
    dtype, shape, offsets = one.get("dtype"), one.get("shape"), one.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in SIZES:
        raise ConfigError(f"{where} has dtype {str(dtype)[:40]}; supported: {', '.join(SIZES)}")
    if not (isinstance(shape, list) and len(shape) <= 8 and all(_is_count(size) for size in shape)):
        raise ConfigError(f"{where} has no valid shape")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(_is_count(at) for at in offsets)):
        raise ConfigError(f"{where} has no valid data_offsets")
    entry = Entry(dtype, tuple(shape), start + offsets[0])
    if offsets[1] - offsets[0] != entry.num_bytes or offsets[1] > data:
        raise ConfigError(f"{where}: its data is cut off, or not of its shape")
    return entry


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 48
