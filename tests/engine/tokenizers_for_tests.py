"""Small tokenizers of the two great kinds, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from engine.text.tokenizer import Tokenizer


def byte_level() -> RawTokenizer:
    """256 byte tokens, a few merges, two special tokens and one added token with a space in it."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for merged in ("th", "the", "in", "\u0120t", "\u0120the"):
        vocab[merged] = len(vocab)
    raw = RawTokenizer(
        models.BPE(
            vocab=vocab, merges=[("t", "h"), ("th", "e"), ("i", "n"), ("\u0120", "t"), ("\u0120", "the")]
        )
    )
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|im_end|>", special=True)])
    raw.add_tokens([AddedToken("two words", special=False)])
    return raw


def sentencepiece_like() -> RawTokenizer:
    """SentencePiece-style BPE: word marks, byte fallback, a leading space that the decoder strips."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in "\u2581abcdefghijklmnopqrstuvwxyz\u00e4\u00e9\u4e2d":
        vocab[piece] = len(vocab)
    vocab["\u2581a"] = len(vocab)
    raw = RawTokenizer(
        models.BPE(
            vocab=vocab, merges=[("\u2581", "a")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
        )
    )
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken("</s>", special=True)])
    return raw


def load(raw: RawTokenizer, directory: Path, eos: str = "<|end|>") -> Tokenizer:
    """Write a checkpoint's tokenizer files and load them as the server does."""
    raw.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return Tokenizer.load(directory)
