"""Whether Triton can be used. It brings its compiler for GPU code and uses the machine's C compiler for its launchers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def missing() -> str | None:
    """Describe what Triton lacks here; return None if it lacks nothing. Its launchers are C, built at the first launch of
    each kernel: without a compiler and Python's headers that launch raises a RuntimeError."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton finds no C compiler for its launchers: install one (gcc)"
    # A Debian's own Python puts what is installed below /usr/local, and its headers not: Triton looks for them as here.
    scheme = sysconfig.get_default_scheme()
    headers = Path(sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"])
    if not (headers / "Python.h").is_file():
        return f"Triton finds no {headers / 'Python.h'} for its launchers: install it (python3-dev)"
    return None
