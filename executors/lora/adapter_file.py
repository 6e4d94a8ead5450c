"""One file for one adapter: `<digest>.safetensors`, where the digest is the SHA-256 of what it computes.

Tensors `MODULE.A` [rank, inputs] and `MODULE.B` [outputs, rank], where MODULE is the checkpoint's name of a weight without its
`.weight`; the metadata has the scales: y = W x + scale * B (A x).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executors.contract.errors import ConfigError
from executors.lora.safetensors_header import SIZES, Entry, read_header

_SCALES = "scales"
MOST_MODULES = 20_000


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter in its file. `rank`: the highest of its modules; `base_model`: what it is said to be for."""

    path: Path
    digest: str
    rank: int
    base_model: str | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """What an adapter adds to a weight: float32 `a` [rank, inputs] and `b` [outputs, rank], and the scale."""

    name: str
    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """The shapes of an adapter, and its modules one after the other."""

    path: Path
    entries: dict[str, Entry]
    scales: dict[str, float]

    @property
    def names(self) -> list[str]:
        """Of the modules."""
        return sorted(self.scales)

    @property
    def rank(self) -> int:
        """The highest of all modules."""
        return max(self.entries[f"{name}.A"].shape[0] for name in self.scales)

    def shapes(self, name: str) -> tuple[int, int, int]:
        """Outputs, inputs and rank of a module."""
        a, b = self.entries[f"{name}.A"].shape, self.entries[f"{name}.B"].shape
        return b[0], a[1], a[0]

    def modules(self) -> Iterator[Module]:
        """Read them. Raises ConfigError if the file has been cut off since."""
        with self.path.open("rb") as file:
            for name in self.names:
                a, b = (self._numbers(file, f"{name}.{part}") for part in "AB")
                yield Module(name, a, b, self.scales[name])

    def _numbers(self, file: object, name: str) -> NDArray[np.float32]:
        entry = self.entries[name]
        raw = read_exactly(file, entry, self.path, name)
        return widened(raw, entry.dtype).reshape(entry.shape)


def read_exactly(file: object, entry: Entry, path: Path, name: str) -> bytes:
    """Return a tensor's bytes. Raises ConfigError if they are not all there."""
    file.seek(entry.begin)  # type: ignore[attr-defined]
    raw: bytes = file.read(entry.num_bytes)  # type: ignore[attr-defined]
    if len(raw) != entry.num_bytes:
        raise ConfigError(f"{path.name}: tensor {name} is cut off")
    return raw


def widened(raw: bytes, dtype: str) -> NDArray[np.float32]:
    """Return numbers of one of SIZES as float32."""
    if dtype == "F32":
        return np.frombuffer(raw, np.float32)
    if dtype == "F16":
        return np.frombuffer(raw, np.float16).astype(np.float32)
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def read_adapter(path: Path, digest: str | None = None) -> AdapterFile:
    """Read the header of an adapter's file; with a `digest` also check that the content is what it was.

    Raises ConfigError naming the file and the tensor.
    """
    try:
        with path.open("rb") as file:
            entries, metadata = read_header(file, path, path.stat().st_size)
            scales = _scales(path, entries, metadata)
            found = AdapterFile(path, entries, scales)
            if digest is not None and _digest(file, found) != digest:
                raise ConfigError(f"{path.name}: its content is not what was loaded before")
            return found
    except OSError as error:
        raise ConfigError(f"{path.name}: it cannot be read: {error.strerror}") from None


def _scales(path: Path, entries: dict[str, Entry], metadata: dict[str, str]) -> dict[str, float]:
    try:
        found = json.loads(metadata[_SCALES])
        scales = {str(name): float(scale) for name, scale in found.items()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{path.name}: it is no packed adapter") from None
    if {f"{name}.{part}" for name in scales for part in "AB"} != entries.keys():
        raise ConfigError(f"{path.name}: its tensors are not those of its modules")
    for name in scales:
        a, b = entries[f"{name}.A"].shape, entries[f"{name}.B"].shape
        if len(a) != 2 or len(b) != 2 or a[0] != b[1] or not a[0] or not math.isfinite(scales[name]):
            raise ConfigError(f"{path.name}: the tensors of {name} do not fit each other")
    if not scales:
        raise ConfigError(f"{path.name}: it has no modules")
    return scales


def _digest(file: object, adapter: AdapterFile) -> str:
    made = Digest()
    for name in adapter.names:
        made.add_module(name, adapter.scales[name])
        for part in "AB":
            entry = adapter.entries[f"{name}.{part}"]
            made.add_tensor(entry, read_exactly(file, entry, adapter.path, f"{name}.{part}"))
    return made.value


class Digest:
    """SHA-256 over modules in order of their names: name, scale, and each tensor's type, shape and numbers."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add_module(self, name: str, scale: float) -> None:
        """Begin a module."""
        self._hash.update(json.dumps([name, scale.hex()]).encode() + b"\0")

    def add_tensor(self, entry: Entry, raw: bytes) -> None:
        """Add one of its two tensors."""
        self._hash.update(json.dumps([entry.dtype, entry.shape]).encode() + b"\0" + raw)

    @property
    def value(self) -> str:
        """Hexadecimal."""
        return self._hash.hexdigest()


def header_of(
    shapes: dict[str, tuple[str, tuple[int, ...]]], scales: dict[str, float]
) -> tuple[bytes, dict[str, Entry]]:
    """Return the bytes before the data of a file with these tensors, (dtype, shape) by name in the order of their data, and
    where each lies."""
    at = 0
    described: dict[str, object] = {"__metadata__": {_SCALES: json.dumps(scales)}}
    for name, (dtype, shape) in shapes.items():
        size = SIZES[dtype] * math.prod(shape)
        described[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    entries, at = {}, begin
    for name, (dtype, shape) in shapes.items():
        entries[name] = Entry(dtype, shape, at)
        at += entries[name].num_bytes
    return len(text).to_bytes(8, "little") + text, entries
