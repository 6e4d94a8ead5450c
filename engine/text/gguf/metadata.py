"""Typed access to a GGUF file's metadata: every value is checked, and every fault is one line that names its key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from executors.contract import ConfigError

MAX_TOKENS = 1 << 20
"""Largest vocabulary; the largest known ones have 262,144 tokens."""
MAX_MERGES = 1 << 21
MAX_TOKEN_CHARS = 1024
"""Longest token; the longest known ones are runs of 128 spaces."""
MAX_TEMPLATE_CHARS = 1 << 20
"""Longest chat template; the longest known ones have 30,000 characters."""

_TEMPLATE = "tokenizer.chat_template"
_SURROGATE = re.compile("[\ud800-\udfff]")
Read = TypeVar("Read")


class Metadata:
    """Metadata values by key. Scalars are Python's or NumPy's, arrays are NumPy's, lists or tuples.

    A key that is missing gives None, a value of another type a ConfigError. What a start does not need gives None, too, and a
    note: an id that is no token's, a chat template that is not text.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> list[str]:
        """Sentences about values that are not used."""
        return list(self._notes)

    def note(self, sentence: str) -> None:
        """Keep a sentence about a value that is not used."""
        self._notes[sentence] = None

    def unless_wrong(self, read: Callable[[], Read]) -> Read | None:
        """What `read` returns; for a value that it refuses None and a note."""
        try:
            return read()
        except ConfigError as error:
            self.note(f"{error}: not used")
            return None

    def text(self, key: str, longest: int = MAX_TOKEN_CHARS) -> str | None:
        """A string of at most `longest` characters. A chat template may be anything: what is no text of that length gives None,
        and bytes that are not UTF-8 are replaced."""
        if not key.startswith(_TEMPLATE):
            return self._text(key, longest)
        text = self.unless_wrong(lambda: self._text(key, longest, checked=False))
        if text is not None and (whole := as_unicode(text)) != text:
            self.note(f"{key}: bytes that are not UTF-8 are replaced")
            return whole
        return text

    def _text(self, key: str, longest: int, checked: bool = True) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong(key, "a string", value)
        if len(value) > longest:
            raise ConfigError(f"{key}: {len(value)} characters; at most {longest} are read")
        if checked and as_unicode(value) != value:
            raise ConfigError(f"{key}: not valid Unicode text")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, bool | np.bool_):
            raise wrong(key, "true or false", value)
        return bool(value)

    def integer(self, key: str) -> int | None:
        """An integer."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
            raise wrong(key, "an integer", value)
        return int(value)

    def number(self, key: str) -> float | int | None:
        """A finite number."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool | np.bool_) or not isinstance(
            value, int | float | np.integer | np.floating
        ):
            raise wrong(key, "a number", value)
        if not np.isfinite(value):
            raise wrong(key, "a finite number", value)
        return value.item() if isinstance(value, np.generic) else value

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """A token's id, below `num_tokens`; None and a note for another number."""
        value = self.integer(key)
        if value is None or 0 <= value < num_tokens:
            return value
        self.note(f"{key}: {str(value)[:20]} is no token's id: not used; the file has {num_tokens} tokens")
        return None

    def texts(self, key: str, most: int) -> list[str] | None:
        """At most `most` strings of at most MAX_TOKEN_CHARS characters each (twice as many for a pair of tokens). Bytes that are
        not UTF-8 are replaced."""
        value = self.values.get(key)
        if value is None:
            return None
        _check_array(key, value, "a list of strings")
        if len(value) > most:
            raise ConfigError(f"{key}: {len(value)} entries; at most {most} are read")
        texts = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if set(map(type, texts)) - {str}:
            at = next(i for i, one in enumerate(texts) if not isinstance(one, str))
            raise wrong(f"{key}[{at}]", "a string", texts[at])
        if texts and max(map(len, texts)) > 2 * MAX_TOKEN_CHARS + 1:
            at = next(i for i, one in enumerate(texts) if len(one) > 2 * MAX_TOKEN_CHARS + 1)
            raise ConfigError(f"{key}[{at}]: {len(texts[at])} characters; at most {MAX_TOKEN_CHARS} are read")
        whole = "".join(texts)
        return texts if as_unicode(whole) == whole else list(map(as_unicode, texts))

    def numbers(
        self, key: str, length: int, missing: int | None = None
    ) -> np.ndarray[Any, np.dtype[Any]] | None:
        """One number per token, shape (length,), integers or floats; none is NaN. Numbers beyond `length` are left out, with a
        note; `missing` stands for those that the list does not have, None: they are refused."""
        value = self.values.get(key)
        if value is None:
            return None
        _check_array(key, value, "a list of numbers")
        if len(value) < length and missing is None:
            raise ConfigError(f"{key}: {len(value)} entries for {length} tokens")
        if len(value) != length:
            self.note(f"{key}: {len(value)} entries for {length} tokens")
        try:
            array = np.asarray(value)[:length]
        except (ValueError, OverflowError):
            array = np.empty(0, dtype=object)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise ConfigError(f"{key}: a list of numbers is expected, this one holds something else")
        if np.isnan(array).any():
            raise ConfigError(f"{key}: entry {int(np.isnan(array).argmax())} is not a number (NaN)")
        more = length - len(array)
        return np.concatenate([array, np.full(more, missing, array.dtype)]) if more else array


def wrong(key: str, expected: str, value: object) -> ConfigError:
    """The error for a value of another type or range."""
    shown_value = " ".join(repr(value)[:200].split())[:60] if isinstance(value, str | int | float) else ""
    return ConfigError(f"{key}: {expected} is expected, not {type(value).__name__} {shown_value}".rstrip())


def _check_array(key: str, value: object, expected: str) -> None:
    if (
        not isinstance(value, np.ndarray | Sequence)
        or isinstance(value, str | bytes)
        or np.ndim(value[:0]) != 1
    ):
        raise wrong(key, expected, value)


def as_unicode(text: str) -> str:
    """The text with a replacement character for each byte that was not UTF-8, and for each half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text
