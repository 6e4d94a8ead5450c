"""A small tokenizer of every kind that tokenizer.json knows, trained on the spot on texts in many scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as RawTokenizer

from engine.text.tokenizer import Tokenizer

TEXTS = {
    "latin": "The quick brown fox didn't jump over 13 lazy dogs. Zażółć gęślą jaźń, größer, naïve - isn't it?",
    "cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "greek": "Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.",
    "arabic": "مرحبا بالعالم، كيف حالك اليوم؟",
    "hebrew": "שָׁלוֹם עולם, מה שלומך?",
    "devanagari": "नमस्ते दुनिया, आप कैसे हैं?",
    "thai": "สวัสดีชาวโลก วันนี้อากาศดีมาก",
    "chinese": "中文字符测试，今天天气很好。",
    "japanese": "日本語のテストです。カタカナと漢字。",
    "korean": "한국어 문장을 시험합니다.",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 e\u0301 🇩🇪🇯🇵 ok",
    "blanks": "  two  words \n\n\tindented\n    code(x, y) ! ",
    "special": "before<|user|>between <|end|> after</s> two words twowords",
}
_FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
_CORPUS = [text for name, text in TEXTS.items() if name not in ("emoji", "special", "thai")] * 3
"""Emoji and Thai are unseen: they reach byte fallback or the unknown token."""


def _specials(raw: RawTokenizer) -> RawTokenizer:
    raw.add_special_tokens([AddedToken("</s>", special=True), AddedToken("<|end|>", special=True)])
    raw.add_special_tokens([AddedToken("<|user|>", special=True, rstrip=True)])
    raw.add_tokens([AddedToken("two words"), AddedToken("words", single_word=True)])
    return raw


def _model(raw: RawTokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(raw.to_str())["model"]
    return model


def _byte_level(regex: bool = True) -> RawTokenizer:
    raw = RawTokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\p{N}|[^\s\p{N}]+|\s+"), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    raw.pre_tokenizer = level if regex else pre_tokenizers.Sequence([split, level])
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    return _specials(raw)


def _sentencepiece_bpe(scheme: str, *, legacy: bool = False) -> RawTokenizer:
    trained = RawTokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", *_FALLBACK], show_progress=False)
    trained.train_from_iterator([TEXTS["latin"]] * 3 + [TEXTS["cyrillic"]], trainer)
    model = _model(trained)
    merges = [tuple(pair) for pair in model["merges"]]
    raw = RawTokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if legacy:
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif scheme == "never":
        raw.normalizer = normalizers.Replace(" ", "▁")
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    if scheme != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    raw.decoder = decoders.Sequence(steps)
    return _specials(raw)


def _unigram(fallback: bool) -> RawTokenizer:
    raw = RawTokenizer(models.Unigram())
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", *(_FALLBACK if fallback else ())]
    trainer = trainers.UnigramTrainer(
        vocab_size=450 if fallback else 250, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    raw.train_from_iterator(_CORPUS, trainer)
    if fallback:
        vocab = [tuple(entry) for entry in _model(raw)["vocab"]]
        raw = RawTokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
        raw.pre_tokenizer = pre_tokenizers.Metaspace()
        raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        raw.decoder = decoders.Metaspace()
    return _specials(raw)


def _wordpiece(cleanup: bool) -> RawTokenizer:
    raw = RawTokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece(prefix="##", cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]"], show_progress=False)
    raw.train_from_iterator(_CORPUS, trainer)
    return _specials(raw)


def _end_of_word() -> RawTokenizer:
    raw = RawTokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.BPEDecoder("</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    raw.train_from_iterator(_CORPUS, trainer)
    return _specials(raw)


def _words() -> RawTokenizer:
    raw = RawTokenizer(models.WordLevel(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    raw.train_from_iterator(_CORPUS, trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False))
    return _specials(raw)


def _odd_steps() -> RawTokenizer:
    """Steps that no known checkpoint combines so: a regex, a strip of single tokens, a replacement across tokens."""
    raw = _sentencepiece_bpe("first")
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("▁+"), " "),
            decoders.Strip("e", 1, 0),
            decoders.Fuse(),
            decoders.Replace("  ", "_"),
            decoders.Strip("_", 2, 0),
        ]
    )
    return raw


KINDS: dict[str, Callable[[], RawTokenizer]] = {
    "byte_level": _byte_level,
    "byte_level_split": lambda: _byte_level(regex=False),
    "sp_bpe_first": lambda: _sentencepiece_bpe("first"),
    "sp_bpe_always": lambda: _sentencepiece_bpe("always"),
    "sp_bpe_never": lambda: _sentencepiece_bpe("never"),
    "sp_bpe_legacy": lambda: _sentencepiece_bpe("always", legacy=True),
    "unigram": lambda: _unigram(False),
    "unigram_fallback": lambda: _unigram(True),
    "wordpiece": lambda: _wordpiece(False),
    "wordpiece_cleanup": lambda: _wordpiece(True),
    "wordpiece_config_cleanup": lambda: _wordpiece(False),
    "end_of_word": _end_of_word,
    "words": _words,
    "odd_steps": _odd_steps,
}


@cache
def trained(kind: str) -> str:
    """tokenizer.json of this kind."""
    return KINDS[kind]().to_str()


def write(kind: str, directory: Path, **config: Any) -> Path:
    """A checkpoint directory with this tokenizer and tokenizer_config.json."""
    (directory / "tokenizer.json").write_text(trained(kind))
    if kind == "wordpiece_config_cleanup":
        config["clean_up_tokenization_spaces"] = True
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"} | config
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def load(kind: str, directory: Path, **config: Any) -> Tokenizer:
    """The tokenizer as the server has it."""
    return Tokenizer.load(write(kind, directory, **config))
