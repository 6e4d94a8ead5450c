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
    """For any other tokenizer: decodes a short window with and without the new token; the difference is the new text.

    Byte-fallback tokens (`<0x41>`) are taken out and decoded as UTF-8 one by one, so that characters appear as soon as
    they are whole. (The tokenizers library turns a whole run of bytes into U+FFFD if any of it is invalid; shown text
    cannot be taken back, so here only the invalid bytes become U+FFFD.)
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if self._skip and self._tokenizer.is_special(token_id):
            return ""
        byte = self._tokenizer.fallback_byte(token_id)
        if byte is not None:
            # Kept in the window all the same: what follows is not the beginning of the text any more.
            self._window.append(token_id)
            return self._utf8.decode(byte)
        broken = self._utf8.decode(b"", final=True)
        before = self._decode(self._window)
        self._window.append(token_id)
        text = self._decode(self._window)[len(before) :]
        # A window that starts later loses the space of its first token on both sides of the difference alike.
        if len(self._window) > 2 * _WINDOW:
            del self._window[:-_WINDOW]
        return broken + text

    def flush(self) -> str:
        """What is left at the end: an incomplete character becomes U+FFFD."""
        return self._utf8.decode(b"", final=True)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""
