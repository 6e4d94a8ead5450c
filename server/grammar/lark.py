"""Small pieces of llguidance's Lark dialect (its docs/syntax.md)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

TEXT = r"(?s:.*)"
"""Regular expression for any text, without special tokens."""


def text_of(most: int | None) -> str:
    """Regular expression for text of at most `most` characters, of any length for None."""
    return TEXT if most is None else f"(?s:.{{0,{most}}})"


class Lark:
    """Collects rules. `tokens` maps notation that is one token of the model to its id: llguidance does not treat such a token
    as text, so a grammar must refer to it by its id."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._rules: list[str] = []
        self._pieces = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")

    def is_token(self, notation: str) -> bool:
        """True if the notation is one token."""
        return notation in self._tokens

    def literal(self, text: str) -> str:
        """An expression for exactly this text, with notation in it as tokens."""
        terms, at = [], 0
        for match in self._pieces.finditer(text):
            terms += _quoted(text[at : match.start()])
            terms.append(f"<[{self._tokens[match[0]]}]>")
            at = match.end()
        return " ".join(terms + _quoted(text[at:])) or '""'

    def rule(self, name: str, expression: str, options: str = "") -> str:
        """Add a rule; returns its name."""
        self._rules.append(f"{name}{options}: {expression}")
        return name

    def text_before(self, name: str, notation: str, *without: str, text: str = TEXT) -> str:
        """A rule `name` for text up to and with `notation`, spelled out or as a token. The text follows the regular expression
        `text` and begins with none of `without`."""
        forbidden = _unlike(without)
        by_letter = self.rule(f"{name}_spelled", f"/{text}{spelled(notation)}/{forbidden}", "[lazy]")
        if not self.is_token(notation):
            return by_letter
        return self.rule(
            name, f"{by_letter} | {self.rule(name.upper(), f'/{text}/{forbidden}')} {self.literal(notation)}"
        )

    def text_without(self, name: str, *beginnings: str) -> str:
        """A terminal for text that begins with none of these regular expressions."""
        return self.rule(name.upper(), f"/{TEXT}/{_unlike(beginnings)}")

    def source(self, start: str) -> str:
        """The grammar: the start expression and all collected rules."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def _unlike(beginnings: Iterable[str]) -> str:
    return "".join(f" & ~/{one}{TEXT}/" for one in beginnings)


def _quoted(text: str) -> list[str]:
    return [json.dumps(text, ensure_ascii=False)] if text else []


def spelled(text: str) -> str:
    """A regular expression, between slashes, for exactly this text."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
