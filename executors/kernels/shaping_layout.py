"""A row of the table of penalties, biases and bans, in int32 words. `sampling/device_shaping.py` says what they mean."""

from __future__ import annotations

ENTRIES = 1024
"""Of a row; the first is none."""
REPETITION, FREQUENCY, PRESENCE = 1, 2, 3
BIASES = 4
UNTIL = BIASES + ENTRIES
HEADER = UNTIL + ENTRIES
COUNT_BITS = 20
IN_PROMPT = 1 << COUNT_BITS
ENTRY_SHIFT = COUNT_BITS + 1
"""Entries up to 1,023 leave a word's sign alone."""
ALIGN = 4
"""Words that sections begin at multiples of: 16 bytes."""
_ROW_ALIGN = 16
"""Words that rows are multiples of: what the kernels' compiler asks of strides before it reads 16 bytes at a time."""


def row_words(width: int) -> int:
    """Of a row for so many logits, results included."""
    words = HEADER + 2 * -(-width // ALIGN) * ALIGN
    return -(-words // _ROW_ALIGN) * _ROW_ALIGN
