"""`CacheDirectory`: the files of the disk tier on a file system, within a limit of bytes.

    DIR/server-1a2b3c4d/lock            held by the server that writes there, or claimed it after its writer's end
    DIR/server-1a2b3c4d/NAME.kv         complete files, never changed
    DIR/server-1a2b3c4d/.NAME.tmp       what is being written

A server takes the locks of all sub-directories that no other holds, and makes one if there are none: these files count for its
limit, and the least recently used ones leave. Files under another's lock are read and never deleted. The time of use is the
file's modification time. Methods block, but for `use`, and may be called by any thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.kv.disk.format import ALIGNMENT, BadFile, Chain, decode_header, encode_header, header_size

_SUFFIX = ".kv"
_LOCK = "lock"
FILE_STEP = 1e-3
"""Seconds by which a file of a chain counts as used earlier than the one before it: of a chain its end leaves first."""
_PREFIX = "server-"


@dataclass(slots=True)
class StoredFile:
    """A complete file. `own`: this server may delete it. `used`: time of its last use, seconds since 1970."""

    path: str
    num_bytes: int
    used: float
    own: bool
    chain: Chain


class CacheDirectory:
    """See the module. `limit`: bytes of own files."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path = path
        self.limit = limit
        self.files: dict[str, StoredFile] = {}
        """By path; written under `_lock`."""
        self.refused: dict[str, int] = {}
        """Files that were found unusable so far, by reason."""
        self._lock = threading.Lock()
        self._locks: dict[str, int] = {}
        """Descriptors of the locks that are held, by sub-directory."""
        self._target: str | None = None
        self._bad: set[str] = set()
        """Files that cannot be used, of other servers or that cannot be deleted: they are not read again."""

    @property
    def num_bytes(self) -> int:
        """Bytes of own files."""
        return sum(file.num_bytes for file in list(self.files.values()) if file.own)

    # -- life ----------------------------------------------------------------------------------------------------------

    def open(self) -> list[StoredFile]:
        """Take the locks that are free, make a sub-directory if there is none, delete what killed servers were writing, and
        return the files. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        for sub in sorted(self.path.glob(_PREFIX + "*")):
            if self._claim(sub):
                for path in sub.glob(".*.tmp"):
                    with contextlib.suppress(OSError):
                        path.unlink()
        if not self._locks:
            self._add_folder()
        self._target = next(iter(self._locks))
        return self.scan()

    def _add_folder(self) -> str:
        """Make and lock a sub-directory. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        sub = self.path / f"{_PREFIX}{secrets.token_hex(4)}"
        sub.mkdir(mode=0o700)
        if not self._claim(sub):
            raise OSError(errno.EACCES, f"{sub} cannot be locked")
        return str(sub)

    @property
    def own_folders(self) -> list[Path]:
        """Sub-directories whose locks are held."""
        return list(map(Path, self._locks))

    def _claim(self, sub: Path) -> bool:
        """Lock a sub-directory; False if another server holds it, or it is read-only for us."""
        try:
            descriptor = os.open(sub / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._locks[str(sub)] = descriptor
        return True

    def close(self) -> None:
        """Give up the locks. Idempotent."""
        locks, self._locks = self._locks, {}
        for descriptor in locks.values():
            os.close(descriptor)

    def scan(self) -> list[StoredFile]:
        """Read the headers of files that are not known yet, forget those that are gone, and return all. Own files that cannot be
        used are deleted. Another thread may write meanwhile."""
        present: set[str] = set()
        with self._lock:
            before = set(self.files)
        for sub in sorted(self.path.glob(_PREFIX + "*")):
            own = str(sub) in self._locks
            with contextlib.suppress(OSError):
                for path in sorted(sub.iterdir()):
                    if path.suffix == _SUFFIX:
                        present.add(str(path))
                        if str(path) not in self.files and str(path) not in self._bad:
                            self._admit(path, own)
        with self._lock:
            for gone in before - present:
                self.files.pop(gone, None)
            return list(self.files.values())

    def _admit(self, path: Path, own: bool) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                stat = os.fstat(descriptor)
                chain, _ = _read_header(descriptor, stat.st_size)
            finally:
                os.close(descriptor)
        except BadFile as error:
            self.refuse(str(path), error.reason)
            return
        except OSError:
            return  # gone, or not readable for us
        with self._lock:
            self.files[str(path)] = StoredFile(str(path), stat.st_size, stat.st_mtime, own, chain)

    # -- files ---------------------------------------------------------------------------------------------------------

    def read(self, path: str, at: Sequence[int], into: memoryview) -> Chain:
        """Read the entries with these numbers, rising, one behind the other into `into`, which begins at a multiple of
        `ALIGNMENT`; each takes its padded size. Returns what the header says, which the caller compares with what it looked for.
        Raises BadFile and OSError."""
        descriptor = _open_direct(path, os.O_RDONLY)
        try:
            chain, begin = _read_header(descriptor, os.fstat(descriptor).st_size)
            offsets = chain.offsets(begin)
            if at and at[-1] >= len(chain.entries):
                raise BadFile("other_tokens", "another file of the same name")
            done = 0
            for first, last in _runs(at):
                length = offsets[last + 1] - offsets[first]
                if done + length > len(into):
                    raise BadFile("stale", "blocks of another size")
                _read_exactly(descriptor, into[done : done + length], offsets[first])
                done += length
        finally:
            os.close(descriptor)
        return chain

    def use(self, paths: Sequence[str]) -> list[tuple[str, float]]:
        """Count own files as used now, the first one last: of a chain its end leaves first. Returns files and times, for
        `stamp`. Does not block."""
        now, used = time.time(), []
        for number, path in enumerate(paths):
            if (file := self.files.get(path)) is not None and file.own:
                file.used = now - FILE_STEP * number
                used.append((path, file.used))
        return used

    def stamp(self, used: Iterable[tuple[str, float]]) -> None:
        """Write times of use to the files, for the next server."""
        for path, when in used:
            with contextlib.suppress(OSError):
                os.utime(path, (when, when))

    def write(self, chain: Chain, data: memoryview, used: float) -> tuple[StoredFile | None, list[str]]:
        """Write a file under a temporary name and rename it. `data`: of all entries, at a multiple of `ALIGNMENT`, each padded.
        `used`: time of its use, seconds since 1970. Returns it and the paths of the files that left to make room: files used
        earlier. If these are too few nothing is changed, and None is returned. Raises OSError; nothing is left behind then."""
        assert self._target is not None, "the directory is open"
        if not Path(self._target).exists():  # deleted under the server
            self._target = self._add_folder()
        header = encode_header(chain)
        total = len(header) + chain.data_bytes
        leaving = self._room_for(total, used)
        if leaving is None:
            return None, []
        for path in leaving:
            self.delete(path)
        name = f"{chain.root[:4].hex()}-{len(chain.tokens)}-{secrets.token_hex(6)}"
        temporary, final = Path(self._target, f".{name}.tmp"), Path(self._target, name + _SUFFIX)
        try:
            descriptor = _open_direct(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                os.posix_fallocate(descriptor, 0, total)
                with mmap.mmap(-1, len(header)) as page:  # begins at a page, as direct output asks
                    page[:] = header
                    _write_exactly(descriptor, memoryview(page), 0)
                _write_exactly(descriptor, data[: chain.data_bytes], len(header))
                os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # where it was buffered
            finally:
                os.close(descriptor)
            os.utime(temporary, (used, used))
            temporary.rename(final)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        file = StoredFile(str(final), total, used, True, chain)
        with self._lock:
            self.files[file.path] = file
        return file, leaving

    def _room_for(self, num_bytes: int, used: float) -> list[str] | None:
        """The least recently used own files without which so many bytes fit the limit. None if some of them were used later than
        `used`: a chain that does not fit keeps its beginning."""
        with self._lock:
            own = sorted((file for file in self.files.values() if file.own), key=lambda file: file.used)
        excess = sum(file.num_bytes for file in own) + num_bytes - self.limit
        leaving = []
        for file in own:
            if excess <= 0:
                break
            if file.used >= used:
                return None
            leaving.append(file.path)
            excess -= file.num_bytes
        return leaving if excess <= 0 else None

    def delete(self, path: str) -> None:
        """Forget a file, and delete it if it is own."""
        with self._lock:
            self.files.pop(path, None)
        self._unlink(path)

    def _unlink(self, path: str) -> None:
        if str(Path(path).parent) in self._locks:
            with contextlib.suppress(OSError):
                Path(path).unlink()

    def refuse(self, path: str, reason: str) -> None:
        """A file cannot be used: it is counted, not read again, and deleted if it lies under a lock of this server."""
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self._bad.add(path)
        with self._lock:
            self.files.pop(path, None)
        self._unlink(path)


def look(path: Path) -> list[StoredFile]:
    """Return the usable files of a directory; takes no lock and changes nothing. Blocks."""
    return CacheDirectory(path, 0).scan()


# -- bytes -------------------------------------------------------------------------------------------------------------


def buffer(num_bytes: int) -> memoryview:
    """Return memory for direct input and output: it begins at a page, and is freed with the last view."""
    return memoryview(mmap.mmap(-1, max(ALIGNMENT, num_bytes)))


def _open_direct(path: str | Path, flags: int) -> int:
    """Open past the page cache where the file system allows it."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        with contextlib.suppress(OSError):  # some file systems create the file before they refuse
            if flags & os.O_CREAT:
                Path(path).unlink()
        return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _read_header(descriptor: int, file_size: int) -> tuple[Chain, int]:
    """Return what a file says of itself, and the bytes of its header. Raises BadFile and OSError."""
    first = buffer(ALIGNMENT)
    if file_size < ALIGNMENT:
        raise BadFile("cut", f"{file_size} bytes")
    _read_exactly(descriptor, first[:ALIGNMENT], 0)
    size = header_size(bytes(first[:ALIGNMENT]))
    if size > file_size:
        raise BadFile("cut", f"{file_size} bytes, with a header of {size}")
    header = buffer(size)
    _read_exactly(descriptor, header[:size], 0)
    return decode_header(bytes(header[:size]), file_size), size


def _read_exactly(descriptor: int, into: memoryview, offset: int) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], offset + done)
        if count <= 0:
            raise BadFile("cut", "the file ends early")
        done += count


def _write_exactly(descriptor: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], offset + done)


def _runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return (first, last) of each run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
