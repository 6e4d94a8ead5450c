"""Verdicts of `benchmarks.two_trees`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import two_trees
from benchmarks.two_trees import Row, main

TREE = Path(two_trees.ROOT)


@pytest.mark.parametrize(
    ("b", "again", "verdict"),
    [(1.01, 1.0, "ok"), (1.05, 1.0, "slow"), (1.05, 1.04, "noise"), (1.04, 0.96, "noise")],
)
def test_only_what_is_beyond_the_noise_is_slow(b: float, again: float, verdict: str) -> None:
    row = Row([1.0] * 3, [b] * 3, [again] * 3)
    assert row.verdict(two_trees.LIMIT) == verdict


def test_trees_take_turns_and_one_that_is_slow_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = []

    def attention(tree: Path, only: str, memory: str, kv: str) -> dict[str, float]:
        turns.append((tree, memory))
        new = tree == TREE
        return {"decode 1 x 4096": 1.07 if new else 1.0, "chunk 16 after 0": 1.03 if new else 1.0}

    monkeypatch.setattr(two_trees, "attention", attention)
    record = tmp_path / "record.json"
    words = ["attention", "--base", str(tmp_path), "--memory", "file", "--rounds", "2", "--json", str(record)]
    assert main(words) == 1
    assert turns == [(tmp_path, "own"), (TREE, "file"), (tmp_path, "own")] * 2
    told = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1:7:2] for line in told[2:]] == [
        [" decode 1 x 4096 ", " 1.07 ", " 1.000 "], [" chunk 16 after 0 ", " 1.03 ", " 1.000 "],
    ]  # fmt: skip
    assert told[2].endswith("| ok |") and told[3].endswith("| slow |")
    assert json.loads(record.read_text())["rows"]["chunk 16 after 0"]["ratio"] == pytest.approx(1.03)


def test_the_host_has_its_groups_in_the_new_tree_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = []

    def host(tree: Path, groups: int) -> dict[str, float]:
        turns.append((tree, groups))
        return {"host": 100.0 + 3 * groups}

    monkeypatch.setattr(two_trees, "host", host)
    assert main(["host", "--base", str(tmp_path), "--rounds", "1"]) == 0
    assert turns == [(tmp_path, 1), (TREE, 3), (tmp_path, 1)]
