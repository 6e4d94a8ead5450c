"""Merges of byte-pair encoding: those a GGUF file lists, and those that follow from SentencePiece's scores."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from operator import add
from typing import Any

import numpy as np

from engine.text.gguf.metadata import MAX_MERGES, MAX_TOKEN_CHARS, Metadata
from engine.text.gguf.vocabulary import NORMAL, TOKENS, Vocabulary
from executors.contract import ConfigError

MERGES = "tokenizer.ggml.merges"
SCORES = "tokenizer.ggml.scores"

Merges = list[str] | list[tuple[str, str]]
"""As tokenizer.json has them: two tokens with a space between them, or, where a token holds a space, pairs."""

_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that it has an inverse modulo 2**64."""
_FILTER_BITS = 22
_SLIPS = 16
"""Merges without effect that are taken for slips, however few merges there are."""


def listed_merges(metadata: Metadata, ids: Mapping[str, int]) -> Merges | None:
    """The merges of the file, first the one that is done first; None if it lists none.

    A pair that names or makes something that is not a token is left out, as it is without effect in llama.cpp. Raises
    ConfigError for an entry that is not a pair, and for more pairs without effect than a slip leaves behind.
    """
    lines = metadata.texts(MERGES, MAX_MERGES)
    if lines is None:
        return None
    # A line that begins so would be skipped as the head of a merges.txt.
    plain = set(map(str.count, lines, repeat(" "))) <= {1} and not any(
        map(str.startswith, lines, repeat("#version"))
    )
    if plain and lines:
        parts = " ".join(lines).split(" ")
        wholes = map(add, parts[::2], parts[1::2])
        if all(parts) and all(map(ids.__contains__, parts)) and all(map(ids.__contains__, wholes)):
            return lines
    pairs = [_pair(i, line) for i, line in enumerate(lines)]
    without = [i for i, (a, b) in enumerate(pairs) if a not in ids or b not in ids or a + b not in ids]
    if len(without) > max(_SLIPS, len(pairs) // 100):
        at = without[0]
        missing = next(text for text in (*pairs[at], "".join(pairs[at])) if text not in ids)
        raise ConfigError(
            f"{MERGES}: {len(without)} of {len(pairs)} are without effect: of [{at}] {ascii(missing)[:60]} is not in {TOKENS}"
        )
    left_out = set(without)
    return [pair for i, pair in enumerate(pairs) if i not in left_out]


def _pair(at: int, line: str) -> tuple[str, str]:
    """The two parts of a line, of which the first may begin with a space. Raises ConfigError as `listed_merges` does."""
    cut = line.find(" ", 1)
    left, right = line[:cut], line[cut + 1 :]
    if cut < 0 or not right:
        raise ConfigError(f"{MERGES}[{at}]: two tokens with a space between them are expected")
    return left, right


def merges_by_score(metadata: Metadata, vocabulary: Vocabulary) -> Merges:
    """The merges that make a SentencePiece vocabulary's pieces, in the order that Hugging Face's converter gives them.

    Every way to cut a piece into two pieces is a merge. They are ordered by the piece's score, then by the lengths of the left
    and the right part, all three descending, then by the piece's id. SentencePiece never cuts user-defined pieces, and gives
    all that are not normal the score 0, the highest; conversion to GGUF replaces it, so it is set again here. Raises
    ConfigError.
    """
    scores = metadata.numbers(SCORES, len(vocabulary.texts))
    if scores is None:
        raise ConfigError(f"{SCORES}: missing, and there are no {MERGES} either")
    scores = np.where(vocabulary.types == NORMAL, scores.astype(np.float64), 0.0)
    texts = list(vocabulary.texts)
    for i in vocabulary.padding:
        texts[i] = ""  # it cannot be cut and is no part of another
    piece, length, left, right = _cuts(texts)
    size = np.fromiter(map(len, texts), np.int64, len(texts))[piece]
    order = np.lexsort((piece, -(length * 2 * MAX_TOKEN_CHARS + size - length), -scores[piece]))
    lefts, rights = left[order].tolist(), right[order].tolist()
    if " " in "".join(texts):
        return [(texts[a], texts[b]) for a, b in zip(lefts, rights, strict=True)]
    return [f"{texts[a]} {texts[b]}" for a, b in zip(lefts, rights, strict=True)]


Ints = np.ndarray[Any, np.dtype[np.int64]]


def _cuts(texts: list[str]) -> tuple[Ints, Ints, Ints, Ints]:
    """Every cut of a text into two others of `texts`: ids of the whole, length of the left part in characters, ids of both
    parts; four arrays of shape (number of cuts,), int64.

    Texts are looked up by a polynomial hash modulo 2**64, which NumPy computes for all their beginnings and ends at once
    (three times as fast as a dict at 262,144 tokens). At that size the probability that any lookup errs is below 1e-7; an
    error in a file made for it gives a merge that the tokenizer refuses when it is loaded.
    """
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    if not sizes.sum():
        return (np.empty(0, np.int64),) * 4
    points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    owner = np.repeat(np.arange(len(texts)), sizes)
    first = np.cumsum(sizes) - sizes
    place = np.arange(len(points)) - first[owner]
    powers = np.cumprod(np.concatenate([[np.uint64(1)], np.full(sizes.max(), _BASE)]), dtype=np.uint64)
    inverse = np.uint64(pow(int(_BASE), -1, 1 << 64))
    inverses = np.cumprod(np.concatenate([[np.uint64(1)], np.full(sizes.max(), inverse)]), dtype=np.uint64)
    running = np.concatenate([[np.uint64(0)], np.cumsum(points * powers[place], dtype=np.uint64)])
    whole = running[first + sizes] - running[first]
    nonempty = np.flatnonzero(sizes)
    table = nonempty[np.argsort(whole[nonempty])]
    hashes = whole[table]
    if (hashes[1:] == hashes[:-1]).any():
        at = int(np.flatnonzero(hashes[1:] == hashes[:-1])[0])
        raise ConfigError(f"{TOKENS}: tokens {table[at]} and {table[at + 1]} cannot be told apart")

    # Few of the hashes looked for exist: a table of their first bits, small enough for the cache, says which may.
    shift = np.uint64(64 - _FILTER_BITS)
    present = np.zeros(1 << _FILTER_BITS, bool)
    present[hashes >> shift] = True
    inner = np.flatnonzero(place)  # a cut before every character but the first of a text
    lefts = running[inner] - running[first[owner[inner]]]
    may = present[lefts >> shift]
    inner, lefts = inner[may], lefts[may]
    ends = first[owner[inner]] + sizes[owner[inner]]
    rights = (running[ends] - running[inner]) * inverses[place[inner]]
    may = present[rights >> shift]
    inner, lefts, rights = inner[may], lefts[may], rights[may]
    slots = [_places(hashes, keys) for keys in (lefts, rights)]
    hit = (hashes[slots[0]] == lefts) & (hashes[slots[1]] == rights)
    piece, length = owner[inner[hit]], place[inner[hit]]
    left, right = table[slots[0][hit]], table[slots[1][hit]]
    same = (sizes[left] == length) & (sizes[right] == sizes[piece] - length)
    return piece[same], length[same], left[same], right[same]


def _places(hashes: np.ndarray[Any, Any], keys: np.ndarray[Any, Any]) -> Ints:
    """Index of the first of the sorted hashes that is not below each wanted one, at most the last; shape of `keys`."""
    order = np.argsort(keys)  # in ascending order the search stays in the cache
    places = np.empty(len(keys), np.int64)
    places[order] = np.minimum(np.searchsorted(hashes, keys[order]), len(hashes) - 1)
    return places
