"""Checks that no variable, parameter or field is named by a form of a verb: `message`, not `said`; `tokens`, not `given`.

Part of `python -m tools.structure`. A name that is only a verb says that something was done and not what the value is. The check
reads the folders of ROOTS; a folder is added once its names are nouns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOTS = (
    "engine",
    "executors",
    "clients",
    "cohort_server",
    "server",
)
"""Folders in which the rule holds."""
VERB_FORMS = frozenset(
    "asked begun came found gave given goes got heard held kept knew known left lost made meant named said saw seen sent shown "
    "taken tells thought told took wanted wants went".split()
)


def verb_names(path: Path) -> Iterator[str]:
    """Names in a file that are a form of a verb, each with its place. Underscores before a name do not count, and `left` beside
    `right` is a side."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    sides = any(isinstance(node, ast.Name) and node.id in ("right", "rights") for node in nodes)
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            name = node.name or ""
        else:
            continue
        bare = name.strip("_").lower()
        if bare in VERB_FORMS and not (bare == "left" and sides):
            line = getattr(node, "lineno", 0)
            yield f"{path}:{line}: {name} is a form of a verb: name what the value is"
