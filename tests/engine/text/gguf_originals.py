"""Small stand-ins for the tokenizers of model families: what their tokenizer.json holds beside vocabulary and merges
(gguf_originals.json), around a vocabulary that is trained on the spot on our own strings."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import generate_merges

from tests.engine.text.gguf_strings import SENTENCES, strings

PRE = {
    "gpt2": "gpt-2",
    "smollm2": "smollm",
    "llama3": "llama-bpe",
    "llama3_2": "llama-bpe",
    "qwen2_5": "qwen2",
    "qwen3": "qwen2",
    "deepseek_v3": "deepseek-v3",
    "mistral_nemo": "tekken",
    "gptoss": "gpt-4o",
}
"""What llama.cpp's converter calls the pre-tokenizer of each byte-level family."""
BYTE_LEVEL = tuple(PRE)
SENTENCEPIECE = ("llama2", "gemma2", "gemma3")
_SPECIAL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
_VISIBLE = ("<think>", "</think>", "<tool_call>")
_SIZE = 1500


def original(family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Contents of tokenizer.json and tokenizer_config.json of a small tokenizer that is built as the family's."""
    parts = json.loads((Path(__file__).parent / "gguf_originals.json").read_text("utf-8"))[family]
    vocab, merges, visible = (
        _sentencepiece(family) if family in SENTENCEPIECE else _byte_level(json.dumps(parts))
    )
    added = [(text, True) for text in _SPECIAL] + [(text, False) for text in visible]
    entries = []
    for text, special in added:
        i = vocab.setdefault(text, len(vocab))
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        entries.append({"id": i, "content": text, **flags, "special": special})
    around = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [vocab["<s>"]], "tokens": ["<s>"]}},
    }
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(entries, key=lambda entry: entry["id"]),
        **parts,
        "post_processor": around,
        "model": parts["model"] | {"vocab": vocab, "merges": merges},
    }
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "add_bos_token": True,
        "add_eos_token": False,
        "chat_template": "{{ messages[0].content }}<|im_end|>",
    }
    return tokenizer, config


def _byte_level(parts: str) -> tuple[dict[str, int], list[Any], tuple[str, ...]]:
    vocab, merges = _trained(parts)
    return dict(vocab), merges, _VISIBLE


@cache
def _trained(parts: str) -> tuple[dict[str, int], list[Any]]:
    """Vocabulary and merges of byte-level BPE, of words as the family cuts them."""
    own = json.loads(parts)
    empty = own | {
        "added_tokens": [],
        "post_processor": None,
        "model": own["model"] | {"vocab": {}, "merges": []},
    }
    raw = RawTokenizer.from_str(json.dumps(empty))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_SIZE, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([*SENTENCES, *strings(600)], trainer)
    model = json.loads(raw.to_str())["model"]
    return model["vocab"], model["merges"]


def _sentencepiece(family: str) -> tuple[dict[str, int], list[Any], tuple[str, ...]]:
    """Pieces in the order in which training made them, runs of white space and bytes before them, every cut a merge."""
    runs = () if family == "llama2" else ("\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "\t\t")
    raw = RawTokenizer(models.BPE())
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=_SIZE, show_progress=False)
    raw.train_from_iterator([" " + sentence for sentence in SENTENCES], trainer)
    model = json.loads(raw.to_str())["model"]
    made = ["".join(merge) for merge in model["merges"]]
    single = [text for text in model["vocab"] if len(text) == 1]
    pieces = dict.fromkeys([*_SPECIAL, *runs, *(f"<0x{byte:02X}>" for byte in range(256)), *made, *single])
    vocab = {text: i for i, text in enumerate(pieces)}
    scores = {text: -float(i) for i, text in enumerate(made)}
    scores = {text: 0.0 if text in runs else scores.get(text, -1e6) for text in vocab}
    return vocab, [list(pair) for pair in generate_merges(vocab, scores)], (*runs, *_VISIBLE)
