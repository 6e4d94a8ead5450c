"""The split by wording is fair: what a held-out wording says is said by wordings that are trained on too."""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence

import pytest

from executors.tiny import data
from executors.tiny.data.phrasing import digest
from executors.tiny.data.tool_catalogue import CATALOGUE

_COMMON = frozenset(
    """that this with have from your what which there their then them they will would could should does into about please
    thanks tell give make want need know like just also some more very much many""".split()
)

_NOT_SPLIT = frozenset(
    "CLASSIC EVERYDAY TALK PEOPLE THINGS NOTICES RIDES _WIDER PAIRS _NUMBERED _PARAMETER_NOTES".split()
)
"""Sentences to extract from and notes in definitions: their values are split, not their wordings."""


def _words(line: str) -> set[str]:
    """Return the words of at least four letters, of all choices."""
    return set(re.findall(r"[a-z']{4,}", re.sub(r"\{\w+\}", " ", line.lower()))) - _COMMON


def _lists() -> Iterator[tuple[str, Sequence[str], set[str]]]:
    """Yield every list of wordings with a name and the words that are known beside it."""
    for module in pkgutil.iter_modules(data.__path__):
        if module.name in (
            "dialogs",
            "forced_calls",
        ):  # system prompts, and calls that nobody is asked for: trained only
            continue
        for name, value in vars(importlib.import_module(f"{data.__name__}.{module.name}")).items():
            wordings = isinstance(value, tuple) and all(isinstance(line, str) for line in value)
            if wordings and name not in _NOT_SPLIT and any("{" in line for line in value):
                yield f"{module.name}.{name}", value, set()
    for kind in CATALOGUE:
        named = " ".join((*kind.names, *kind.descriptions)).replace("_", " ")
        yield f"tool {kind.names[0]}", kind.asks, _words(named)


CASES = list(_lists())


def _held_out(line: str) -> bool:
    return digest("line", line) % 8 == 0


@pytest.mark.parametrize(("name", "lines", "known"), CASES, ids=[case[0] for case in CASES])
def test_words_of_held_out_wordings_are_trained(name: str, lines: Sequence[str], known: set[str]) -> None:
    trained = known.union(*(_words(line) for line in lines if not _held_out(line)))
    strange = {line: _words(line) - trained for line in lines if _held_out(line)}
    assert not {line: words for line, words in strange.items() if words}, name


def test_every_tool_is_asked_for_in_many_ways() -> None:
    for kind in CATALOGUE:
        assert len(kind.asks) >= 12, kind.names[0]
        assert len(set(kind.asks)) == len(kind.asks), kind.names[0]
