"""tools/decisions.py: heads of decisions, and their index."""

from pathlib import Path

import pytest

from tools import decisions as tool


def write(folder: Path, name: str, head: str) -> None:
    (folder / name).write_text(f"{head}\n\nText.\n")


def test_the_index_has_every_decision_of_the_project() -> None:
    page = tool.INDEX.read_text("utf-8")
    every = tool.decisions()
    assert len(every) > 250
    for each in every:
        assert f"- {each.number}. [{each.title}]({each.file})" in page


def test_decisions_in_force_stand_by_room_and_others_apart(tmp_path: Path) -> None:
    write(tmp_path, "0001-old.md", "# 1. Old\n\nRoom: `engine` · Status: superseded by 2")
    write(tmp_path, "0002-new.md", "# 2. New\n\nRoom: `engine` · Status: amended by 3")
    write(tmp_path, "0003-other.md", "# 3. Other\n\nRoom: `server` · Status: accepted")
    page = tool.index(tool.decisions(tmp_path))
    rooms, over = page.split("## No longer in force")
    assert "## engine\n\n- 2. [New](0002-new.md) (amended by 3)\n" in rooms
    assert "## server\n\n- 3. [Other](0003-other.md)\n" in rooms
    assert over.strip() == "- 1. [Old](0001-old.md) (superseded by 2)"


@pytest.mark.parametrize(
    "name, head, words",
    [
        ("0001-a.md", "# 1. A\n\nStatus: accepted", "the head is not"),
        ("0002-a.md", "# 1. A\n\nRoom: `engine` · Status: accepted", "not named by its number, 0001"),
        ("0001-a.md", "# 1. A\n\nRoom: `attic` · Status: accepted", "there is no room attic"),
        ("0001-a.md", "# 1. A\n\nRoom: `engine` · Status: maybe", "no such status: maybe"),
        (
            "0001-a.md",
            "# 1. A\n\nRoom: `engine` · Status: superseded by 9",
            "names decision 9, which does not exist",
        ),
    ],
)
def test_a_wrong_head_is_named(tmp_path: Path, name: str, head: str, words: str) -> None:
    write(tmp_path, name, head)
    with pytest.raises(ValueError, match=words):
        tool.decisions(tmp_path)


def test_a_number_is_used_once(tmp_path: Path) -> None:
    for name in ("0001-a.md", "0001-b.md"):
        write(tmp_path, name, "# 1. A\n\nRoom: `engine` · Status: accepted")
    with pytest.raises(ValueError, match="two decisions have one number"):
        tool.decisions(tmp_path)
