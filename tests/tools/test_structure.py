"""tools/structure.py finds what it forbids."""

from pathlib import Path

import pytest

from tools.names import verb_names
from tools.structure import circles, equal_lines, long_functions, room_of, rooms


@pytest.mark.parametrize(
    ("imports", "expected"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["b"], "b": ["a"]}, [["a", "b"]]),
        ({"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": ["d"]}, [["a", "b", "c"], ["d", "e"]]),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, []),
    ],
)
def test_circles(imports: dict[str, list[str]], expected: list[list[str]]) -> None:
    assert circles(imports) == expected


def test_rooms() -> None:
    folders = frozenset(
        {"server", "server.http", "executors.llm", "executors.llm.step", "executors.kernels.triton"}
    )
    assert room_of("server.http.errors", folders) == "server.http" == room_of("server.http", folders)
    assert room_of("server.cli", folders) == "server.cli"
    assert room_of("executors.llm.step.launched.graphs", folders) == "executors.llm.step"
    assert room_of("executors.llm.executor", folders) == "executors.llm.executor"
    assert room_of("executors.kernels.triton.tile", folders) == "executors.kernels"


def test_rooms_that_import_each_other_are_a_circle_even_where_modules_are_none() -> None:
    imports = {
        "server.a.one": ["server.b.one"],
        "server.b.two": ["server.a.two"],
        "server.b.one": [],
        "server.a.two": [],
    }
    assert circles(imports) == []
    assert circles(rooms(imports)) == [["server.a", "server.b"]]


def test_long_functions(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("def short():\n    pass\n\nasync def long():\n" + "    x = 1\n" * 5)
    assert list(long_functions(path, most=6)) == []
    [problem] = long_functions(path, most=5)
    assert "long has 6 lines" in problem


def test_equal_lines(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    same = [f"x{i} = {i}" for i in range(8)]
    one.write_text("import a\n" + "\n".join(same) + "\nend = 1\n")
    two.write_text("start = 1\n\nif start:\n" + "\n\n".join(f"    {line}" for line in same))
    [problem] = equal_lines([one, two], most=6)
    assert problem.startswith(f"{two}:4:") and f"{one}:2" in problem
    assert list(equal_lines([one, two], most=9)) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("said = 1", 1), ("_held: int = 0", 1), ("self._taken = 1", 1), ("def f(found): ...", 1), ("def f(*, begun=1): ...", 1),
        ("for kept in x: ...", 1), ("a, known = x", 1), ("if (wanted := x): ...", 1), ("f = lambda seen: 0", 1),
        ("class C:\n    asked: int", 1), ("with x as held: ...", 1), ("left = 3", 1), ("[told for told in x]", 1),
        ("left, right = x", 0), ("num_kept = 1", 0), ("drafts_wanted = 1", 0), ("x.held()", 0), ("f(said)", 0),
        ("def held(self): ...", 0),
    ],
)  # fmt: skip
def test_names_that_are_verbs(source: str, expected: int, tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(source)
    assert len(list(verb_names(file))) == expected
