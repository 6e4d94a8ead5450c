"""The CPU kernels that tests need: those that are compiled already, for programs with a cache of their own; and all of them,
compiled before the first test of a whole run.

    python -m tests.compiled_kernels       compiles the kernels of every instruction set that this machine has
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from executors.kernels import compile_guard, compiler
from executors.kernels.compiler import KernelUnavailable, cache_folder, compiled, usable_isas

SOURCE = Path(compiler.__file__).with_name("cohort_cpu.cpp")
_LIMIT_S = 1200.0


def bring_kernels(cache: Path) -> None:
    """Link this machine's compiled kernels into `cache`, which a program gets as XDG_CACHE_HOME: compiling them takes two cores
    half a minute."""
    with contextlib.suppress(KernelUnavailable):
        for isa in usable_isas()[:1]:
            compiled(SOURCE, isa)
    folder = cache / "cohort" / "kernels"
    folder.mkdir(mode=0o700, parents=True)
    for file in cache_folder().glob("*.so"):
        (folder / file.name).symlink_to(file)


def compile_all(source: Path = SOURCE) -> None:
    """Compile the kernels of all instruction sets."""
    with contextlib.suppress(KernelUnavailable):
        for isa in usable_isas():
            compiled(source, isa, _LIMIT_S)


def are_compiled(source: Path = SOURCE) -> bool:
    """Whether the kernels of all instruction sets are there, or none can be made."""
    return all(compiler.is_compiled(source, isa.name) for isa in usable_isas())


def begin_to_compile(*command: str) -> subprocess.Popen[bytes]:
    """Start `compile_all`, or `command`, in a process that ends with this one."""
    guard = [sys.executable, "-I", "-S", compile_guard.__file__, str(os.getpid())]
    return subprocess.Popen(
        [*guard, *(command or (sys.executable, "-m", __name__))],
        cwd=Path(__file__).parents[1], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        process_group=0,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """End what `begin_to_compile` started, with all that it has started."""
    process.terminate()
    process.wait()


def of_a_run(arguments: list[str], jobs: int | None, is_worker: bool) -> bool:
    """Whether a run of pytest needs the kernels of all instruction sets: one of all folders by several workers, seen by the
    process that starts them. Tests that waited for a compiler beside busy ones would exceed their time."""
    return bool(jobs) and not is_worker and any(Path(word).name == "tests" for word in arguments)


if __name__ == "__main__":
    compile_all()
