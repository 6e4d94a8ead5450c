"""Adapters for tests of the server, which reads nothing of them: their content is a text, and a digest of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from executors.contract import ConfigError
from server.lora.files import CONFIG, GGUF, WEIGHTS


@dataclass(frozen=True)
class Packed:
    path: Path
    digest: str
    rank: int = 8
    base_model: str | None = "org/fake-1"
    notes: tuple[str, ...] = ()


def write_adapter(folder: Path, content: str = "a", template: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps({"r": 8}))
    (folder / WEIGHTS).write_text(content)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def pack(folder: Path, target: Path, shown: str) -> Packed:
    """Raises ConfigError for a content that says "broken"."""
    file = folder / GGUF if (folder / GGUF).exists() else folder / WEIGHTS
    content = file.read_bytes()
    if b"broken" in content:
        raise ConfigError(f"{shown}: it is broken")
    digest = hashlib.sha256(content).hexdigest()
    path = target / f"{digest}.safetensors"
    path.write_bytes(content)
    return Packed(path, digest, notes=("a part is left out",) if b"vision" in content else ())
