"""Incremental detokenizing: text as tokens come, never half a character, and in sum exactly the text of the whole."""

from __future__ import annotations

import codecs
from typing import Protocol

from engine.text.tokenizer import Tokenizer

# Tokens decoded again with each new one, so that joins (spaces, merged characters) come out as in the whole text.
_WINDOW = 6


class Detokenizer(Protocol):
    """One per choice. `push` returns the text that became certain; `flush` what is left at the end."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


def detokenizer(tokenizer: Tokenizer, skip_special_tokens: bool = True) -> Detokenizer:
    """The fastest exact detokenizer for this tokenizer."""
    if tokenizer.byte_level:
        return ByteDetokenizer(tokenizer, skip_special_tokens)
    return WindowDetokenizer(tokenizer, skip_special_tokens)


class ByteDetokenizer:
    """For byte-level vocabularies: each token stands for fixed bytes, so text is the incremental UTF-8 decoding of their
    concatenation."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if self._skip and self._tokenizer.is_special(token_id):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What is left at the end: an incomplete character becomes U+FFFD."""
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For any tokenizer: decodes a short window with and without the new tokens; the difference is the new text.

    A difference that ends in U+FFFD may be the beginning of a character and is held back until it is whole.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._given = 0
        """Tokens whose text has been returned."""

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if self._skip and self._tokenizer.is_special(token_id):
            return ""
        self._ids.append(token_id)
        text = self._pending()
        # Four bytes are the longest character: after that a replacement character is there to stay.
        if text.endswith("\ufffd") and len(self._ids) - self._given < 4:
            return ""
        if text:
            self._given = len(self._ids)
            self._trim()
        return text

    def flush(self) -> str:
        """What is left at the end."""
        text = self._pending()
        self._given = len(self._ids)
        return text

    def _pending(self) -> str:
        before = self._decode(self._ids[: self._given])
        return self._decode(self._ids)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

    def _trim(self) -> None:
        # The first token of a sequence may lose its space when decoded at the front; a window that starts later loses it
        # on both sides of the difference, so the difference is the same.
        if self._given > 2 * _WINDOW:
            self._ids = self._ids[-_WINDOW:]
            self._given = len(self._ids)
