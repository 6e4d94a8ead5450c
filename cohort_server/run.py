"""Starts a module of the application as a program: `python -P -m cohort_server.run MODULE [ARGUMENT ...]`.

The server starts its child processes by `command`. `-P` keeps the working directory off `sys.path`, and `rooms.enter` puts
the application's folder before PYTHONPATH.
"""

from __future__ import annotations

import runpy
import sys

from cohort_server import rooms, standard_streams, working_directory

_RENAMED = {"server.healthcheck": "server.commands.healthcheck"}
"""Modules that files of users name (docker-compose.yml), by their old names."""


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs `module` of the application in a process of its own."""
    return [sys.executable, "-P", "-m", "cohort_server.run", module, *arguments]


def main() -> None:
    """Run the module that the first argument names, as `python -m` would."""
    standard_streams.open_standard_streams()
    working_directory.leave_removed_directory()
    if len(sys.argv) < 2:
        sys.exit("usage: python -P -m cohort_server.run MODULE [ARGUMENT ...]")
    del sys.argv[0]
    rooms.enter()
    runpy.run_module(_RENAMED.get(sys.argv[0], sys.argv[0]), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
