"""A tokenizer.json for random weights: bytes, then words, one token each. No text that matters is made with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_tokenizer(folder: Path, size: int, end: int) -> None:
    """Write the files of `size` tokens beside a config.json; `end`: id of the end token. The n-th token behind the bytes is a
    space and n in base 26, so that each such token shows as one word in a text."""
    names = [*byte_names()[: size - 1]]
    names += [f"Ġ{_word(number)}" for number in range(size - 1 - len(names))]
    ids = [number for number in range(size) if number != end]
    # The library numbers a special token that is not in the vocabulary itself.
    vocabulary = {_END: end} | dict(zip(names, ids, strict=True))
    content: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [_special(end)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _END}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def ids_of(text: str, end: int) -> list[int]:
    """The id of each character of an ASCII text, as a byte; `end`: id of the end token."""
    names = byte_names()
    places = [names.index(letter if "!" <= letter <= "~" else chr(256 + ord(letter))) for letter in text]
    return [place + (place >= end) for place in places]


_END = "<|end|>"


def _special(number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": _END, "special": True, **flags}


def byte_names() -> list[str]:
    """How byte-level vocabularies write the 256 bytes: printable ones of Latin-1 as themselves, others as U+0100 and up. Those of
    ASCII text come first."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    names = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    order = sorted(range(256), key=lambda byte: (not 0x20 <= byte < 0x7F, byte))
    return [names[byte] for byte in order]


def _word(number: int) -> str:
    word = ""
    while True:
        number, digit = divmod(number, len(_LETTERS))
        word = _LETTERS[digit] + word
        if not number:
            return word
