"""Models in a store of Ollama's, written for tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

PREFIX = "application/vnd.ollama.image."


def blob(store: Path, content: bytes) -> str:
    """Write a blob and return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / f"sha256-{digest}").write_bytes(content)
    return f"sha256:{digest}"


def write_model(store: Path, name: str, layers: list[tuple[str, Any]]) -> Path:
    """Write a manifest of layers, (kind, content) each: bytes, a text, or what is written as JSON. Returns its path."""
    written = []
    for kind, content in layers:
        raw = (
            content
            if isinstance(content, bytes)
            else (content if isinstance(content, str) else json.dumps(content)).encode()
        )
        media = kind if "/" in kind else PREFIX + kind
        written.append({"mediaType": media, "digest": blob(store, raw), "size": len(raw)})
    model, _, tag = name.partition(":")
    path = store / "manifests" / "registry.ollama.ai" / "library" / model / (tag or "latest")
    path.parent.mkdir(parents=True, exist_ok=True)
    config = {"digest": blob(store, b'{"file_type": "F32"}')}
    path.write_text(json.dumps({"schemaVersion": 2, "config": config, "layers": written}))
    return path
