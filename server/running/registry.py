"""The file that each server writes while it runs.

    FOLDER/PID.json     {"pid", "started", "boot", "url", "models", "drain_timeout"}

FOLDER is $XDG_RUNTIME_DIR/cohort, else /run/user/UID/cohort, else `running` in Cohort's cache. A server writes its file when it
listens and removes it when it ends. A file that a killed server left names a process that is gone, or one of another start time
or another start of the machine: readers check these and delete it. A file that cannot be written costs a server only its row.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.model_files.private_cache import cache_root
from server.running import processes

CACHE_FOLDER = "running"
_FOLDER = "cohort"
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs. `url`, `models` and `drain_timeout` (seconds) are not known of one without a file: of another user, or
    one that could not write it."""

    pid: int
    url: str | None = None
    models: tuple[str, ...] = ()
    drain_timeout: float | None = None


def folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the places where files may be, the first that can be used first."""
    runtime = environ.get("XDG_RUNTIME_DIR") or ""
    places = [Path(runtime)] if Path(runtime).is_absolute() else []
    places.append(Path("/run/user") / str(os.getuid()))
    folders_here = [place / _FOLDER for place in places if _is_own(place)]
    with contextlib.suppress(RuntimeError):  # a user without a home directory
        folders_here.append(cache_root() / CACHE_FOLDER)
    return list(dict.fromkeys(folders_here))


def register(url: str, models: Sequence[str], drain_timeout: float) -> Path | None:
    """Write this process's file and return it; None where there is no place for it."""
    pid = os.getpid()
    entry = {
        "pid": pid, "started": processes.start_ticks(pid), "boot": processes.boot_id(), "url": url, "models": list(models),
        "drain_timeout": drain_timeout,
    }  # fmt: skip
    for folder in folders(os.environ):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_own(folder):
                continue
            handle, name = tempfile.mkstemp(prefix=".", dir=folder)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(entry, file)
            path = folder / f"{pid}.json"
            Path(name).replace(path)
            return path
    return None


def unregister(path: Path | None) -> None:
    """Remove the file again."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def running(environ: Mapping[str, str]) -> list[RunningServer]:
    """Return the servers that run, by process id. Files of others are deleted."""
    by_pid = {one.pid: one for folder in folders(environ) if _is_own(folder) for one in _read_folder(folder)}
    for pid in processes.servers():
        by_pid.setdefault(pid, RunningServer(pid))
    return [by_pid[pid] for pid in sorted(by_pid)]


def _read_folder(folder: Path) -> Iterator[RunningServer]:
    for path in sorted(folder.glob("*.json")):
        entry = _read(path)
        server = None if entry is None else _server_of(entry)
        if server is None:
            unregister(path)
        else:
            yield server


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        entry = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _server_of(entry: Mapping[str, Any]) -> RunningServer | None:
    """The server that a file describes, if it lives."""
    match entry:
        case {
            "pid": int(pid),
            "started": int(started),
            "boot": str(boot),
            "url": str(url),
            "models": [*models],
        }:
            if boot != processes.boot_id() or processes.start_ticks(pid) != started:
                return None
            wait = entry.get("drain_timeout")
            return RunningServer(
                pid, url, tuple(map(str, models)), wait if isinstance(wait, int | float) else None
            )
    return None


def _is_own(folder: Path) -> bool:
    """Whether this user owns a folder and no other one may write to it: files of others would name other servers."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
