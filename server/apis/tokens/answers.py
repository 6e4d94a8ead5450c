"""Answers of the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from server.schemas.answers.common import Components, Count


class Tokenized(TypedDict):
    """Ids of a text's tokens, and their texts."""

    count: Count
    max_model_len: Count
    tokens: Sequence[Count]
    token_strs: Sequence[str] | None


class Detokenized(TypedDict):
    """The text of token ids."""

    prompt: str


COMPONENTS: Components = {
    "Tokenized": (Tokenized, ""),
    "Detokenized": (Detokenized, ""),
}
