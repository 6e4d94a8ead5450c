"""`Sequence` alone writes the fields of a sequence, read from the source of the engine."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from engine.block_table import BlockTable
from engine.sequence import Sequence

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name for field in fields(Sequence)}
TABLE_FIELDS = {field.name for field in fields(BlockTable)}
CHANGE = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "setdefault", "sort", "update"}
"""Methods of lists and dicts that change them."""


def writes(source: str) -> Iterator[str]:
    """Fields of a sequence that this source writes, each with its line. What an object writes of itself (`self.slot = ...`) is
    none: other classes have fields of the same name."""
    for node in ast.walk(ast.parse(source)):
        targets: list[ast.AST] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = list(node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGE:
            targets = [node.func.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr":
            yield f"line {node.lineno}: setattr"
        yield from (f"line {node.lineno}: {name}" for target in targets for name in written(target))


def written(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from written(part)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from written(target.value)
    elif isinstance(target, ast.Attribute):
        if ast.unparse(target.value) != "self" and target.attr in FIELDS:
            yield target.attr
        elif target.attr in TABLE_FIELDS:
            yield from written(target.value)


def test_no_module_of_the_engine_but_sequence_writes_a_field_of_a_sequence() -> None:
    found = {}
    for file in sorted((ROOT / "engine").rglob("*.py")):
        if file.name != "sequence.py" and (lines := list(writes(file.read_text("utf-8")))):
            found[file.relative_to(ROOT).as_posix()] = lines
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "seq.slot = None",
        "seq.in_flight += 1",
        "seq.alone, other = True, 0",
        "del seq.output_token_ids[3:]",
        "seq.block_tables[0] = 7",
        "seq.block_tables[0].first += 1",
        "seq.block_tables[0].blocks.append(7)",
        "del seq.block_tables[0].blocks[:2]",
        "self.seq.output_token_ids.append(7)",
        "setattr(seq, name, 1)",
    ],
)
def test_each_way_to_write_is_seen(source: str) -> None:
    assert len(list(writes(source))) == 1


@pytest.mark.parametrize(
    "source", ["self.slot = None", "slot = seq.slot", "seq.grant(1, 2)", "plan.budget -= 1"]
)
def test_reading_and_asking_are_not_writing(source: str) -> None:
    assert not list(writes(source))
