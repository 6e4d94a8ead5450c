"""Texts of known lengths: words that are one token each, drawn with a seed."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

SHORTEST, LONGEST = 10, 400
"""Tokens of a text, with the two that the tokenizer adds."""


def tokenizer(model: Path) -> Tokenizer:
    """Return the tokenizer of a model, which neither cuts nor pads."""
    made = Tokenizer.from_file(str(model / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def texts(model: Path, count: int, lengths: tuple[int, int] = (SHORTEST, LONGEST), seed: int = 7) -> list[str]:  # fmt: skip
    """Return texts of lengths that are uniform between the two, in tokens."""
    vocabulary = tokenizer(model).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2)
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=rng.randint(*lengths) - 2)) for _ in range(count)]
