"""One file for one adapter: `<digest>.safetensors`, where the digest is the SHA-256 of what it computes.

Tensors `MODULE.A` [rank, inputs] and `MODULE.B` [outputs, rank], where MODULE is the checkpoint's name of a weight without its
`.weight`; the metadata has the scales: y = W x + scale * B (A x). With `architecture` in the metadata the names, and the order of
B's rows, are those of GGUF files of that architecture (`blk.0.attn_q`); `source` is the name of the file that people know.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from executors.contract.errors import ConfigError
from executors.lora.safetensors_header import SIZES, Entry, read_header

_SCALES, _ARCHITECTURE, _SOURCE = "scales", "architecture", "source"
MOST_MODULES = 20_000


@dataclass(frozen=True, slots=True)
class PackedLora:
    """An adapter in its file. `rank`: the highest of its modules; `base_model`: what it is said to be for; `notes`: a sentence
    for each thing in its files that is not used."""

    path: Path
    digest: str
    rank: int
    base_model: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """What an adapter adds to a weight: float32 `a` [rank, inputs] and `b` [outputs, rank], and the scale."""

    name: str
    a: NDArray[np.float32]
    b: NDArray[np.float32]
    scale: float


@dataclass(frozen=True, slots=True)
class LoraFile:
    """The shapes of an adapter, and its modules one after the other. `architecture`: that of GGUF whose names it has, None for
    a checkpoint's; `label`: the name of its file in messages."""

    path: Path
    entries: dict[str, Entry]
    scales: dict[str, float]
    architecture: str | None = None
    label: str = ""

    @property
    def names(self) -> list[str]:
        """Names of the modules, sorted."""
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
        raw = read_exactly(file, entry, self.path.name, name)
        return widened(raw, entry.dtype).reshape(entry.shape)


def read_exactly(file: object, entry: Entry, label: str, name: str) -> bytes:
    """Return a tensor's bytes. Raises ConfigError, which calls the file `label`, if they are not all there."""
    file.seek(entry.begin)  # type: ignore[attr-defined]
    raw: bytes = file.read(entry.num_bytes)  # type: ignore[attr-defined]
    if len(raw) != entry.num_bytes:
        raise ConfigError(f"{label}: tensor {name} is cut off")
    return raw


def widened(raw: bytes, dtype: str) -> NDArray[np.float32]:
    """Return numbers of one of SIZES as float32."""
    if dtype == "F32":
        return np.frombuffer(raw, np.float32)
    if dtype == "F16":
        return np.frombuffer(raw, np.float16).astype(np.float32)
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def read_adapter(path: Path, digest: str | None = None) -> LoraFile:
    """Read the header of an adapter's file; with a `digest` also check that the content is what it was.

    Raises ConfigError naming the file and the tensor.
    """
    try:
        with path.open("rb") as file:
            entries, metadata = read_header(file, path, path.stat().st_size)
            scales = _scales(path, entries, metadata)
            architecture, label = metadata.get(_ARCHITECTURE), metadata.get(_SOURCE) or path.name
            adapter = LoraFile(path, entries, scales, architecture, label)
            if digest is not None and _digest(file, adapter) != digest:
                raise ConfigError(f"{path.name}: its content is not what was loaded before")
            return adapter
    except OSError as error:
        raise ConfigError(f"{path.name}: it cannot be read: {error.strerror}") from None


def _scales(path: Path, entries: dict[str, Entry], metadata: dict[str, str]) -> dict[str, float]:
    try:
        values = json.loads(metadata[_SCALES])
        scales = {str(name): float(scale) for name, scale in values.items()}
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


def _digest(file: object, adapter: LoraFile) -> str:
    digest = Digest(adapter.architecture)
    for name in adapter.names:
        digest.add_module(name, adapter.scales[name])
        for part in "AB":
            entry = adapter.entries[f"{name}.{part}"]
            digest.add_tensor(entry, read_exactly(file, entry, adapter.path.name, f"{name}.{part}"))
    return digest.value


class Digest:
    """SHA-256 over modules in order of their names: name, scale, and each tensor's type, shape and numbers; before them the
    architecture whose names they are, if there is one."""

    def __init__(self, architecture: str | None = None) -> None:
        self._hash = hashlib.sha256()
        if architecture is not None:
            self._hash.update(json.dumps({_ARCHITECTURE: architecture}).encode() + b"\0")

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


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor to write: its name in messages, its type, one of SIZES, its shape, and what reads its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], bytes]


def write_adapter(
    target: Path,
    pairs: Mapping[str, tuple[PackedTensor, PackedTensor]],
    scales: dict[str, float],
    source: str,
    architecture: str | None = None,
) -> tuple[Path, str]:
    """Write A and B of each module into the folder `target`; see the head of this file. Returns the path and the digest.

    `pairs` in order of the modules' names. Raises what their `read` raises, and OSError if the target cannot be written."""
    metadata = {_SCALES: json.dumps(scales), _SOURCE: source}
    if architecture is not None:
        metadata[_ARCHITECTURE] = architecture
    digest, at = Digest(architecture), 0
    described: dict[str, object] = {"__metadata__": metadata}
    for name, pair in pairs.items():
        for part, tensor in zip("AB", pair, strict=True):
            size = SIZES[tensor.dtype] * math.prod(tensor.shape)
            described[f"{name}.{part}"] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [at, at + size],
            }
            at += size
    text = json.dumps(described).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.NamedTemporaryFile(dir=target, prefix="packing-", delete=False) as file:
        try:
            file.write(len(text).to_bytes(8, "little") + text)
            for name, pair in pairs.items():
                digest.add_module(name, scales[name])
                for tensor in pair:
                    raw = tensor.read()
                    _check_finite(source, tensor, raw)
                    digest.add_tensor(Entry(tensor.dtype, tensor.shape, 0), raw)
                    file.write(raw)
            file.flush()
            final = target / f"{digest.value}.safetensors"
            Path(file.name).replace(final)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return final, digest.value


_EXPONENTS = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00), "BF16": (np.uint16, 0x7F80)}
"""Bits that are all set in NaN and infinity."""


def _check_finite(source: str, tensor: PackedTensor, raw: bytes) -> None:
    kind, exponent = _EXPONENTS[tensor.dtype]
    if bool(((np.frombuffer(raw, kind) & exponent) == exponent).any()):
        raise ConfigError(f"{source}: tensor {tensor.name[:200]} holds NaN or infinity")
