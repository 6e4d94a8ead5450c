"""Rules of docs/security.md that the code keeps by what is not in it, read from the source of the packages."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    file
    for package in ("cohort_server", "clients", "server", "engine", "executors")
    for file in (ROOT / package).rglob("*.py")
)

FORBIDDEN_IMPORTS = {
    **dict.fromkeys(
        ("pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"), "data that is code"
    ),
    **dict.fromkeys(("zmq", "multiprocessing", "xmlrpc", "rpyc"), "sockets and pickles of its own"),
    "starlette.middleware.base": "BaseHTTPMiddleware puts a queue between a stream and its client",
    **dict.fromkeys(("aiohttp", "ftplib", "telnetlib"), "reaches out"),
}
FETCHERS = ("requests", "urllib.request", "httpx", "httpx2", "huggingface_hub", "http.client")
MAY_FETCH = {
    "server/hub": "fetches the model that the operator names, in a process of its own",
    "clients": "they talk to the server that the user names",
    "server/commands/healthcheck.py": "asks this very server, from its container",
}
LISTENER = "server/http/listener.py"
INVARIANTS = {
    "engine/kv/kv_cache_manager.py": "its caller has just looked",
    "server/hub/download.py": "a path that the library made",
    "executors/testing/conformance.py": "the table of cases names each of them",
    "engine/sequence.py": "a slot is given before",
}
"""Asserts that do more than tell the type checker what a value is, and why they are about this code and not about input."""


@functools.cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Imports, calls and asserts, each with its file."""
    wanted = ast.Import | ast.ImportFrom | ast.Call | ast.Assert
    # CPython 3.11 counts a parser's depth in one place for all: a collection in the middle of it, whose finalizers run other
    # threads or parse themselves, ends it with a SystemError (gh-106905). Seen once.
    gc.disable()
    try:
        trees = [(file.relative_to(ROOT).as_posix(), ast.parse(file.read_text("utf-8"))) for file in FILES]
    finally:
        gc.enable()
    return [(name, node) for name, tree in trees for node in ast.walk(tree) if isinstance(node, wanted)]


def found(look: Callable[[str, ast.AST], bool]) -> list[str]:
    return [f"{name}:{node.lineno}" for name, node in nodes() if look(name, node)]  # type: ignore[attr-defined]


def imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def called(node: ast.AST) -> str:
    """ "torch.load" of `torch.load(...)`; "" for what is no call of a plain name."""
    parts: list[str] = []
    part = node.func if isinstance(node, ast.Call) else None
    while isinstance(part, ast.Attribute):
        parts.append(part.attr)
        part = part.value
    return ".".join([part.id, *reversed(parts)]) if isinstance(part, ast.Name) else ""


def keyword(node: ast.AST, name: str) -> object:
    assert isinstance(node, ast.Call)
    return next((ast.unparse(one.value) for one in node.keywords if one.arg == name), None)


def test_no_data_is_code() -> None:
    def bad_import(name: str, node: ast.AST) -> bool:
        return any(
            one == module or one.startswith(f"{module}.")
            for one in imports(node)
            for module in FORBIDDEN_IMPORTS
        )

    assert found(bad_import) == []
    assert found(lambda _, node: called(node) in ("eval", "exec", "compile", "__import__", "yaml.load")) == []
    assert found(lambda _, node: called(node) == "torch.load") == []
    loaders = ("np.load", "numpy.load")
    assert found(lambda _, node: called(node) in loaders and keyword(node, "allow_pickle") == "True") == []
    assert (
        found(lambda _, node: isinstance(node, ast.Call) and keyword(node, "shell") not in (None, "False"))
        == []
    )
    remote = "trust_remote_code"
    assert (
        found(lambda _, node: isinstance(node, ast.Call) and keyword(node, remote) not in (None, "False"))
        == []
    )


def test_only_one_place_listens() -> None:
    def listens(name: str, node: ast.AST) -> bool:
        if name == LISTENER or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr in ("listen", "create_server", "start_server", "start_unix_server", "bind_port")

    assert found(listens) == []


def test_nothing_reaches_out_but_what_fetches_models_and_the_clients() -> None:
    def reaches(name: str, node: ast.AST) -> bool:
        if any(name == place or name.startswith(place + "/") for place in MAY_FETCH):
            return False
        return any(
            one == module or one.startswith(f"{module}.") for one in imports(node) for module in FETCHERS
        )

    assert found(reaches) == []


def narrows(test: ast.expr) -> bool:
    """`x is not None` and `isinstance(x, ...)`, and several of these: what a type checker wants to know."""
    if isinstance(test, ast.BoolOp):
        return all(map(narrows, test.values))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return narrows(test.operand)
    if isinstance(test, ast.Compare):
        return all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
    if isinstance(test, ast.Call) and called(test) == "all":
        return all(isinstance(one, ast.GeneratorExp) and narrows(one.elt) for one in test.args)
    return called(test) == "isinstance"


def test_no_check_is_an_assert() -> None:
    """`python -O` leaves asserts out: what refuses input raises."""
    others = found(lambda _, node: isinstance(node, ast.Assert) and not narrows(node.test))
    assert {one.split(":")[0] for one in others} <= set(INVARIANTS), others


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("x is not None", True), ("isinstance(a, B) and c is None", True), ("all(isinstance(x, A) for x in y)", True),
        ("x > 0", False), ("len(key) == 32 and isinstance(key, str)", False), ("allowed(path)", False),
    ],
)  # fmt: skip
def test_what_only_narrows_is_told_from_a_check(text: str, fine: bool) -> None:
    assert narrows(ast.parse(text, mode="eval").body) is fine
