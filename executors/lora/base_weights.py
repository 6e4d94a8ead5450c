"""The embeddings and the head in the files of the model that an adapter is for, with which the adapter's own are compared.

Two tensors are equal if their numbers are, once the one is rounded to the other's type: training widens what it saves.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executors.contract.errors import ConfigError
from executors.gguf.file import read_gguf
from executors.lora.lora_file import widened
from executors.lora.other_parts import is_of_other_part
from executors.lora.safetensors_header import MOST_HEADER, SIZES, Entry

_GGUF_SOURCE = "gguf.json"
_EMBEDS, _HEADS = ("embed_tokens.weight", "wte.weight"), ("lm_head.weight",)
_CHUNK = 1 << 22
"""Numbers that are compared at once."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int


class BaseWeights:
    """`directory`: the model's, a checkpoint or a prepared one with `gguf.json`; None: nothing to compare with."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    def difference(self, path: Path, entry: Entry, *, head: bool) -> str:
        """Return how a tensor of the file `path` differs from the model's embedding or `head`, "" if they are equal. A head that
        is tied is the embedding. Raises ConfigError for a model that cannot be read."""
        try:
            base = self._find(head) or (self._find(False) if head else None)
        except OSError as error:
            raise ConfigError(f"{self._directory}: it cannot be read: {error.strerror}") from None
        if base is None:
            return "has nothing in the model's files to be compared with"
        if base.dtype not in SIZES:
            return f"cannot be compared with the model's, which is quantized ({base.dtype})"
        if base.shape != entry.shape:
            return f"has shape {list(entry.shape)}, the model's {list(base.shape)}"
        return (
            ""
            if _equal(_Tensor(path, entry.dtype, entry.shape, entry.begin), base)
            else "differs from the model's"
        )

    def _find(self, head: bool) -> _Tensor | None:
        if self._directory is None:
            return None
        source = self._directory / _GGUF_SOURCE
        if source.is_file():
            gguf = read_gguf(Path(json.loads(source.read_bytes())["files"][0]), arrays=False)
            one = gguf.tensors.get("output.weight" if head else "token_embd.weight")
            return None if one is None else _Tensor(one.path, one.type, one.shape, one.offset)
        matches = [
            (name, tensor)
            for path in sorted(self._directory.glob("*.safetensors"))
            for name, tensor in _tensors(path).items()
            if name.endswith(_HEADS if head else _EMBEDS) and not is_of_other_part(name)
        ]
        return min(matches, key=lambda one: len(one[0]))[1] if matches else None


def _tensors(path: Path) -> dict[str, _Tensor]:
    """The tensors of a safetensors file of any types. Nothing of a header that is none."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MOST_HEADER:
            return {}
        raw = file.read(length)
    try:
        header: dict[str, Any] = json.loads(raw)
        return {
            name: _Tensor(
                path, str(one["dtype"]), tuple(one["shape"]), 8 + length + int(one["data_offsets"][0])
            )
            for name, one in header.items()
            if name != "__metadata__"
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _equal(one: _Tensor, other: _Tensor) -> bool:
    to_other = to_one = True
    with one.path.open("rb") as file, other.path.open("rb") as base:
        file.seek(one.begin)
        base.seek(other.begin)
        rest = math.prod(one.shape)
        while rest and (to_other or to_one):
            count = min(rest, _CHUNK)
            ours, theirs = file.read(count * SIZES[one.dtype]), base.read(count * SIZES[other.dtype])
            if len(ours) < count * SIZES[one.dtype] or len(theirs) < count * SIZES[other.dtype]:
                return False
            a, b = widened(ours, one.dtype), widened(theirs, other.dtype)
            to_other = to_other and np.array_equal(_rounded(a, other.dtype), b)
            to_one = to_one and np.array_equal(a, _rounded(b, one.dtype))
            rest -= count
    return to_other or to_one


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """Values rounded to a type, to the nearest and half to even, as float32."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)) & np.uint32(0xFFFF0000)).view(
            np.float32
        )
    return values
