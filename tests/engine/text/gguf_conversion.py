"""Hugging Face tokenizers as GGUF metadata, by the rules of llama.cpp's converters: what tests convert back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.text.tokenizer_files import token_text

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.S)
_ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}
OLD_SCORE = -1000.0
"""Score that the converters give tokens that SentencePiece's model file does not score."""


def metadata_of(directory: Path, pre: str, size: int = 0) -> dict[str, Any]:
    """Metadata of the GGUF file that would be made of the directory's tokenizer. `pre`: what `tokenizer.ggml.pre` becomes;
    `size`: rows of the embedding matrix, to which tokens are padded."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text("utf-8"))
    config = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
    return convert(tokenizer, config, pre, size)


def convert(
    tokenizer: Mapping[str, Any], config: Mapping[str, Any], pre: str, size: int = 0
) -> dict[str, Any]:
    """The same for the contents of tokenizer.json and tokenizer_config.json."""
    model = tokenizer["model"]
    added = {entry["id"]: entry for entry in tokenizer["added_tokens"]}
    by_id = {i: text for text, i in model["vocab"].items()} | {i: e["content"] for i, e in added.items()}
    size = max(size, max(by_id) + 1)
    texts = [by_id.get(i, f"[PAD{i}]") for i in range(size)]
    types = [NORMAL if i in by_id else UNUSED for i in range(size)]
    for i, entry in added.items():
        if entry["special"] or _LOOKS_SPECIAL.fullmatch(entry["content"]):
            types[i] = CONTROL
        else:
            types[i] = USER_DEFINED
            texts[i] = texts[i].replace("▁", " ")
    ids = {text: i for i, text in by_id.items()}
    found: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 4096,
        "tokenizer.ggml.tokens": texts,
    }
    for role, name in _ROLES.items():
        text = token_text(config.get(f"{role}_token"))
        if text is not None:
            found[f"tokenizer.ggml.{name}_token_id"] = ids[text]
    for flag in ("add_bos_token", "add_eos_token"):
        if flag in config:
            found[f"tokenizer.ggml.{flag}"] = config[flag]
    template = config.get("chat_template")
    if isinstance(template, list):
        for one in template:
            suffix = "" if one["name"] == "default" else f".{one['name']}"
            found[f"tokenizer.chat_template{suffix}"] = one["template"]
    elif template:
        found["tokenizer.chat_template"] = template
    if model["type"] == "WordPiece":
        found["tokenizer.ggml.model"] = "bert"
        found["tokenizer.ggml.tokens"] = [_phantom(t, k) for t, k in zip(texts, types, strict=True)]
    elif model.get("byte_fallback"):
        for i, text in enumerate(texts):
            if re.fullmatch("<0x[0-9A-F]{2}>", text):
                types[i] = BYTE
        found["tokenizer.ggml.model"] = "llama"
        found["tokenizer.ggml.pre"] = "default"
        found["tokenizer.ggml.scores"] = _scores(texts, types, model["merges"])
        found["tokenizer.ggml.add_space_prefix"] = "Prepend" in json.dumps(tokenizer["normalizer"])
    else:
        found["tokenizer.ggml.model"] = "gpt2"
        found["tokenizer.ggml.pre"] = pre
        found["tokenizer.ggml.merges"] = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return found | {"tokenizer.ggml.token_type": np.array(types, np.int32)}


def _phantom(text: str, kind: int) -> str:
    if kind == CONTROL:
        return text
    return text[2:] if text.startswith("##") else "▁" + text


def _scores(texts: list[str], types: list[int], merges: list[Any]) -> np.ndarray[Any, Any]:
    """SentencePiece's scores as far as its merges show them: the more a piece scores, the earlier it is made."""
    ids = {text: i for i, text in enumerate(texts)}
    scores = np.full(len(texts), -1e6, np.float32)
    rank = 0
    for merge in merges:
        piece = ids.get("".join(merge.split(" ", 1) if isinstance(merge, str) else merge))
        if piece is not None and types[piece] == NORMAL and scores[piece] == -1e6:
            scores[piece] = -rank
            rank += 1
    given = np.array(types)
    scores[given == BYTE] = 0
    scores[(given == CONTROL) | (given == USER_DEFINED)] = OLD_SCORE
    return scores
