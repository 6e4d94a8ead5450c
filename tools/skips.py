"""Finds out whether a test is skipped or expected to fail: from its source, and from the report of the last run."""

import ast
import re
from pathlib import Path
from xml.etree import ElementTree

MARKS = {"skip": "is skipped", "skipif": "may be skipped", "xfail": "is expected to fail"}
CALLS = {"skip": "may skip itself", "importorskip": "may skip itself", "xfail": "may expect to fail"}


def covers(node_id: str, other: str) -> bool:
    """Whether `other` is `node_id` itself, one of its cases, or a test in the file or class it names."""
    return other == node_id or other.startswith((node_id + "::", node_id + "["))


def from_source(root: Path, node_id: str) -> list[str]:
    """Reasons why the test, its class or its module may not run, by reading marks and calls.

    A node id that names a file or a class means everything in it.
    """
    path, *names = node_id.split("::")
    module = ast.parse((root / path).read_text())
    named_marks = _named_marks(module)
    reasons: list[str] = []
    scope: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef = module
    for name in names:
        reasons += _own(scope, named_marks)
        found = [n for n in scope.body if isinstance(n, _NAMED) and n.name == name.split("[")[0]]
        if not found:
            return reasons  # inherited or generated: the report of the last run has to tell
        scope = found[-1]
    return reasons + _everything(scope, named_marks)


_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _named_marks(module: ast.Module) -> dict[str, str]:
    """Marks that the module gives a name, to use as decorators: `needs_x = pytest.mark.skipif(...)`."""
    marks = {}
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name != "pytestmark":
                for mark in ast.walk(value):
                    if reason := _mark(mark):
                        marks[name] = reason
    return marks


def _own(scope: ast.AST, named_marks: dict[str, str]) -> list[str]:
    """Marks and calls that hold for a whole module or class, whatever test in it is meant."""
    own = list(getattr(scope, "decorator_list", ()))
    for node in getattr(scope, "body", ()):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in named_marks:
                continue
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
        own.append(node)
    return [reason for node in own for reason in _everything(node, named_marks)]


def _everything(root: ast.AST, named_marks: dict[str, str]) -> list[str]:
    reasons = []
    for node in ast.walk(root):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="pytest"), attr=name)) if name in CALLS:
                reasons.append(f"{CALLS[name]} (line {node.lineno})")
            case ast.Name(id=name, ctx=ast.Load()) if name in named_marks:
                reasons.append(f"{named_marks[name]} (line {node.lineno})")
            case ast.Attribute() if reason := _mark(node):
                reasons.append(f"{reason} (line {node.lineno})")
    return reasons


def _mark(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(value=ast.Attribute(attr="mark") | ast.Name(id="mark"), attr=name):
            return MARKS.get(name)
    return None


def from_report(root: Path, report: Path) -> list[tuple[str, str]]:
    """Node ids that the last run skipped or saw fail as expected, each with the reason.

    Results older than the file of their test say nothing, and are left out.
    """
    if not report.is_file():
        return []
    skipped = []
    for case in ElementTree.parse(report).iter("testcase"):
        element = case.find("skipped")
        if element is None:
            continue
        path, names = _split_classname(root, case.get("classname", ""))
        if path is not None and path.stat().st_mtime <= report.stat().st_mtime:
            node_id = "::".join([path.relative_to(root).as_posix(), *names, case.get("name", "")])
            verb = "failed as expected" if "xfail" in element.get("type", "") else "was skipped"
            reason = re.sub(r"\s+", " ", element.get("message", ""))
            skipped.append((node_id, f"{verb} in the last run: {reason}"))
    return skipped


def _split_classname(root: Path, classname: str) -> tuple[Path | None, list[str]]:
    """`tests.house.test_x.TestClass` -> (`tests/house/test_x.py`, [`TestClass`])."""
    parts = classname.split(".")
    for n in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:n]).with_suffix(".py")
        if path.is_file():
            return path, parts[n:]
    return None, []
