"""Ollama's form of errors, for its paths: {"error": "..."}."""

from __future__ import annotations

from server.apis.ollama.answers import OllamaError
from server.http.form import Failure, Form

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


def error_object(failure: Failure) -> OllamaError:
    """The whole body as plain data."""
    return {"error": failure.named}


FORM = Form(speaks, error_object, any_media=True)
"""Ollama reads any type as JSON, and its clients rely on that: some send no type, `curl -d` sends that of a form."""
