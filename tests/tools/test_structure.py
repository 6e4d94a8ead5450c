"""tools/structure.py finds what it forbids."""

from pathlib import Path

import pytest

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
        {"server", "server.http", "executors.llm", "executors.llm.gpu", "executors.kernels.triton"}
    )
    assert room_of("server.http.errors", folders) == "server.http" == room_of("server.http", folders)
    assert room_of("server.cli", folders) == "server.cli"
    assert room_of("executors.llm.gpu.graphs", folders) == "executors.llm.gpu"
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
