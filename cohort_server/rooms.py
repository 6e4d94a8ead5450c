"""Where the application's packages are, and how a process imports them.

    checkout                          site-packages
    +- cohort_server/                 +- cohort_server/
    +- server/ engine/ executors/        +- _app/
    +- clients/ configs/                    +- server/ engine/ executors/
                                            +- clients/ configs/

A process of the application calls `enter`: the folder becomes the first of `sys.path`, so a foreign `server` in the
working directory or on PYTHONPATH is never imported. A process of the user's calls `load`: the packages are imported
from their folder and `sys.path` stays as it is.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGES = ("server", "engine", "executors")
"""Those that the LLM class needs. `clients` is not among them, so a program may have a package of that name."""


def folder() -> Path:
    """The folder that holds `clients`, `server`, `engine`, `executors` and `configs`."""
    here = Path(__file__).resolve().parent
    installed = here / "_app"
    return installed if installed.is_dir() else here.parent


def enter() -> None:
    """Make the application's folder the first of `sys.path`."""
    first = str(folder())
    if sys.path[:1] != [first]:
        sys.path.insert(0, first)


def load() -> dict[str, ModuleType]:
    """The application's packages, imported from their folder whatever `sys.path` is.

    Raises ImportError where the process has imported a package of the same name from elsewhere: Python knows a package by
    its name alone, so one process cannot have both.
    """
    root = folder()
    for name in PACKAGES:
        loaded = sys.modules.get(name)
        if loaded is not None and not _is_ours(loaded, root / name):
            origin = loaded.__file__ or next(iter(getattr(loaded, "__path__", ())), "unknown")
            raise ImportError(
                f"cohort_server needs its own package {name!r}, and this process has imported another {name!r} from "
                f"{origin}; use the LLM class in a process that does not import that package",
                name=name,
            )
    return {name: _import(name, root / name) for name in PACKAGES}


def _is_ours(module: ModuleType, place: Path) -> bool:
    return any(Path(path).resolve() == place for path in getattr(module, "__path__", ()))


def _import(name: str, place: Path) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, place / "__init__.py", submodule_search_locations=[str(place)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} holds no package", name=name)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
