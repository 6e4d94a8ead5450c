"""Layout of a row of the table of penalties, biases and bans, in int32 words. `sampling/device_shaping.py` defines the
contents."""

from __future__ import annotations

ENTRIES = 1024
"""Number of entries of a row; the first stands for no entry."""
REPETITION, FREQUENCY, PRESENCE = 1, 2, 3
BIASES = 4
UNTIL = BIASES + ENTRIES
HEADER = UNTIL + ENTRIES
COUNT_BITS = 20
IN_PROMPT = 1 << COUNT_BITS
ENTRY_SHIFT = COUNT_BITS + 1
"""Bit position of a word's entry. Entries up to 1,023 do not reach the word's sign."""
ALIGN = 4
"""Alignment of sections in words: 16 bytes."""
_ROW_ALIGN = 16
"""Alignment of rows in words: the kernels' compiler checks strides for it before it reads 16 bytes at a time."""


def row_words(width: int) -> int:
    """Return the words of a row for `width` logits, results included."""
    words = HEADER + 2 * -(-width // ALIGN) * ALIGN
    return -(-words // _ROW_ALIGN) * _ROW_ALIGN


def result_words(width: int) -> int:
    """Return the words of the results of a row behind a draft, which lie outside the table."""
    return -(-width // _ROW_ALIGN) * _ROW_ALIGN
