"""Files out of the page cache, so that a measurement reads them from the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def drop(files: Iterable[Path]) -> int:
    """Write files to the disk and take them out of the page cache (posix_fadvise); return their bytes."""
    dropped = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            dropped += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return dropped
