"""GBNF (llama.cpp's grammars, rules with `::=`) as Lark, by llguidance's own converter. Only for the validating process."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def to_lark(text: str) -> str:
    """The grammar as Lark. Raises Exception if the text is not GBNF."""
    from llguidance.gbnf_to_lark import any_to_lark

    return str(any_to_lark(_ESCAPE.sub(_plain, text)))


def _plain(escape: re.Match[str]) -> str:
    """The character for a numeric escape: the converter would remove the leading zeros of `\\u00e9`. Characters with a meaning
    in a grammar, and those below the blank, stay numeric, in a form that the converter leaves alone."""
    number = escape[1] or escape[2] or escape[3]
    if number is None:
        return escape[0]
    character = chr(int(number, 16))  # ValueError past the last one
    if character.isalnum() or ord(character) > 0x9F:
        return character
    return f"\\x{ord(character):02x}"
