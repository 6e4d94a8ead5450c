"""Files of other converters leave the name of the pre-tokenizer out."""

from __future__ import annotations

from typing import Any

import pytest

from engine.text.gguf.completed import completed

LLAMA3 = [*["x"] * 128_006, "<|start_header_id|>", "<|end_header_id|>", "y", "<|eot_id|>"]


@pytest.mark.parametrize("pre", [None, "", "default"])
@pytest.mark.parametrize(
    ("architecture", "tokens", "name"),
    [
        ("llama", LLAMA3, "llama-bpe"),
        ("llama", LLAMA3[:-1], None),
        ("llama", [*LLAMA3[:-1], "z"], None),
        ("mistral3", ["x"], "tekken"),
        ("qwen2", LLAMA3, None),
    ],
)
def test_the_pre_tokenizer_of_files_that_do_not_name_it(
    architecture: str, tokens: list[str], name: str | None, pre: str | None
):
    metadata: dict[str, Any] = {
        "general.architecture": architecture, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens,
    }  # fmt: skip
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre

    assert completed(metadata).get("tokenizer.ggml.pre") == (name or pre)


def test_a_name_stays():
    metadata = {
        "general.architecture": "mistral3",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
    }
    assert completed(metadata) is metadata
    metadata = {"general.architecture": "mistral3", "tokenizer.ggml.model": "llama"}
    assert completed(metadata) is metadata
