"""What files of other converters leave out of a tokenizer's metadata, and what it stands for there.

Ollama's store holds Llama 3 and Mistral Small files that do not name their pre-tokenizer, from before it had a key or because the
program that they were made for knew it. https://github.com/ollama/ollama (llama/compat) tells them by the same marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.text.gguf.pre_tokenizers import PRE

_TOKENS = "tokenizer.ggml.tokens"
_UNNAMED = ("", "default")
_LLAMA3 = {128_006: "<|start_header_id|>", 128_009: "<|eot_id|>"}
"""Ids and texts by which the vocabulary of Llama 3 is known."""


def completed(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata with the name of the pre-tokenizer where the file leaves it out and it is known."""
    name, model, architecture = (
        one if isinstance(one, str) else None
        for one in (
            metadata.get(PRE, ""),
            metadata.get("tokenizer.ggml.model"),
            metadata.get("general.architecture"),
        )
    )
    if name not in _UNNAMED or model != "gpt2":
        return metadata
    if architecture == "mistral3":
        return {**metadata, PRE: "tekken"}
    if architecture == "llama" and _is_llama3(metadata.get(_TOKENS)):
        return {**metadata, PRE: "llama-bpe"}
    return metadata


def _is_llama3(tokens: object) -> bool:
    if not isinstance(tokens, Sequence) or len(tokens) <= max(_LLAMA3):
        return False
    return all(tokens[i] == text for i, text in _LLAMA3.items())
