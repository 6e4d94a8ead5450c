"""Checks the shape of the packages: `python -m tools.structure`, part of `make check`.

- no circle of imports between modules, and none between rooms
- no function longer than MAX_FUNCTION_LINES
- no MAX_EQUAL_LINES lines that stand in two places
- no name that is a form of a verb (`tools/names.py`, in some folders)

A room is a folder directly below a package, or below one of `DEEP`; a module beside the folders is a room of its own. Imports for
type checking count, and so do those inside functions.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import grimp

from tools import names

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cohort_server", "clients", "server", "engine", "executors")
DEEP = ("executors.llm", "executors.testing", "server.apis", "server.remote")
"""Folders whose folders are rooms."""
MAX_FUNCTION_LINES = 80
MAX_EQUAL_LINES = 20

Imports = Mapping[str, Iterable[str]]
"""What each module, or room, imports."""


def circles(imports: Imports) -> list[list[str]]:
    """The strongly connected components of more than one node, sorted (Tarjan, 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in imports.get(node, ()):
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    for node in imports:
        if node not in number:
            visit(node)
    return sorted(found)


def room_of(module: str, folders: frozenset[str]) -> str:
    """The room in which a module lies; `folders`: the modules that are packages."""
    parts = module.split(".")
    depth = 3 if module.startswith(tuple(f"{deep}." for deep in DEEP)) else 2
    if len(parts) < depth or (len(parts) == depth and module not in folders):
        return module
    return ".".join(parts[:depth])


def rooms(imports: Imports) -> dict[str, set[str]]:
    """What each room imports of others."""
    folders = frozenset(module.rpartition(".")[0] for module in imports)
    found: dict[str, set[str]] = defaultdict(set)
    for module, imported in imports.items():
        own = room_of(module, folders)
        found[own] |= {room for other in imported if (room := room_of(other, folders)) != own}
    return dict(found)


def long_functions(path: Path, most: int = MAX_FUNCTION_LINES) -> Iterator[str]:
    """Functions of a file with more than `most` lines, signature and docstring counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > most:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {most} are allowed"


def equal_lines(paths: Iterable[Path], most: int = MAX_EQUAL_LINES) -> Iterator[str]:
    """Places where `most` consecutive lines are those of another place. Blank lines, imports and indentation do not count."""
    seen: dict[tuple[str, ...], str] = {}
    for path in paths:
        lines = [
            (number, text.strip())
            for number, text in enumerate(path.read_text().splitlines(), 1)
            if text.strip() and not text.strip().startswith(("import ", "from "))
        ]
        skip = 0
        for at in range(len(lines) - most + 1):
            window = tuple(text for _, text in lines[at : at + most])
            place = f"{path}:{lines[at][0]}"
            if skip:
                skip -= 1
            elif window in seen:
                yield f"{place}: {most} lines are those of {seen[window]}"
                skip = most
            seen.setdefault(window, place)


def problems() -> list[str]:
    """All that is wrong, a line each."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    imports = {module: sorted(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    sources = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = [f"modules import each other in a circle: {', '.join(circle)}" for circle in circles(imports)]
    found += [
        f"rooms import each other in a circle: {', '.join(circle)}" for circle in circles(rooms(imports))
    ]
    found += [problem for path in sources for problem in long_functions(path)]
    nouns = (path for root in names.ROOTS for path in sorted((ROOT / root).rglob("*.py")))
    found += [problem for path in nouns for problem in names.verb_names(path)]
    code = [*sources, *sorted(path for kind in ("*.h", "*.cpp") for path in (ROOT / "executors").rglob(kind))]
    found += equal_lines(code)
    return [problem.replace(f"{ROOT}/", "") for problem in found]


def main() -> int:
    """Exit code 1 where something is wrong."""
    found = problems()
    for problem in found:
        print(problem)
    print(
        f"structure: {len(found)} problem(s)"
        if found
        else "structure: no circles, no long functions, no copies, no verbs as names"
    )
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
