"""JSON files of other programs, which may be anything: config.json, a manifest of Ollama's store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_BYTES = 4 << 20
"""A larger file is another kind of file."""


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object; {} for anything else, and for what cannot be read."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        read = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
