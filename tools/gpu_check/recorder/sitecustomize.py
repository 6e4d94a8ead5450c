"""Writes down which modules of the project a process imports, each at once: a process that is killed has written them, too.

Python imports this before anything else where the folder is on PYTHONPATH, so it also sees the processes that a part starts.
The variable GPU_SOURCES names the file; a line is a module's name.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = frozenset(
    ("benchmarks", "clients", "cohort_server", "engine", "executors", "server", "tests", "tools")
)
_FILE = os.environ.get("GPU_SOURCES")
_FOLDER = Path(__file__).resolve().parent


class Recorder:
    """The first of the finders: it is asked for each module and finds none."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Write the name down."""
        if _FILE and name.partition(".")[0] in PACKAGES:
            with Path(_FILE).open("a", encoding="utf-8") as file:
                file.write(name + "\n")


def _hidden_one() -> None:
    """Run the module of this name that the machine has, which this one hides."""
    rest = [one for one in sys.path if Path(one).resolve() != _FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Recorder)
_hidden_one()
