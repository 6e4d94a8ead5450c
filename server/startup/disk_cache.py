"""The directory of the setting `kv_cache_dir`, as the engines of a process share it."""

from __future__ import annotations

from pathlib import Path

from engine.kv.disk.directory import CacheDirectory
from engine.kv.disk.disk import Disk
from server.settings.table import Settings


def disk_of(settings: Settings) -> Disk | None:
    """Return what keeps KV on disk, not opened yet; None if there is no such directory."""
    if settings.kv_cache_dir is None:
        return None
    directory = CacheDirectory(Path(settings.kv_cache_dir).expanduser(), settings.kv_disk)
    return Disk(directory, float(settings.kv_disk_write))
