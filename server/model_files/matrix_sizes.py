"""How large adapters of a model can be, from the headers of its weight files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from executors.gguf.file import read_gguf
from executors.weight_files import has_weights
from server.model_files.prepared import is_gguf, model_file

_MATRIX = re.compile(r"\.\d+\.(?!.*experts?\b)(?!.*_exps\b).*weight$")
"""Weights of a numbered layer, those of experts aside, which take no adapters."""
_MOST_HEADER = 100 << 20
"""Bytes of the largest header that safetensors writes."""


def adapter_elements(path: Path) -> int:
    """Numbers in an adapter of rank 1 for all matrices of the layers: rows and columns of each. `path`: a checkpoint's directory
    or a GGUF file. 0 where a header says nothing. Raises ConfigError and OSError for files that cannot be read."""
    return sum(rows + columns for rows, columns in _matrices(path))


def _matrices(path: Path) -> Iterator[tuple[int, int]]:
    file = path if is_gguf(path) else model_file(path)
    if file is not None:
        for name, tensor in read_gguf(file, arrays=False).tensors.items():
            if len(tensor.shape) == 2 and _MATRIX.search(name):
                yield tensor.shape[0], tensor.shape[1]
        return
    for part in sorted(path.glob("*.safetensors")):
        if has_weights([part.name]):
            yield from _of_safetensors(part)


def _of_safetensors(path: Path) -> Iterator[tuple[int, int]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        raw = file.read(length) if length <= _MOST_HEADER else b""
    try:
        header = json.loads(raw)
        shapes = [header[name]["shape"] for name in header if _MATRIX.search(name)]
        yield from [(int(one[0]), int(one[1])) for one in shapes if len(one) == 2]
    except (ValueError, LookupError, TypeError, RecursionError):  # the load names what is wrong
        return
