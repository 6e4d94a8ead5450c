"""Incremental detokenizing: text token by token, never half a character, and in sum exactly the text of all tokens."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.text.tokenizer import Tokenizer

_CONTEXT = 8
"""Number of the prompt's last tokens that affect the beginning of the text after it; one character has at most four."""
_MOST_TEXTS = 65536
"""Limit on the texts that are kept of one tokenizer."""


class Detokenizer(Protocol):
    """Detokenizer of one choice. `push` returns the text that became certain; `flush` the rest at the end."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


def detokenizer(
    tokenizer: Tokenizer,
    skip_special_tokens: bool = True,
    context: Sequence[int] = (),
    shown_special: frozenset[int] = frozenset(),
    marks: Mapping[int, str] | None = None,
) -> Detokenizer:
    """The fastest exact detokenizer for this tokenizer. `shown_special`: special tokens that are not skipped. `marks`: texts in
    place of tokens, which only a tokenizer with a byte-level vocabulary can have.

    Without `context` the text begins here: a decoder that strips the first space does so. With `context`, the preceding ids,
    the result is the part of the whole text after the text of `context`.
    """
    stream: Detokenizer
    if tokenizer.byte_level:
        stream = ByteDetokenizer(tokenizer, skip_special_tokens, shown_special, marks)
    else:
        stream = StreamDetokenizer(tokenizer, skip_special_tokens, shown_special)
    visible = [i for i in context[-4 * _CONTEXT :] if not (skip_special_tokens and tokenizer.is_special(i))]
    for token_id in visible[-_CONTEXT:]:
        stream.push(token_id)
    return stream


class ByteDetokenizer:
    """For byte-level vocabularies: each token stands for fixed bytes, so text is the incremental UTF-8 decoding of their
    concatenation."""

    __slots__ = ("_marks", "_open", "_skip", "_tokenizer", "_utf8", "_visible_special", "_whole")

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool,
        shown_special: frozenset[int] = frozenset(),
        marks: Mapping[int, str] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._visible_special = shown_special
        self._marks = marks or {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = False
        """Whether the bytes so far end within a character."""
        # A mark's token has another text elsewhere.
        self._whole = {} if self._marks else tokenizer.whole_texts

    def push(self, token_id: int) -> str:
        """Text that became certain with this token."""
        if not self._open and (text := self._whole.get(token_id)) is not None:
            return text
        if (mark := self._marks.get(token_id)) is not None:
            return self.flush() + mark
        special = self._tokenizer.is_special(token_id)
        if special and self._skip and token_id not in self._visible_special:
            return ""
        was_open = self._open
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        self._open = bool(self._utf8.getstate()[0])
        if not (was_open or self._open or special) and len(self._whole) < _MOST_TEXTS:
            self._whole[token_id] = text
        return text

    def flush(self) -> str:
        """The rest at the end: an incomplete character becomes U+FFFD."""
        self._open = False
        return self._utf8.decode(b"", final=True)


class StreamDetokenizer:
    """For any other tokenizer: the steps of its decoder as a stream (`engine/text/decoding.py`)."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool, shown_special: frozenset[int] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._visible_special = shown_special
        self._stream = tokenizer.decoder.stream()

    def push(self, token_id: int) -> str:
        """Text that became certain with this token; an id without a token adds nothing."""
        if self._skip and self._tokenizer.is_special(token_id) and token_id not in self._visible_special:
            return ""
        token = self._tokenizer.raw.id_to_token(token_id)
        return "" if token is None else self._stream.push(token)

    def flush(self) -> str:
        """The held-back text: an incomplete character becomes U+FFFD."""
        return self._stream.end()
