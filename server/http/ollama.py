"""Ollama's form of errors, for its paths: {"error": "..."}."""

from __future__ import annotations

_PATHS = frozenset(
    f"/api/{name}"
    for name in (
        "chat", "generate", "embed", "embeddings", "tags", "ps", "show", "version", "pull", "push", "create", "copy", "delete",
    )
)  # fmt: skip
_BLOBS = "/api/blobs/"


def speaks(path: str) -> bool:
    """True if answers of this path, which need not exist, have Ollama's form."""
    return path.rstrip("/") in _PATHS or path.startswith(_BLOBS)


def error_object(message: str) -> dict[str, str]:
    """The whole body as plain data."""
    return {"error": message}
