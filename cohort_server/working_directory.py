"""A working directory that was removed, as by a deployment that replaces its folder. Standard library only; called in every entry
point.

Libraries ask for it while they are loaded (oneMKL ends the process where there is none), and no relative path leads anywhere from
it. A child process inherits it, so that a restart of the executor would fail long after the server started.
"""

from __future__ import annotations

import os


def leave_removed_directory() -> None:
    """Go to the root directory if the working directory is gone or may not be read."""
    try:
        os.getcwd()  # noqa: PTH109  # `Path.cwd()` would import pathlib before signals are taken
    except OSError:
        os.chdir("/")
