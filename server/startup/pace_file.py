"""Paces on disk, so that a start of the server need not measure what the start before it measured on the same machine.

    <cache>/pace/<key>.json    {"prompt_token": seconds, "decode_steps": [[sequences, seconds], ...], "draft_steps": [...]}

`key` is a digest of everything that a pace depends on. Each entry has a file of its own, so that servers which load at once write
nothing of each other; it appears complete or not at all. Its time of change is when the pace was measured. Whatever is wrong with
an entry, the pace is measured.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path

import structlog

import executors
from executors.cgroup import ROOT, cgroup_cpus, cpu_threads
from executors.contract import ExecutorConfig, Pace
from server import __version__
from server.model_files.private_cache import cache_root, is_private

log = structlog.get_logger("server")

FOLDER = "pace"
MOST_AGE_S = 7 * 24 * 3600.0
"""An older pace is measured anew: the machine may compute slower or faster than it did, for reasons that no key knows."""
MOST_ENTRIES = 64
_MOST_BYTES = 1 << 14
"""Bytes of an entry; those of three numbers of sequences are 200."""
_CPU_FACTS = ("model name", "Model", "CPU implementer", "CPU part", "flags", "Features")
"""Names in /proc/cpuinfo."""
_CPUINFO = Path("/proc/cpuinfo")

Stamp = tuple[str, int, int]
"""Name, bytes and time of the last change of a file."""


def key_of(config: ExecutorConfig, files: Iterable[Stamp]) -> str:
    """Return the digest of what the pace of an executor depends on: its configuration, the weight `files`, the code, the CPU."""
    parts: list[object] = [__version__, torch_version(), *_kernel_stamps()]
    parts += [cpu_facts(), cpu_threads(), sorted(os.sched_getaffinity(0)), cgroup_cpus(ROOT)]
    parts += [replace(config, pace=None, seed=0), *files]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def read(key: str) -> Pace | None:
    """Return the pace of this key; None if there is none, or it is damaged, another user's, or too old."""
    try:
        path = _path(key)
        if not is_private(path.parent):
            return None
        with path.open("rb") as file:
            age = time.time() - os.fstat(file.fileno()).st_mtime
            if not 0 <= age <= MOST_AGE_S:
                return None
            return _pace_of(json.loads(file.read(_MOST_BYTES)))
    except FileNotFoundError:
        return None
    except (
        OSError,
        ValueError,
        RuntimeError,
        RecursionError,
    ) as error:  # RuntimeError: there is no home directory
        log.debug("the pace of an earlier start is not used", reason=str(error))
        return None


def write(key: str, pace: Pace) -> None:
    """Store a pace that was measured now, and remove the oldest ones beyond `MOST_ENTRIES`. Failing to is no fault."""
    try:
        folder = cache_root() / FOLDER
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(folder):
            return
        handle, name = tempfile.mkstemp(prefix=".", dir=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(pace), file)
            Path(name).replace(folder / f"{key}.json")
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        for _, path in sorted(((one.stat().st_mtime, one) for one in folder.iterdir()), reverse=True)[
            MOST_ENTRIES:
        ]:
            path.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        log.debug("the pace is not kept for the next start", reason=str(error))


def remove(key: str) -> None:
    """Have the next start measure the pace. Failing to is no fault."""
    with contextlib.suppress(OSError, RuntimeError):
        _path(key).unlink(missing_ok=True)


def torch_version() -> str:
    """Version of torch, without importing it; "" if it is not installed as a package."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def cpu_facts(cpuinfo: Path = _CPUINFO) -> list[str]:
    """Return what the system says of its first CPU that tells its kind and its instructions; nothing that changes while it runs,
    such as its clock."""
    facts = []
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.strip():
                    break
                if line.partition(":")[0].strip() in _CPU_FACTS:
                    facts.append(line.strip())
    except OSError:
        pass
    return facts


def _path(key: str) -> Path:
    return cache_root() / FOLDER / f"{key}.json"


def _kernel_stamps() -> list[Stamp]:
    """The sources of the CPU kernels."""
    folder = Path(executors.__file__ or "").parent / "kernels"
    files = sorted(one for one in folder.iterdir() if one.suffix in (".cpp", ".h", ".py"))
    return [(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in files]


def _pace_of(stored: object) -> Pace:
    """Return the pace that an entry holds. Raises ValueError for an entry that holds none."""
    match stored:
        case {
            "prompt_token": float(prompt),
            "decode_steps": [*decodes],
            "draft_steps": [*drafts],
            **rest,
        } if not rest and decodes and _is_time(prompt):
            return Pace(prompt, _points(decodes), _points(drafts))
    raise ValueError("it is no pace")


def _points(stored: list[object]) -> tuple[tuple[int, float], ...]:
    """Return pairs of sequences, by rising number, and seconds. Raises ValueError if they are no such pairs."""
    points: list[tuple[int, float]] = []
    for one in stored:
        match one:
            case [int(count), float(seconds)] if count > (points[-1][0] if points else 0) and _is_time(
                seconds
            ):
                points.append((count, seconds))
            case _:
                raise ValueError("it is no pace")
    return tuple(points)


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0
