"""tokenizer.json for each value of `tokenizer.ggml.model`: byte-level BPE, SentencePiece's BPE with byte fallback and its unigram
model, WordPiece."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.text.gguf.kind import byte_level
from engine.text.gguf.merges import MERGES, listed_merges, merges_by_score
from engine.text.gguf.metadata import Metadata
from engine.text.gguf.pre_tokenizers import PRE, kind_named
from engine.text.gguf.unigram import unigram_parts
from engine.text.gguf.vocabulary import NORMAL, Vocabulary
from executors.contract import ConfigError

ADD_BOS = "tokenizer.ggml.add_bos_token"
ADD_EOS = "tokenizer.ggml.add_eos_token"
ADD_SPACE = "tokenizer.ggml.add_space_prefix"
LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"
MARK = "▁"
"""Stands for a space in SentencePiece's pieces, and before a word in a WordPiece vocabulary that GGUF holds."""
_SEPARATORS = {"bert": 2, "modern-bert": 1}
"""By the architectures of encoders with tokenizers of other models than `bert`: how many ends stand between the texts of a pair.
BERT with such a tokenizer is RoBERTa."""


def byte_level_bpe(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Model `gpt2`: the file lists the merges and names the way texts are cut into words. Raises ConfigError.

    Model `gemma4` is the same with one way to cut, whatever the file names.
    """
    is_gemma4 = metadata.text("tokenizer.ggml.model") == "gemma4"
    kind = kind_named("gemma4" if is_gemma4 else metadata.text(PRE))
    ids = vocabulary.index()
    merges = listed_merges(metadata, ids)
    if merges is None:
        raise ConfigError(f"{MERGES}: missing; a tokenizer of model gpt2 needs them")
    add_bos = metadata.flag(ADD_BOS)
    if add_bos is None or (kind.marks and kind.adds_bos):  # llama.cpp overrides what files of Gemma 4 say
        add_bos = kind.adds_bos
    around = _template(metadata, vocabulary, add_bos)
    return _tokenizer(
        added_tokens=vocabulary.added_tokens(strip_right=False),
        normalizer=kind.normalizer(),
        pre_tokenizer=kind.pre_tokenizer(),
        post_processor=around or (None if kind.marks else byte_level()),
        decoder=kind.decoder(),
        model=_bpe(ids, merges, ignore_merges=kind.ignore_merges, byte_fallback=kind.marks),
    )


def sentencepiece(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Model `llama`: merges follow from the pieces' scores, characters without a piece become bytes. Raises ConfigError.

    A space precedes a text, and what follows a special token, unless `tokenizer.ggml.add_space_prefix` is false.
    """
    ids = vocabulary.index()
    merges = listed_merges(metadata, ids)
    if merges is None:
        merges = merges_by_score(metadata, vocabulary)
    prefix = metadata.flag(ADD_SPACE) is not False
    space_to_mark = {"type": "Replace", "pattern": {"String": " "}, "content": MARK}
    prepend = {"type": "Prepend", "prepend": MARK}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    # The end of Phi-3's special tokens takes the white space behind it; the format has no key for it.
    is_phi3 = metadata.text("general.architecture") == "phi3"
    add_bos = metadata.flag(ADD_BOS)
    return _tokenizer(
        added_tokens=vocabulary.added_tokens(strip_right=is_phi3),
        normalizer={"type": "Sequence", "normalizers": [prepend, space_to_mark]} if prefix else space_to_mark,
        pre_tokenizer=None,
        post_processor=_template(metadata, vocabulary, add_bos is not False),
        decoder={"type": "Sequence", "decoders": decoders},
        model=_bpe(ids, merges, unk_token=vocabulary.role_text("unk"), fuse_unk=True, byte_fallback=True),
    )


def wordpiece(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Model `bert`. GGUF marks the beginning of words, WordPiece what continues one (`##`). Raises ConfigError.

    Without a key that says so, texts are lowercased if no token has a capital letter.
    """
    texts = vocabulary.texts
    by_type = zip(texts, vocabulary.types.tolist(), strict=True)
    words = [
        text.removeprefix(MARK)
        if text.startswith(MARK)
        else text
        if kind != NORMAL or (text.startswith("[") and text.endswith("]"))
        else "##" + text
        for text, kind in by_type
    ]
    lowercase = metadata.flag(LOWERCASE)
    if lowercase is None:
        lowercase = not any(
            text != text.lower()
            for text, kind in zip(words, vocabulary.types.tolist(), strict=True)
            if kind == NORMAL and not text.startswith("[")
        )
    own = replace(vocabulary, texts=words)
    unknown = own.role_text("unk")
    if unknown is None:
        raise ConfigError("tokenizer.ggml.unknown_token_id: missing; a tokenizer of model bert needs it")
    return _tokenizer(
        added_tokens=own.added_tokens(strip_right=False),
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": metadata.flag(STRIP_ACCENTS),
            "lowercase": lowercase,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=_around(own, own.roles.get("cls"), own.roles.get("sep"), separators=1),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        model={
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": own.index(),
        },
    )


def unigram(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    """Model `t5`: see `unigram.py`. Raises ConfigError.

    As in llama.cpp, eos follows a text and bos does not precede it unless the file says otherwise.
    """
    parts = unigram_parts(metadata, vocabulary, prefix=metadata.flag(ADD_SPACE) is not False)
    bos, eos = metadata.flag(ADD_BOS) is True, metadata.flag(ADD_EOS) is not False
    return _tokenizer(
        added_tokens=vocabulary.added_tokens(strip_right=False),
        post_processor=_template(metadata, vocabulary, bos, eos),
        **parts,
    )


MODELS = {
    "gpt2": byte_level_bpe, "gemma4": byte_level_bpe, "llama": sentencepiece, "bert": wordpiece, "t5": unigram,
}  # fmt: skip
"""What makes tokenizer.json, by `tokenizer.ggml.model`."""


def _tokenizer(**parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None, **parts}


def _bpe(ids: dict[str, int], merges: Any, **settings: Any) -> dict[str, Any]:
    neutral = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {"type": "BPE", **neutral, **settings, "vocab": ids, "merges": merges}


def _template(
    metadata: Metadata, vocabulary: Vocabulary, bos: bool, eos: bool | None = None
) -> dict[str, Any] | None:
    """The post-processor that puts bos before and eos behind a text; None if there is nothing to put. `eos`: None for what the
    file says."""
    if eos is None:
        eos = metadata.flag(ADD_EOS) is True
    for role, key, adds in (("bos", ADD_BOS, bos), ("eos", ADD_EOS, eos)):
        if adds and role not in vocabulary.roles:
            metadata.note(f"{key}: not used: the file names no {role} token")
    first = vocabulary.roles.get("bos") if bos else None
    last = vocabulary.roles.get("eos") if eos else None
    separators = _SEPARATORS.get(str(metadata.values.get("general.architecture")), 0)
    return _around(vocabulary, first, last, separators if last is not None else 0)


def _around(
    vocabulary: Vocabulary, first: int | None, last: int | None, separators: int = 0
) -> dict[str, Any] | None:
    """`separators`: how many of `last` stand between the texts of a pair, of which only the first has `first` before it; 0: each
    has what a single text has."""
    if first is None and last is None:
        return None
    texts = vocabulary.texts

    def piece(sequence: str, kind: int) -> list[dict[str, Any]]:
        ends = [
            [] if i is None else [{"SpecialToken": {"id": texts[i], "type_id": kind}}] for i in (first, last)
        ]
        return [*ends[0], {"Sequence": {"id": sequence, "type_id": kind}}, *ends[1]]

    pair = piece("A", 0) + piece("B", 1)
    if separators and last is not None:
        end = {"SpecialToken": {"id": texts[last], "type_id": 0}}
        second = piece("B", 1)[0 if first is None else 1 :]
        pair = [*piece("A", 0), *[end] * (separators - 1), *second]
    used = [i for i in (first, last) if i is not None]
    return {
        "type": "TemplateProcessing",
        "single": piece("A", 0),
        "pair": pair,
        "special_tokens": {texts[i]: {"id": texts[i], "ids": [i], "tokens": [texts[i]]} for i in used},
    }
