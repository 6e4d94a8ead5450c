"""The steps of a decoder, each as a stream of pieces of tokens. `engine/text/decoding.py` combines them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

Piece = tuple[str, bool]
"""Type of a piece: text, and whether a new token begins with it."""


class DecoderStage(Protocol):
    """One step, with the state of one text."""

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """The pieces that became certain with this piece."""

    def end(self) -> Sequence[Piece]:
        """The held-back pieces, at the end of the text."""

    def middle(self, text: str) -> str | bytes:
        """The result for a whole token in the middle of a text. Reads and changes no state."""


class ByteLevel:
    """Every character of a token is a byte; the bytes of all tokens are one UTF-8 text."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """Whole characters."""
        first, self._first = self._first, False
        return ((self._utf8.decode(byte_level_bytes(text)), first),)

    def end(self) -> Sequence[Piece]:
        """An incomplete character becomes U+FFFD."""
        return ((self._utf8.decode(b"", final=True), self._first),)

    def middle(self, text: str) -> str | bytes:
        """The token's bytes."""
        return byte_level_bytes(text)


class ByteFallback:
    """Tokens such as `<0x41>` are bytes, and a run of them is one token of UTF-8; other tokens stay as they are.

    A run with an invalid byte differs from the library, which turns every byte of such a run into U+FFFD, including whole
    characters. This would require waiting for the end of the run: a newline, which is `<0x0A>` in these vocabularies, would be
    shown, and found as a stop string, only after the next token. Here, as for byte-level vocabularies, only the invalid bytes
    become U+FFFD (Unicode 16.0, section 3.9: maximal subparts).
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._run_begins = True

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """Whole characters of a run; anything else at once."""
        byte = fallback_byte(text)
        if byte is None:
            broken = self.end()
            self._run_begins = True
            return (*broken, (text, new))
        return self._show(self._utf8.decode(byte))

    def end(self) -> Sequence[Piece]:
        """An incomplete character becomes U+FFFD."""
        return self._show(self._utf8.decode(b"", final=True))

    def middle(self, text: str) -> str | bytes:
        """The byte, or the token itself."""
        byte = fallback_byte(text)
        return text if byte is None else byte

    def _show(self, text: str) -> Sequence[Piece]:
        if not text:
            return ()
        begins, self._run_begins = self._run_begins, False
        return ((text, begins),)


class Fuse:
    """All tokens become one."""

    def __init__(self) -> None:
        self._first = True

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """The same text, as a later part of the first token."""
        first, self._first = self._first, False
        return ((text, first),)

    def end(self) -> Sequence[Piece]:
        """Nothing is held back."""
        return ()

    def middle(self, text: str) -> str | bytes:
        """The token itself."""
        return text


class Strip:
    """Removes up to `start` leading and up to `stop` trailing characters `content` of each token; `joined`: an earlier step has
    joined all tokens into one."""

    def __init__(self, content: str, start: int, stop: int, joined: bool) -> None:
        self._content, self._start, self.stop, self._joined = content, start, stop, joined
        self._to_strip = start
        self._pending = ""
        """Characters at the end that are removed if the token ends here."""

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """Text without trailing characters that may have to be removed."""
        if new:
            self._to_strip, self._pending = self._start, ""
        cut = 0
        while self._to_strip and cut < len(text):
            if text[cut] != self._content:
                self._to_strip = 0
                break
            self._to_strip -= 1
            cut += 1
        text = self._pending + text[cut:]
        keep = len(text)
        while len(text) - keep < self.stop and keep and text[keep - 1] == self._content:
            keep -= 1
        self._pending = text[keep:]
        return ((text[:keep], new),)

    def end(self) -> Sequence[Piece]:
        """Nothing: the held-back characters are removed."""
        return ()

    def middle(self, text: str) -> str | bytes:
        """A token of a joined text is in its middle, where nothing is removed."""
        if self._joined:
            return text
        [(content, _)] = Strip(self._content, self._start, self.stop, joined=False).push(text, True)
        return content


class Metaspace:
    """The mark becomes a space, and nothing in the first token, unless `keep_first`."""

    def __init__(self, mark: str, keep_first: bool) -> None:
        self._mark = mark
        self._num_tokens = 0
        self._keep_first = keep_first

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """The text with spaces."""
        self._num_tokens += new
        bare = self._num_tokens <= 1 and not self._keep_first
        return ((text.replace(self._mark, "" if bare else " "), new),)

    def end(self) -> Sequence[Piece]:
        """Nothing is held back."""
        return ()

    def middle(self, text: str) -> str | bytes:
        """A mark is a space."""
        return text.replace(self._mark, " ")


class Replace:
    """Replaces a string, from left to right, in the text of all tokens together."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._pending = ""
        """Text that may be the beginning of `old`."""

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """Text in which nothing can be replaced any more."""
        *done, rest = (self._pending + text).split(self._old)
        certain = len(rest) - _length_of_partial(rest, self._old)
        self._pending = rest[certain:]
        return ((self._new.join([*done, rest[:certain]]), new),)

    def end(self) -> Sequence[Piece]:
        """The held-back incomplete `old`."""
        pending, self._pending = self._pending, ""
        return ((pending, False),) if pending else ()

    def middle(self, text: str) -> str | bytes:
        """The same within this token."""
        return text.replace(self._old, self._new)


class EachToken:
    """A step that depends on the token alone and on whether it is the first."""

    def __init__(self, text_of: Callable[[str, bool], str]) -> None:
        self._text_of = text_of
        self._first = True

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """The token's text."""
        first, self._first = self._first, False
        return ((self._text_of(text, first), new),)

    def end(self) -> Sequence[Piece]:
        """Nothing is held back."""
        return ()

    def middle(self, text: str) -> str | bytes:
        """As a later token."""
        return self._text_of(text, False)


class BpeSuffix:
    """The end-of-word mark becomes a space, and nothing in the last token."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._pending = ""

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """The token up to its mark; the mark itself waits for the next token."""
        before = self._pending.replace(self._suffix, " ") if self._suffix else self._pending
        at = text.find(self._suffix) if self._suffix else -1
        self._pending = text[at:] if at >= 0 else ""
        return ((before, False), (text[:at] if at >= 0 else text, new))

    def end(self) -> Sequence[Piece]:
        """The last token's mark is removed."""
        pending, self._pending = self._pending, ""
        return ((pending.replace(self._suffix, ""), False),) if pending else ()

    def middle(self, text: str) -> str | bytes:
        """The mark is a space."""
        return text.replace(self._suffix, " ") if self._suffix else text


class SpaceJoin:
    """The library's behaviour without a decoder: tokens with a space between them."""

    def __init__(self) -> None:
        self._first = True

    def push(self, text: str, new: bool) -> Sequence[Piece]:
        """The token, after a space unless it is the first."""
        first, self._first = self._first, False
        return ((text if first else " " + text, new),)

    def end(self) -> Sequence[Piece]:
        """Nothing is held back."""
        return ()

    def middle(self, text: str) -> str | bytes:
        """As a later token."""
        return " " + text


_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def fallback_byte(token: str) -> bytes | None:
    """The byte of a token such as `<0x41>`, None for any other token."""
    if not token.startswith("<0x"):
        return None
    match = _FALLBACK.fullmatch(token)
    return None if match is None else bytes([int(match[1], 16)])


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map of printable characters to bytes: visible Latin-1 characters stand for themselves, the 68 others for
    U+0100 and up, in order (Radford et al. 2019, the byte-level BPE of the released model)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(visible)]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level BPE token. A token with a character outside the alphabet (an added token with a space, say)
    stands for its own text."""
    alphabet = _byte_alphabet()
    try:
        return bytes(alphabet[c] for c in token)
    except KeyError:
        return token.encode()


def _length_of_partial(text: str, old: str) -> int:
    """Number of characters at the end of `text` that may begin `old`."""
    for length in range(min(len(old) - 1, len(text)), 0, -1):
        if text.endswith(old[:length]):
            return length
    return 0
