"""The CPU kernels that are compiled already, for programs that tests start with a cache of their own."""

from __future__ import annotations

import contextlib
from pathlib import Path

from executors.kernels import compiler
from executors.kernels.compiler import KernelUnavailable, cache_folder, compiled, usable_isas

SOURCE = Path(compiler.__file__).with_name("cohort_cpu.cpp")


def bring_kernels(cache: Path) -> None:
    """Link this machine's compiled kernels into `cache`, which a program gets as XDG_CACHE_HOME: compiling them takes a core
    half a minute."""
    with contextlib.suppress(KernelUnavailable):
        for isa in usable_isas()[:1]:
            compiled(SOURCE, isa)
    folder = cache / "cohort" / "kernels"
    folder.mkdir(mode=0o700, parents=True)
    for file in cache_folder().glob("*.so"):
        (folder / file.name).symlink_to(file)
