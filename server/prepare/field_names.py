"""Names of fields as a dialect's clients know them.

Errors below the routes name a field by its role: its name in a chat or completion, or in the engine's request. Each dialect has
one map from roles to its own fields, beside the conversion of its body, and the route that knows the dialect puts the names in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from engine.errors import InvalidRequest

Word = str | Callable[[int], str]
"""A part of a name that depends on the body; with the number that the role has, or else that of the prompt at fault."""

_NUMBER, _REST = "#", "*"


class FieldNames:
    """A map from roles to names. Both are dotted paths; the first row that fits counts, and a role without one keeps its name.

    In a role `#` is a number and a final `*` any further parts, none included. In a name a final `*` stands for these parts, and
    `{word}` for what the body says of it (`of_body`): a name whose word is None is no field of the client's.

        FieldNames({"stop.*": "options.stop.*", "messages.*": "{prompt}"}).of_body(prompt="system")
    """

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.rows = rows
        self._words: Mapping[str, Word | None] = {}

    def of_body(self, **words: Word | None) -> FieldNames:
        """The map for one body."""
        names = FieldNames(self.rows)
        names._words = {**self._words, **words}
        return names

    def __call__(self, role: str, element: int = 0) -> str | None:
        """The client's name of a field. `element`: number of the prompt at fault."""
        parts = role.split(".")
        for pattern, name in self.rows.items():
            if (fit := _fit(pattern.split("."), parts)) is not None:
                number, rest = fit
                return self._written(name, element if number is None else number, rest)
        return role

    def _written(self, name: str, number: int, rest: list[str]) -> str | None:
        parts = []
        for part in name.split("."):
            if part == _REST:
                parts += rest
            elif part.startswith("{"):
                word = self._words[part[1:-1]]
                if word is None:
                    return None
                parts.append(word if isinstance(word, str) else word(number))
            else:
                parts.append(part)
        return ".".join(parts)


def _fit(pattern: list[str], parts: list[str]) -> tuple[int | None, list[str]] | None:
    """The number and the further parts by which these parts fit a row, None if they do not."""
    rest: list[str] = []
    if pattern[-1] == _REST:
        pattern = pattern[:-1]
        parts, rest = parts[: len(pattern)], parts[len(pattern) :]
    if len(pattern) != len(parts):
        return None
    number = None
    for expected, part in zip(pattern, parts, strict=True):
        if expected == _NUMBER and part.isdecimal() and part.isascii():
            number = int(part)
        elif expected != part:
            return None
    return number, rest


@contextlib.contextmanager
def named(names: FieldNames) -> Iterator[None]:
    """Put the client's names into refusals."""
    try:
        yield
    except InvalidRequest as error:
        error.render(names)
        raise
