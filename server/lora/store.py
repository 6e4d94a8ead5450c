"""The server's own copies of adapters: content that nobody else changes, and that is there as long as a sequence needs it.

Each server has a folder below the cache and holds a lock in it. A folder whose lock is free was left by a server that was
killed, and is removed by the next one that starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from server.model_files.private_cache import private_folder

_LOCK = "lock"


class LoraStore:
    """A folder for one server. Raises ConfigError if there is no place for one."""

    def __init__(self) -> None:
        parent = private_folder("adapters")
        self.folder = Path(tempfile.mkdtemp(prefix="server-", dir=parent))
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._numbers = itertools.count(1)
        _remove_abandoned(parent)

    def place(self) -> Path:
        """Return the path of a new folder, which is not made yet."""
        return self.folder / str(next(self._numbers))

    @staticmethod
    def remove(place: Path) -> None:
        """Remove a folder and what it holds. One that is gone is no error."""
        shutil.rmtree(place, ignore_errors=True)

    def close(self) -> None:
        """Remove everything. Idempotent."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(parent: Path) -> None:
    for folder in parent.glob("server-*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
