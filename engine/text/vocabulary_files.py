"""Tokenizers of directories without tokenizer.json: from SentencePiece's, GPT-2's, tiktoken's and Mistral's vocabulary files.

They are made as transformers 5 makes them. GPT-2's files do not say how a text is cut into words, tiktoken's neither: the class
that tokenizer_config.json or `model_type` names says so, or it is Llama 3's way for tiktoken's.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from engine.text.gguf.pre_tokenizers import KINDS
from engine.text.sentencepiece_model import (
    CONTROL,
    MAX_BYTES,
    MAX_PIECES,
    UNIGRAM,
    USER_DEFINED,
    SentencePieceModel,
    read_model,
)
from engine.text.tokenizer_classes import CLASSES, OTHERS
from engine.text.tokenizer_files import one_line, token_text
from executors.contract import ConfigError

FILES = ("tokenizer.model", "tekken.json", "tiktoken.model", "vocab.json")
"""Vocabulary files that a tokenizer can be made of; vocab.json with merges.txt beside it."""
_ELSEWHERE = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model.v3", "qwen.tiktoken")
_MAX_TEKKEN_BYTES = 128 << 20


def vocabulary_file(directory: Path) -> Path | None:
    """The file that the directory's tokenizer is made of if it has no tokenizer.json; None without one."""
    for name in FILES:
        path = directory / name
        if path.is_file() and (name != "vocab.json" or (directory / "merges.txt").is_file()):
            return path
    return None


def missing(directory: Path) -> ConfigError:
    """The error for a directory without any tokenizer."""
    others = [name for name in _ELSEWHERE if (directory / name).is_file()]
    cure = "; save the tokenizer with transformers (AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)) to make one"
    has = f"; {others[0]} alone is not supported{cure}" if others else ""
    return ConfigError(
        f"{directory / 'tokenizer.json'}: not found; a tokenizer.json (Hugging Face fast tokenizer) is needed, "
        f"or tokenizer.model, tekken.json, tiktoken.model, or vocab.json with merges.txt{has}"
    )


def read_vocabulary_file(
    path: Path, config: dict[str, Any], name: str
) -> tuple[RawTokenizer, dict[str, Any], bool]:
    """The tokenizer of a vocabulary file, without added tokens; `config` (tokenizer_config.json) with what the file says of
    special tokens; and whether the class `name` is still to set it up. Raises ConfigError, one line that names the file."""
    try:
        if name in OTHERS:
            raise ConfigError(f"tokenizer_class {name} is not supported without a tokenizer.json")
        if path.name == "vocab.json":
            return _from_merges(path, name), config, True
        data = _read(path)
        if path.name == "tekken.json":
            return (*_from_tekken(data, config), False)
        if path.name == "tiktoken.model" or _is_tiktoken(data):
            return _from_tiktoken(data, config), config, False
        return _from_sentencepiece(read_model(data), config, name)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # the library raises bare Exception for every fault
        raise ConfigError(f"{path}: not a readable vocabulary: {one_line(error)}") from error


def _read(path: Path) -> bytes:
    most = _MAX_TEKKEN_BYTES if path.name == "tekken.json" else MAX_BYTES
    if (size := path.stat().st_size) > most:
        raise ConfigError(f"{size} bytes; at most {most} are read")
    return path.read_bytes()


def _from_merges(path: Path, name: str) -> RawTokenizer:
    chosen = CLASSES.get(name)
    if chosen is None or not chosen.byte_level:
        supported = ", ".join(sorted(key for key, one in CLASSES.items() if one.byte_level))
        raise ConfigError(
            f"how words are cut is not known for tokenizer_class {name}; supported are {supported}; a tokenizer.json says it, too"
        )
    return RawTokenizer(models.BPE.from_file(str(path), str(path.with_name("merges.txt"))))


def _from_sentencepiece(
    model: SentencePieceModel, config: dict[str, Any], name: str
) -> tuple[RawTokenizer, dict[str, Any], bool]:
    """A class of transformers takes the pieces for BPE, whatever the model's type, and every cut of a piece into pieces for a
    merge. The generic class takes the model's type, and puts no space before a text."""
    if not {"additional_special_tokens", "extra_special_tokens"} & set(config):
        extra = [
            {"content": piece.text, "normalized": False, "special": piece.type == CONTROL}
            for piece in model.pieces
            if piece.type in (CONTROL, USER_DEFINED)
        ]
        config = {**config, "additional_special_tokens": extra}
    if name in CLASSES:
        ids = {piece.text: i for i, piece in enumerate(model.pieces)}
        return RawTokenizer(models.BPE(ids, _merges(ids))), config, True
    raw = _generic_sentencepiece(model, config)
    roles = {
        "bos": (model.bos_id, model.bos_piece),
        "eos": (model.eos_id, model.eos_piece),
        "unk": (model.unk_id, model.unk_piece),
    }
    role_texts = {f"{role}_token": text for role, (token_id, text) in roles.items() if token_id >= 0 and text}
    return raw, {**role_texts, **config}, False


def _generic_sentencepiece(model: SentencePieceModel, config: Mapping[str, Any]) -> RawTokenizer:
    if model.model_type == UNIGRAM:
        if not 0 <= model.unk_id < len(model.pieces):
            raise ConfigError(f"unk_id {model.unk_id} is no piece's")
        scores = [(piece.text, piece.score) for piece in model.pieces]
        raw = RawTokenizer(models.Unigram(scores, model.unk_id, model.byte_fallback))
    else:
        ids = {piece.text: i for i, piece in enumerate(model.pieces)}
        merges = _merges(ids)
        if renamed := _renamed(ids, config):
            ids = renamed
            merges = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
        unk = model.unk_piece if model.unk_piece in ids else None
        raw = RawTokenizer(
            models.BPE(ids, merges, unk_token=unk, fuse_unk=True, byte_fallback=model.byte_fallback)
        )
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    raw.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    to_text: list[Any] = [decoders.Replace("\u2581", " ")]
    if model.byte_fallback:
        to_text += [decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence(to_text)
    return raw


def _renamed(ids: dict[str, int], config: Mapping[str, Any]) -> dict[str, int] | None:
    """The ids with the texts that `added_tokens_decoder` gives pieces (placeholders); None if it renames none."""
    decoder = config.get("added_tokens_decoder") or {}
    texts = {i: text for text, i in ids.items()}
    new = {int(i): token_text(entry) for i, entry in decoder.items()}
    changes = {
        i: text for i, text in new.items() if text and i in texts and texts[i] != text and text not in ids
    }
    return {text: i for i, text in (texts | changes).items()} if changes else None


def _merges(ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every cut of a piece into two pieces: by the piece's id, then by the length of the left part."""
    return [
        (left, right)
        for text in ids
        for at in range(1, len(text))
        if (left := text[:at]) in ids and (right := text[at:]) in ids
    ]


def _is_tiktoken(data: bytes) -> bool:
    """Whether a file is lines of a token in base64 and its rank, as Llama 3's tokenizer.model is."""
    token, _, rank = data.split(b"\n", 1)[0].strip().partition(b" ")
    try:
        return bool(token) and rank.isdigit() and bool(base64.b64decode(token, validate=True))
    except binascii.Error:
        return False


def _from_tiktoken(data: bytes, config: Mapping[str, Any]) -> RawTokenizer:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines()):
        if not line:
            continue
        token, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ConfigError(f"line {number + 1}: a token in base64 and its rank are expected") from None
    (pattern,) = KINDS["llama-bpe"].patterns
    raw = _from_ranks(ranks, pattern, {})
    raw.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in _tiktoken_special(len(ranks), config)]
    )
    return raw


def _tiktoken_special(size: int, config: Mapping[str, Any]) -> list[str]:
    """The tokens behind the ranks: those of `added_tokens_decoder`, with names for gaps, and the extra ones."""
    decoder = {int(i): token_text(entry) for i, entry in (config.get("added_tokens_decoder") or {}).items()}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    texts = [
        decoder.get(i) or f"<|reserved_token_{i}|>"
        for i in range(size, min(max(decoder, default=0) + 1, MAX_PIECES))
    ]
    return list(dict.fromkeys([*texts, *(text for one in extra if (text := token_text(one)))]))


def _from_tekken(data: bytes, config: dict[str, Any]) -> tuple[RawTokenizer, dict[str, Any]]:
    content = json.loads(data)
    settings, listed = content["config"], content.get("special_tokens")
    if listed is None:
        raise ConfigError(
            "it lists no special_tokens (the format before 2025); save a tokenizer.json from it with transformers"
        )
    special = [str(entry["token_str"]) for entry in sorted(listed, key=lambda entry: int(entry["rank"]))]
    number = settings.get("default_num_special_tokens") or len(special)
    if not len(special) <= number <= MAX_PIECES:
        raise ConfigError(f"config.default_num_special_tokens is {number}, but {len(special)} are listed")
    special += [f"<SPECIAL_{i}>" for i in range(len(special), number)]
    size = settings.get("default_vocab_size")
    entries = content["vocab"] if size is None else content["vocab"][: max(0, size - number)]
    ranks = {base64.b64decode(entry["token_bytes"]): rank for rank, entry in enumerate(entries)}
    raw = _from_ranks(ranks, settings["pattern"], {text: i for i, text in enumerate(special)})
    raw.add_special_tokens([AddedToken(text, special=True) for text in special])
    return raw, config


def _from_ranks(ranks: Mapping[bytes, int], pattern: str, special: Mapping[str, int]) -> RawTokenizer:
    """Byte-level BPE whose tokens are merged in the order of their ranks; ids are ranks behind those of `special`."""
    if not 0 < len(ranks) <= MAX_PIECES:
        raise ConfigError(f"{len(ranks)} tokens; 1 to {MAX_PIECES} are read")
    ids = {_as_characters(token): rank + len(special) for token, rank in ranks.items()} | dict(special)
    merges = [
        (_as_characters(left), _as_characters(right))
        for token in sorted(ranks, key=lambda token: ranks[token])
        for left, right in _cuts(token, ranks)
    ]
    raw = RawTokenizer(models.BPE(ids, merges, fuse_unk=False, ignore_merges=True))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    return raw


def _cuts(token: bytes, ranks: Mapping[bytes, int]) -> Iterable[tuple[bytes, bytes]]:
    """Every cut of a token into two, the lower ranks first."""
    cuts = [
        (left, right)
        for at in range(1, len(token))
        if (left := token[:at]) in ranks and (right := token[at:]) in ranks
    ]
    return sorted(cuts, key=lambda cut: (ranks[cut[0]], ranks[cut[1]]))


def _characters() -> dict[int, int]:
    """The character that stands for each byte in GPT-2's vocabularies."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: byte for byte in visible} | {byte: 256 + i for i, byte in enumerate(hidden)}


_CHARACTERS = _characters()


def _as_characters(token: bytes) -> str:
    return token.decode("latin-1").translate(_CHARACTERS)
