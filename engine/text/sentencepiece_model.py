"""The protobuf file of a SentencePiece model (`tokenizer.model`): pieces, scores, types, and what its trainer was told.

The fields and their defaults are those of sentencepiece_model.proto in google/sentencepiece. Only those that decide about ids are
read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from executors.contract import ConfigError

MAX_BYTES = 64 << 20
"""Largest file; the largest known one, of 262,144 pieces, has 4.7 MB."""
MAX_PIECES = 1 << 20
MAX_PIECE_BYTES = 1 << 12
UNIGRAM, BPE = 1, 2
"""Values of `model_type`."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of pieces."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece: its text, with a mark for each space, its score (for unigram models a logarithm) and its type."""

    text: str
    score: float = 0.0
    type: int = NORMAL


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """A model's pieces in the order of their ids, and its settings. An id below 0 stands for none."""

    pieces: list[Piece]
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    unk_piece: str = "<unk>"
    bos_piece: str = "<s>"
    eos_piece: str = "</s>"
    charsmap: bytes = b""
    """Normalization, compiled."""


def read_model(data: bytes) -> SentencePieceModel:
    """The model in the bytes of a file. Raises ConfigError, one line without the file's name, for bytes that are none."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{len(data)} bytes; at most {MAX_BYTES} are read")
    pieces: list[Piece] = []
    settings: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 1:
            if len(pieces) == MAX_PIECES:
                raise ConfigError(f"more than {MAX_PIECES} pieces")
            pieces.append(_piece(_message(value), len(pieces)))
        elif number == 2:
            settings |= _trainer(_message(value))
        elif number == 3:
            settings |= _normalizer(_message(value))
    model = SentencePieceModel(pieces, **settings)
    check_charsmap(model.charsmap)
    if not model.pieces:
        raise ConfigError("not a SentencePiece model: it has no pieces")
    texts: dict[str, int] = {}
    for i, piece in enumerate(model.pieces):
        if texts.setdefault(piece.text, i) != i:
            raise ConfigError(f"pieces {texts[piece.text]} and {i} have the same text")
    return model


def _piece(data: bytes, at: int) -> Piece:
    text, score, kind = "", 0.0, NORMAL
    end = 2 + data[1] if data[:1] == b"\n" and len(data) > 1 and data[1] < 128 else len(data)
    if (
        data[end : end + 1] == b"\x15" and len(data) == end + 5
    ):  # as almost all are written: a short text, a score
        text, (score,) = _text(data[2:end], f"piece {at}"), _FLOAT.unpack_from(data, end + 1)
        data = b""
    for number, value in _fields(data):
        if number == 1:
            text = _text(value, f"piece {at}")
        elif number == 2:
            (score,) = _FLOAT.unpack(_message(value, 4))
        elif number == 3:
            kind = _integer(value)
    if not math.isfinite(score):
        raise ConfigError(f"piece {at}: its score is {score}")
    return Piece(text, score, kind)


_INTEGERS = {3: "model_type", 40: "unk_id", 41: "bos_id", 42: "eos_id"}
_TEXTS = {45: "unk_piece", 46: "bos_piece", 47: "eos_piece"}


def _trainer(data: bytes) -> dict[str, Any]:
    """Fields of SentencePieceModel that the trainer's settings hold."""
    settings: dict[str, Any] = {}
    for number, value in _fields(data):
        if number == 35:
            settings["byte_fallback"] = bool(_integer(value))
        elif number in _INTEGERS:
            settings[_INTEGERS[number]] = _integer(value)
        elif number in _TEXTS:
            settings[_TEXTS[number]] = _text(value, _TEXTS[number])
    return settings


def _normalizer(data: bytes) -> dict[str, Any]:
    maps = [_message(value) for number, value in _fields(data) if number == 2]
    return {"charsmap": maps[-1]} if maps else {}


def check_charsmap(charsmap: bytes) -> None:
    """Raise ConfigError for a map that would send the library beyond its end.

    Layout: bytes of the trie (uint32), the trie (uint32 each), then texts that end in zero. A trie is a double array (Darts): a
    unit names where its children lie, XOR the child's byte, and whether one of them is a leaf, which names a text.
    """
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 1024 or not 0 < size <= len(charsmap) - 4:
        raise ConfigError("its normalizer's map of characters is cut, or none")
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    texts = charsmap[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise ConfigError("its normalizer's map of characters holds texts that are not UTF-8") from None
    children = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
    inner = units < 1 << 31
    leaves = children[inner & (units & 256 != 0)]
    if (children[inner] >= len(units)).any():
        raise ConfigError("its normalizer's map of characters points beyond its end")
    starts = units[leaves] & 0x7FFFFFFF
    begins = np.frombuffer(texts + b"\0", np.uint8) & 0xC0 != 0x80
    if len(starts) and (starts.max() >= len(texts) or not begins[starts].all()):
        raise ConfigError("its normalizer's map of characters names texts that it does not hold")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields: integers, and the bytes of all other kinds."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        length = 8 if kind == _FIXED64 else 4
        if kind == _BYTES:
            length, at = _varint(data, at)
        elif kind not in (_FIXED64, _FIXED32):
            raise ConfigError(f"not a SentencePiece model: a field of kind {kind} at byte {at}")
        if length > end - at:
            raise ConfigError(f"not a SentencePiece model, or cut: {length} bytes at byte {at} of {end}")
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer at a place, and the place behind it."""
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << (7 * i)
        if byte < 128:
            return value, at + i + 1
    raise ConfigError(f"not a SentencePiece model: no integer at byte {at}")


def _message(value: int | bytes, length: int | None = None) -> bytes:
    if isinstance(value, int) or (length is not None and len(value) != length):
        raise ConfigError("not a SentencePiece model: a field is of another kind")
    return value


def _integer(value: int | bytes) -> int:
    """A signed number of 32 bits."""
    if not isinstance(value, int):
        raise ConfigError("not a SentencePiece model: a field is of another kind")
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _text(value: int | bytes, what: str) -> str:
    data = _message(value)
    if len(data) > MAX_PIECE_BYTES:
        raise ConfigError(f"{what}: {len(data)} bytes; at most {MAX_PIECE_BYTES} are read")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{what}: not UTF-8") from None
