"""Puts compiled CPU kernels into the wheel, so that an installation needs no C++ compiler.

    cohort_server/_app/executors/kernels/prebuilt/cohort_cpu-<instruction set>-<hash>.so

COHORT_WHEEL_KERNELS says what happens where they cannot be compiled, for want of a compiler above all:

    auto (default)    one line of warning and a wheel without kernels, which compiles them at its first start
    required          the build fails; the container image is built so
    none              no kernels, and nothing is compiled

The kernels are for x86-64. On other architectures the wheel has none and needs none.

Compiled kernels stay in build/kernels of the checkout. Their names have a hash of sources and flags, so a later build
takes only what still fits.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_VARIABLE = "COHORT_WHEEL_KERNELS"
_CHOICES = ("auto", "required", "none")
_INSIDE = "cohort_server/_app/executors/kernels/prebuilt"


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs for wheels; an editable install compiles kernels where it runs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernels and name the platform they are for. Raises RuntimeError where required ones cannot be had."""
        if self.target_name != "wheel" or version != "standard":
            return
        choice = os.environ.get(_VARIABLE, "auto")
        if choice not in _CHOICES:
            raise RuntimeError(f"{_VARIABLE}={choice}: it should be one of {', '.join(_CHOICES)}")
        if choice == "none":
            return
        kernels, complaint = self._compile()
        if complaint:
            if choice == "required":
                raise RuntimeError(f"{_VARIABLE}=required, and no CPU kernels can be compiled: {complaint}")
            self.app.display_warning(f"This wheel has no compiled CPU kernels: {complaint}")
        if not kernels:
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        for kernel in kernels:
            build_data["force_include"][str(kernel)] = f"{_INSIDE}/{kernel.name}"

    def _compile(self) -> tuple[list[Path], str]:
        """The compiled files, and what went wrong; neither on an architecture without kernels."""
        command = [
            sys.executable,
            "-m",
            "executors.kernels.compiler",
            str(Path(self.root, "build", "kernels")),
        ]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        if done.returncode:
            return [], (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [Path(line) for line in done.stdout.splitlines() if line.endswith(".so")], ""
