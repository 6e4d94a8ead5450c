"""Tokenizers of any size for tests of grammars, written as the JSON that the tokenizers library reads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

PRINTABLE = "".join(map(chr, range(33, 127)))
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
SPECIAL = ("<|endoftext|>", "<|end|>", "<tool>")


def write_tokenizer(directory: Path, size: int, special: tuple[str, ...] = SPECIAL) -> Path:
    """tokenizer.json with `size` tokens: printable ASCII, space and newline, words of letters, and the special ones last."""
    texts = [*PRINTABLE, "Ġ", "Ċ"]
    words = ("".join(word) for n in itertools.count(2) for word in itertools.product(LETTERS, repeat=n))
    texts += itertools.islice(words, size - len(texts) - len(special))
    known = set(texts)
    merges = [[text[:-1], text[-1]] for text in texts if len(text) > 1 and text[:-1] in known]
    added = [
        {
            "id": len(texts) + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for i, text in enumerate(special)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    fields = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {text: i for i, text in enumerate(texts)}, "merges": merges},
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(fields))
    return directory
