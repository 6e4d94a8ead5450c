"""One compilation of a file at a time on a machine, and nothing left of those that were interrupted.

    <folder>/<target>.tmp/lock       locked (flock) by who compiles, and by its compiler: the kernel unlocks it when both are gone
    <folder>/<target>.tmp/...        the result until it is whole, and the compiler's temporary files

A process that finds the lock taken waits, then takes the result. A `.tmp` that no process has locked was left by one that was
killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_log = logging.getLogger(__name__)

_SUFFIX = ".tmp"
_POLL_S = 0.1
_OLD_S = 3600.0
"""Age in seconds from which a `.tmp` without a lock counts as abandoned: earlier versions wrote such files for minutes."""
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without flock."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """`folder`: for the result and temporary files. `lock`: the descriptor that keeps it locked; None on a file system without
    locks."""

    folder: Path
    lock: int | None


@contextlib.contextmanager
def workspace(
    target: Path, patience_s: float, waits: Callable[[str], None] = lambda process: None
) -> Iterator[Workspace | None]:
    """A folder in which to make `target`; None if another process has made it meanwhile. `waits` is told the process id of one
    that is waited for.

    After `patience_s` seconds of waiting for another process it is a folder of its own. Raises OSError.
    """
    folder = target.with_name(target.name + _SUFFIX)
    work = _take(folder, target, time.monotonic() + patience_s, waits)
    if work is None and not target.exists():
        own = target.with_name(f"{target.name}.{secrets.token_hex(4)}{_SUFFIX}")
        work = _take(own, target, time.monotonic() + patience_s, waits)
    if work is None:
        yield None
        return
    try:
        yield work
    finally:
        _remove(work)


def sweep(folder: Path) -> None:
    """Remove what interrupted compilations left in `folder`."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if not path.is_dir():
                if _age(path) > _OLD_S:
                    path.unlink()
                continue
            lock = _try_lock(path, create=_age(path) > _OLD_S)
            if lock is not None:
                _remove(Workspace(path, lock))


def private_folder(parent: Path, prefix: str) -> Path:
    """A new folder that this process has locked until its end. Those of ended processes are removed. Raises OSError."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                _remove_unlocked(path)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = _try_lock(folder, create=True)
        except FileNotFoundError:  # another process removed it before it was locked
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return folder
        if lock is not None:  # never closed
            return folder


def _remove_unlocked(folder: Path) -> None:
    lock = _try_lock(folder, create=False)
    if lock is not None:
        _remove(Workspace(folder, lock))


def _take(folder: Path, target: Path, deadline: float, tell: Callable[[str], None]) -> Workspace | None:
    """The locked folder; None once `target` exists, or at the deadline."""
    waits = False
    while not target.exists():
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock = _try_lock(folder, create=True)
        except FileNotFoundError:  # removed by who had it
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            own = target.with_name(f"{target.name}.{secrets.token_hex(4)}{_SUFFIX}")
            own.mkdir(mode=0o700)
            return Workspace(own, None)
        if lock is not None:
            if target.exists():
                _remove(Workspace(folder, lock))
                return None
            return Workspace(folder, lock)
        if time.monotonic() > deadline:
            return None
        if not waits:
            waits = True
            owner = _owner(folder)
            _log.info("waiting for process %s, which compiles %s", owner, target.name)
            tell(owner)
        time.sleep(_POLL_S)
    return None


def _try_lock(folder: Path, *, create: bool) -> int | None:
    """The descriptor of the folder's lock; None if another process has it. Raises OSError, FileNotFoundError without a lock to
    take."""
    path = folder / "lock"
    descriptor = os.open(
        path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600
    )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it may have removed the file in between: then it protects nothing.
        if not os.path.samestat(os.fstat(descriptor), path.stat()):
            raise FileNotFoundError(path)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    os.truncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _remove(work: Workspace) -> None:
    """Remove the folder, its lock last: until then no other process works in it."""
    try:
        with contextlib.suppress(OSError):
            for path in work.folder.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            (work.folder / "lock").unlink(missing_ok=True)
            work.folder.rmdir()
    finally:
        if work.lock is not None:
            os.close(work.lock)


def _owner(folder: Path) -> str:
    try:
        return (folder / "lock").read_text() or "?"
    except OSError:
        return "?"


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime
