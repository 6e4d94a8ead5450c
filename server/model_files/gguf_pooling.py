"""The kind of pooling that a GGUF file names: `ARCH.pooling_type`, a number, as llama.cpp defines them."""

from __future__ import annotations

from pathlib import Path

from server.model_files.prepared import pooling_type

RANK = "rank"
"""The file is a reranker: its scores are those of a head."""
_KINDS = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: RANK}
_UNSPECIFIED = (-1, 0xFFFFFFFF)


def gguf_pooling(directory: Path) -> str | None:
    """Return the kind that the GGUF file of a prepared directory names, `pooling_type N` for a number that is not known; None if
    it names none, and for other directories. Raises ConfigError for a file that cannot be read."""
    value = pooling_type(directory)
    if value is None or value in _UNSPECIFIED:
        return None
    return _KINDS.get(value) or f"pooling_type {value}"
