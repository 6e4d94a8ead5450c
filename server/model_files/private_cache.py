"""Folders below $XDG_CACHE_HOME/cohort or ~/.cache/cohort that only this user may write to.

What lies there is trusted: another user's file in it would be served as one's own.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from functools import lru_cache
from pathlib import Path

import structlog

from executors.contract import ConfigError

log = structlog.get_logger("server")


def cache_root() -> Path:
    """Return the folder of all of Cohort's caches, whether it exists or not."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()) / "cohort"


def private_folder(name: str) -> Path:
    """Return the folder `name` of the cache, made if necessary.

    If it cannot be made or written to, or others have access to it, a temporary directory of this process replaces it.
    Raises ConfigError if there is no place for one either.
    """
    folder = cache_root() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_private(folder):
            return folder
        log.warning(f"{folder} is not used: it must be writable, owned by this user and closed to others")
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        log.info(f"{name}: nothing is cached", reason=str(error))
    return _temporary_folder(name)


def is_private(folder: Path) -> bool:
    """Return whether this user owns the folder, may write to it, and nobody else has access."""
    status = folder.lstat()
    owned = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return owned and not status.st_mode & 0o077 and os.access(folder, os.W_OK)


@lru_cache
def _temporary_folder(name: str) -> Path:
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"cohort-{name}-"))
    except OSError as error:
        raise ConfigError(
            f"{cache_root() / name}: cannot be written to, and neither can a temporary directory ({error.strerror}); "
            "XDG_CACHE_HOME names another place"
        ) from None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
