"""How long an engine may take to stop."""

from __future__ import annotations

FLUSH_SECONDS = 20.0
"""Within which KV that is not on disk yet is written before its memory goes, at a stop or an unload."""
STOP_SECONDS = FLUSH_SECONDS + 10.0
"""Within which `EngineCore.stop` should return; an executor's process ends without its parent, too."""
