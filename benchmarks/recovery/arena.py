"""The memory of KV that a server keeps while its executors die: its files in /proc, and bytes flipped in them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

NAME = "cohort-kv"
"""How the names of these files begin; a rank's number follows."""


class NoArena(Exception):
    """The server holds no such file."""


def files(pid: int) -> list[Path]:
    """Paths in /proc of the memory files of KV that the process `pid` holds, one a file, by name.

    Raises NoArena if it holds none.
    """
    found: dict[str, Path] = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(link.readlink())  # /memfd:NAME (deleted)
        except OSError:
            continue
        if target.startswith(f"/memfd:{NAME}"):
            found.setdefault(target, link)
    if not found:
        raise NoArena(f"process {pid} holds no memory file whose name begins with {NAME!r}")
    return [link for _, link in sorted(found.items())]


def allocated(file: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each range of the file that has memory: all else reads as zeros. Leaves the file's position anywhere."""
    size = os.fstat(file).st_size
    end = 0
    while end < size:
        try:
            begin = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # ENXIO: nothing but a hole is left
            return
        end = os.lseek(file, begin, os.SEEK_HOLE)
        yield begin, end


def memory(pid: int) -> int:
    """Bytes of memory that these files of the process take."""
    return sum(path.stat().st_blocks * 512 for path in files(pid))


def flip(pid: int, count: int, seed: int) -> int:
    """Flip one bit in each of `count` bytes, drawn evenly from what has memory in the files of `pid`. Returns the number of
    bytes to draw from.

    Raises NoArena if there is no file, or none of it has memory.
    """
    rng, opened = random.Random(seed), [os.open(path, os.O_RDWR) for path in files(pid)]
    try:
        ranges = [(file, begin, end) for file in opened for begin, end in allocated(file)]
        if not ranges:
            raise NoArena(f"no byte of the KV memory of process {pid} was ever written")
        lengths = [end - begin for _, begin, end in ranges]
        for file, begin, end in rng.choices(ranges, lengths, k=count):
            at = rng.randrange(begin, end)
            [byte] = os.pread(file, 1, at)
            os.pwrite(file, bytes([byte ^ 1 << rng.randrange(8)]), at)
        return sum(lengths)
    finally:
        for file in opened:
            os.close(file)
