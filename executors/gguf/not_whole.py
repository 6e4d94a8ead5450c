"""Files that are no model files yet: parts of one that was cut by bytes, and pointers to a file that was not fetched."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<whole>.+)\.part\d+of\d+", re.DOTALL)
_POINTER = b"version https://git-lfs"


def whole_of(name: str) -> str | None:
    """Return the name of the file that a part belongs to (`m.gguf.part1of2` to `m.gguf`), None for another name."""
    match = _PART.fullmatch(name)
    return match["whole"] if match else None


def put_together(name: str) -> str:
    """Return the end of a sentence that refuses a file of this name, if it is a part: how the whole one is made; else ""."""
    whole = whole_of(name)
    return (
        f"; it is a part of a file that was cut: put the parts together first, cat {whole}.part* > {whole}"
        if whole
        else ""
    )


def fetch_first(begin: bytes) -> str:
    """Return the end of a sentence that refuses a file that begins so, if it is a pointer of Git LFS; else ""."""
    return (
        "; it is a Git LFS pointer in place of the file: git lfs pull fetches it"
        if begin.startswith(_POINTER)
        else ""
    )
