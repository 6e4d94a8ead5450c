"""Compiles C++ on the machine that runs it: for its instruction set, at first use, cached for the next start.

    <cache>/cohort_cpu-<isa>-<hash>.so     hash of sources and headers, flags and compiler version

A source cohort_cpu.cpp may have parts beside it, cohort_cpu_*.cpp. They are compiled side by side and linked.

They may be built beforehand; all variants for machines without a compiler, such as a container:

    python -m executors.kernels.compiler               -> the variant of this machine, in <cache>
    python -m executors.kernels.compiler <folder>      -> <folder>/cohort_cpu-<isa>-<hash>.so, hash of sources, headers and flags

Files that exist in <folder> are kept.

A folder `prebuilt` beside the source is searched first.

<cache> is $XDG_CACHE_HOME/cohort/kernels or ~/.cache/cohort/kernels. Code is loaded from there, so only this user may have
access. If others have access or the folder is not writable, a temporary directory of this process replaces it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from executors.cgroup import cpu_threads, memory_limit
from executors.kernels.compile_lock import Workspace, private_folder, sweep, workspace
from executors.kernels.compile_run import Command, RunFailed, RunTimedOut, TimeLimit, run

_log = logging.getLogger(__name__)

CPUINFO = Path("/proc/cpuinfo")
TIMEOUT_S = 120.0
"""Time for a compilation that a start waits for, in seconds."""
USUAL_S = "10 to 60 s"
"""What a compilation takes on machines of 16 to 1 cores."""
_PATIENT_S = 3600.0
"""Time for a compilation beforehand, in seconds."""
PART_BYTES = 768 << 20
"""Memory that there should be for each compiler that runs beside others: twice what the largest part has taken."""
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fopenmp", "-fPIC", "-w")
_SHARED = ("-shared",)

_failures: dict[Path, str] = {}
"""Why a library could not be made. Several parts of a model ask for the same one, and each would wait for the compiler's time-out
or the full disk again. One writer: `compiled`."""


_listener: Callable[[str, int, int], None] | None = None
"""A ProgressCallback that is told of compilations. One writer: `reporting`."""


@contextlib.contextmanager
def reporting(report: Callable[[str, int, int], None]) -> Iterator[None]:
    """Tell `report`, a ProgressCallback, of compilations inside: before one begins, or before it waits for another process's."""
    global _listener
    before, _listener = _listener, report
    try:
        yield
    finally:
        _listener = before


def _report(stage: str) -> None:
    if _listener is not None:
        _listener(stage, 0, 0)


class KernelUnavailable(Exception):
    """The reason why a kernel is unavailable, for the log and for `status()`."""


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set to compile for: the CPU flags that it requires, and the compiler's flags."""

    name: str
    needs: frozenset[str]
    flags: tuple[str, ...]


_X86 = ("x86_64", "AMD64")
_V3 = frozenset("avx avx2 bmi1 bmi2 f16c fma abm movbe".split())
_V4 = _V3 | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())
# Best first. Never -march=native: what is in the cache may be used on another machine that shares the home directory.
ISAS = (
    Isa(
        "avx512_bf16",
        _V4 | {"avx512_bf16", "avx512_vnni"},
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
    ),
    Isa("avx512_vnni", _V4 | {"avx512_vnni"}, ("-march=x86-64-v4", "-mavx512vnni")),
    Isa("avx512", _V4, ("-march=x86-64-v4",)),
    Isa("avx2", _V3, ("-march=x86-64-v3",)),
)


def usable_isas(cpuinfo: Path = CPUINFO) -> tuple[Isa, ...]:
    """Return the instruction sets that this CPU supports, best first; empty on other architectures."""
    if platform.machine() not in _X86:
        return ()
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ()
    flags = next(
        (frozenset(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), None
    )
    return tuple(isa for isa in ISAS if flags is not None and isa.needs <= flags)


@lru_cache
def library(source: Path, isa_name: str | None = None) -> tuple[ctypes.CDLL, str]:
    """Return the library of `source`, compiled if necessary, and the name of its instruction set (default: the best
    available).

    Raises KernelUnavailable. A process compiles a file once, and another call repeats why that failed.
    """
    isas = usable_isas()
    if not isas:
        raise KernelUnavailable(f"no kernel for this CPU ({platform.machine()}): AVX2 and FMA are needed")
    isa = next((isa for isa in isas if isa_name in (None, isa.name)), None)
    if isa is None:
        raise KernelUnavailable(f"this CPU has no {isa_name}")
    import torch  # noqa: F401  Its OpenMP runtime must be in the process before a kernel asks for one by the same name.

    try:
        return ctypes.CDLL(str(compiled(source, isa))), isa.name
    except OSError as error:
        raise KernelUnavailable(f"the kernel cannot be loaded: {error}") from error


def compiled(source: Path, isa: Isa, limit_s: float | None = None) -> Path:
    """Return the path of the compiled library. Of processes that want it at the same time one compiles, and the others wait.
    `limit_s`: time for the compiler in seconds, None for `TIMEOUT_S`."""
    ready = source.parent / "prebuilt" / _name(source, isa)
    if ready.exists():
        return ready
    command, folder = find_compiler(), cache_folder()
    target = folder / _name(source, isa, _version(command))
    if target in _failures:
        raise KernelUnavailable(_failures[target])
    sweep(folder)
    began = time.perf_counter()
    try:
        is_new = _made(target, partial(_compile, command, source, isa, limit_s))
    except KernelUnavailable as error:
        _failures[target] = str(error)
        raise
    if is_new:
        _log.info("compiled %s for %s in %.1f s", source.name, isa.name, time.perf_counter() - began)
    return target


def is_compiled(source: Path, isa_name: str | None = None) -> bool:
    """Return whether `library` would return at once: the file is there, or none can be made."""
    isa = next((isa for isa in usable_isas() if isa_name in (None, isa.name)), None)
    if isa is None or (source.parent / "prebuilt" / _name(source, isa)).exists():
        return True
    try:
        target = cache_folder() / _name(source, isa, _version(find_compiler()))
    except KernelUnavailable:
        return True
    return target.exists()


def prebuild(source: Path, folder: Path) -> list[Path]:
    """Return the paths of all variants in `folder`, for machines without a compiler. Missing variants are copied from the
    cache, where the same compiler left what it would make again, or compiled.

    Raises KernelUnavailable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    targets = [folder / _name(source, isa) for isa in ISAS]
    for isa, target in zip(ISAS, targets, strict=True):
        if not target.exists():
            command = find_compiler()
            cached = cache_folder() / _name(source, isa, _version(command))
            if cached.exists():
                _made(target, partial(_copied, cached))
            else:
                _made(target, partial(_compile, command, source, isa, _PATIENT_S))
            target.chmod(0o644)
    return targets


def parts_of(source: Path) -> list[Path]:
    """Return the files that are compiled to make the library of `source`: itself, and those beside it whose names begin with
    its stem and `_`."""
    return [source, *sorted(source.parent.glob(f"{source.stem}_*{source.suffix}"))]


def _name(source: Path, isa: Isa, version: str = "") -> str:
    text = b"\0".join(file.read_bytes() for file in (*parts_of(source), *sorted(source.parent.glob("*.h"))))
    key = b"\0".join([text, *(part.encode() for part in (*_FLAGS, *_SHARED, *isa.flags)), version.encode()])
    return f"{source.stem}-{isa.name}-{hashlib.sha256(key).hexdigest()[:24]}.so"


def _made(target: Path, make: Callable[[Workspace], Path]) -> bool:
    """Let `make` write the target in a workspace. False if it exists, or if another process made it meanwhile."""
    if target.exists():
        return False
    try:
        with workspace(target, 1.5 * TIMEOUT_S, _waiting) as work:
            if work is None:
                return False
            make(work).replace(target)
    except OSError as error:
        raise KernelUnavailable(f"{target} cannot be written: {error.strerror or error}") from error
    return True


def _copied(cached: Path, work: Workspace) -> Path:
    shutil.copyfile(cached, copy := work.folder / cached.name)
    return copy


def _compile(command: list[str], source: Path, isa: Isa, limit_s: float | None, work: Workspace) -> Path:
    """Return the path of the library in the workspace."""
    shared_object = work.folder / f"{source.stem}.so"
    what = f"compiling {source.name} for {isa.name}"
    limit = TimeLimit.of(TIMEOUT_S if limit_s is None else limit_s, what)
    _log.info("%s with %s", what, command[0])
    _report(f"compiling the CPU kernels for {isa.name} (once; {USUAL_S})")
    begin, parts = [*command, *_FLAGS, *isa.flags], parts_of(source)
    if len(parts) == 1:
        _run([Command([*begin, *_SHARED, str(source), "-o", str(shared_object)])], limit, 1, work)
        return shared_object
    objects = [work.folder / f"{part.stem}.o" for part in parts]
    _run(
        [
            Command([*begin, "-c", str(part), "-o", str(to)], part.name)
            for part, to in zip(parts, objects, strict=True)
        ],
        limit,
        compilers_at_once(),
        work,
    )
    _run([Command([*begin, *_SHARED, *map(str, objects), "-o", str(shared_object)])], limit, 1, work)
    return shared_object


def compilers_at_once() -> int:
    """Return how many compilers may run side by side: each has a processor that this process may use, and `PART_BYTES`."""
    return max(1, min(cpu_threads(), memory_limit().available // PART_BYTES))


def _waiting(process: str) -> None:
    _report(f"waiting for process {process}, which compiles the CPU kernels (once; {USUAL_S})")


def find_compiler() -> list[str]:
    """Return $CXX, or g++, or c++."""
    own = shlex.split(os.environ.get("CXX", ""))
    for command in (own, ["g++"], ["c++"]):
        if command and shutil.which(command[0]):
            return command
    raise KernelUnavailable("no C++ compiler found (install g++)")


def _version(command: list[str]) -> str:
    [output] = _run([Command([*command, "--version"])], TimeLimit.of(TIMEOUT_S, "telling its version"))
    return output


def _run(
    commands: Sequence[Command], limit: TimeLimit, at_once: int = 1, work: Workspace | None = None
) -> list[str]:
    try:
        return run(commands, limit, at_once, work)
    except RunTimedOut as error:
        raise KernelUnavailable(
            f"{error}. Compile without that limit before the next start: python -m cohort_server.run "
            f"executors.kernels.compiler"
        ) from error
    except RunFailed as error:
        raise KernelUnavailable(str(error)) from error


def cache_folder() -> Path:
    """Return a directory that only this user can write to."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    try:
        root = Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()
        folder = root / "cohort" / "kernels"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        private = (
            stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
        )
        if private and os.access(folder, os.W_OK):
            return folder
        _log.warning(
            "%s is not used for kernels: it must be writable, owned by this user and closed to others", folder
        )
    except (OSError, RuntimeError) as error:
        _log.info("compiled kernels are not cached: %s", error)
    return _temporary_folder()


@lru_cache(maxsize=1)
def _temporary_folder() -> Path:
    folder = private_folder(Path(tempfile.gettempdir()), "cohort-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def main(folder: str | None = None) -> None:
    """Compile all variants of the kernels into `folder`, or this machine's into the cache; does nothing on a CPU of another
    architecture."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    source, isas = Path(__file__).with_name("cohort_cpu.cpp"), usable_isas()
    if platform.machine() not in _X86 or (folder is None and not isas):
        print("no CPU kernels for this CPU: torch computes instead")
        return
    try:
        libraries = (
            [compiled(source, isas[0], _PATIENT_S)] if folder is None else prebuild(source, Path(folder))
        )
    except KernelUnavailable as error:
        sys.exit(str(error))
    print(*libraries, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
