"""Rows of the tables of foreign flags. Standard library only, so that `cohort --help` stays fast.

A flag of another server changes something that has a setting here (`use`), or nothing at all (`ignored`), or something that
this server does not have (`refused`). Only the second kind lets a server start.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

NOT_YET = "not supported yet"
_MOST_CHARACTERS = 120
"""Characters of a value that a message repeats."""


class Kind(Enum):
    """What the server does with a flag."""

    USE = "use"
    IGNORED = "ignored"
    REFUSED = "refused"


class Values(Enum):
    """Number of words that follow an ignored flag."""

    NONE = ""
    ONE = "="
    MANY = "=*"


@dataclass(frozen=True, slots=True)
class Row:
    """One flag of another server."""

    names: tuple[str, ...]
    """Spellings, with dashes."""
    kind: Kind
    answer: str
    """USE: flag and value to use here, in which `{}` stands for the value, or words that begin otherwise. IGNORED: why it changes
    nothing. REFUSED: why, and what to do."""
    values: Values = Values.NONE
    variable: str | None = None
    """Environment variable that sets the same."""
    harmless: frozenset[str] = field(default_factory=frozenset)
    """Values at which the flag asks for what the server does anyway."""

    def advice(self, value: str | None) -> str:
        """The answer with the value that was given; without one, the flag alone."""
        return filled(self.answer, value)


def filled(answer: str, value: str | None) -> str:
    """`{}` replaced by a value as a shell takes it, or left out."""
    if "{}" not in answer:
        return answer
    if value is None:
        within = "'{" in answer or not answer.endswith(" {}")
        return answer.replace("{}", "VALUE") if within else answer.removesuffix(" {}")
    text = value if "'{" in answer else shlex.quote(value)
    return answer.replace("{}", text if len(text) <= _MOST_CHARACTERS else "VALUE")


def use(names: str, answer: str, *, variable: str | None = None, harmless: str = "") -> Row:
    """A flag whose effect another one has here."""
    return Row(tuple(names.split()), Kind.USE, answer, Values.ONE, variable, frozenset(harmless.split()))


def ignored(why: str, *names: str) -> list[Row]:
    """Flags that change nothing, one row for each string of spellings. `=` after the last spelling: a value follows; `=*`:
    several do; `LLAMA_ARG_...`: the variable."""
    return [_row(Kind.IGNORED, why, words) for words in names]


def refused(why: str, *names: str, harmless: str = "") -> list[Row]:
    """Flags without a counterpart, written as those of `ignored`."""
    return [_row(Kind.REFUSED, why, words, harmless) for words in names]


def _row(kind: Kind, answer: str, words: str, harmless: str = "") -> Row:
    spelled = words.split()
    variable = spelled.pop() if spelled[-1].startswith("LLAMA_") else None
    values = next(one for one in (Values.MANY, Values.ONE, Values.NONE) if spelled[-1].endswith(one.value))
    spelled[-1] = spelled[-1].removesuffix(values.value)
    return Row(tuple(spelled), kind, answer, values, variable, frozenset(harmless.split()))


def by_name(rows: Iterable[Row]) -> Mapping[str, Row]:
    """The rows by each of their spellings. The first row of a spelling counts."""
    rows_by_name: dict[str, Row] = {}
    for row in rows:
        for name in row.names:
            rows_by_name.setdefault(name, row)
    return rows_by_name
