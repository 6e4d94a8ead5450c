"""Metadata changed at random: a tokenizer, or a ConfigError that names a key, each within a second."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.text.gguf_tokenizer import tokenizer_files
from engine.text.tokenizer import Tokenizer
from executors.contract import ConfigError
from tests.engine.text.gguf_conversion import convert
from tests.engine.text.gguf_originals import PRE, original
from tests.tiers import sweep

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1 << 31, 1 << 70, 0.5, float("nan"), float("inf"), object(), b"x", np.float32(1),
    "", " ", "default", "llama", "gpt2", "bert", "\udc80", "\x00",
    [], [""], [" "], ["a"], [0], [None], [[]], [float("inf")], {}, (),
    np.zeros(0), np.zeros(3), np.zeros((2, 2)), np.array(["a"]), np.array([None]),
)  # fmt: skip


def change_scalar(draw: random.Random, value: Any) -> Any:
    return draw.choice(ODD)


def change_entry(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, list | np.ndarray) or not len(value):
        return draw.choice(ODD)
    entries = list(value)
    for _ in range(draw.choice((1, 1, 3))):
        entries[draw.randrange(len(entries))] = draw.choice((*ODD, draw.choice(entries)))
    return entries


def change_length(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, list | np.ndarray):
        return draw.choice(ODD)
    entries = list(value)
    return entries[: draw.randrange(len(entries) + 1)] + draw.choices(entries or [0], k=draw.randrange(3))


def change_text(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        return draw.choice(ODD)
    texts = list(value)
    at = draw.randrange(len(texts))
    text = texts[at]
    cut = draw.randrange(len(text) + 1)
    texts[at] = (
        text[:cut] + draw.choice(("", " ", "\n", "\x00", "▁", "\ud800", "é", text, "#version")) + text[cut:]
    )
    return texts


CHANGES: tuple[Callable[[random.Random, Any], Any], ...] = (
    change_scalar,
    change_entry,
    change_length,
    change_text,
)


@sweep(every=2)
@pytest.mark.parametrize("family", ["gpt2", "llama2", "gemma3"])
def test_changed_metadata_loads_or_is_refused(family: str, tmp_path: Path) -> None:
    draw = random.Random(family)
    tokenizer, config = original(family)
    whole = convert(tokenizer, config, PRE.get(family, "default"))
    loaded = refused = 0
    for _ in range(400):
        metadata = dict(whole)
        key = draw.choice(list(metadata))
        metadata[key] = draw.choice(CHANGES)(draw, metadata[key])
        if draw.random() < 0.1:
            del metadata[draw.choice(list(metadata))]
        start = time.thread_time()
        try:
            files = tokenizer_files(metadata)
        except ConfigError as error:
            assert str(error).startswith(("tokenizer.", "general.", "llama.")), str(error)
            assert "\n" not in str(error) and len(str(error)) < 500
            refused += 1
        else:
            for name, content in files.items():
                (tmp_path / name).write_bytes(content)
            made = Tokenizer.load(tmp_path)
            made.decode(made.encode("some text, 1234\n\n äöü 世界"))
            loaded += 1
        assert time.thread_time() - start < 1, key
    assert loaded > 30 and refused > 100, (loaded, refused)
