"""Model `t5`: SentencePiece's unigram model, which cuts a text into the pieces whose scores have the greatest sum."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from engine.text.gguf.merges import SCORES
from engine.text.gguf.metadata import Metadata
from engine.text.gguf.vocabulary import Vocabulary
from engine.text.sentencepiece_model import check_charsmap
from executors.contract import ConfigError

CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
MERGES_SPACES = "tokenizer.ggml.remove_extra_whitespaces"
_MOST_BYTES = 16 << 20
"""Largest map of characters; the known ones have 240,000 bytes."""
_MARK = "▁"


def unigram_parts(metadata: Metadata, vocabulary: Vocabulary, prefix: bool) -> dict[str, Any]:
    """The entries normalizer, pre_tokenizer, decoder and model of tokenizer.json. `prefix`: a space precedes a text. Raises
    ConfigError.

    Runs of spaces count as one, and those around a text for nothing, if `remove_extra_whitespaces` is true.
    """
    vocabulary.index()
    scores = metadata.numbers(SCORES, len(vocabulary.texts))
    if scores is None:
        raise ConfigError(f"{SCORES}: missing; a tokenizer of model t5 needs them")
    if not np.isfinite(scores).all():
        raise ConfigError(f"{SCORES}: entry {int((~np.isfinite(scores)).argmax())} is not finite")
    unknown = vocabulary.roles.get("unk")
    if unknown is None:
        raise ConfigError("tokenizer.ggml.unknown_token_id: missing; a tokenizer of model t5 needs it")
    merges = metadata.flag(MERGES_SPACES) is True
    scheme = "always" if prefix else "never"
    metaspace = {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": scheme, "split": True}
    words = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]}
    steps = _characters(metadata)
    if merges and not prefix:  # words without a mark are told apart by the space before them
        steps += [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
        "pre_tokenizer": words if merges and prefix else metaspace,
        "decoder": metaspace,
        "model": {
            "type": "Unigram",
            "unk_id": unknown,
            "vocab": [*zip(vocabulary.texts, map(float, scores.tolist()), strict=True)],
            "byte_fallback": False,
        },
    }


def _characters(metadata: Metadata) -> list[dict[str, Any]]:
    """The step that maps characters to others, [] if the file has no map. Raises ConfigError for a map that is none."""
    value = metadata.values.get(CHARSMAP)
    if value is None:
        return []
    numbers = np.asarray(value)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or len(numbers) > _MOST_BYTES:
        raise ConfigError(f"{CHARSMAP}: a list of up to {_MOST_BYTES} bytes is expected")
    raw = (numbers.astype(np.int64) & 0xFF).astype(np.uint8).tobytes()
    try:
        check_charsmap(raw)
    except ConfigError as error:
        raise ConfigError(f"{CHARSMAP}: {error}") from None
    if not raw:
        return []
    return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}]
