"""The decoders of tokenizer.json as streams: each token gives its text as soon as that text is certain.

A decoder of the tokenizers library maps the list of all tokens to a list of strings, which are joined. Here the same
steps keep a little state and take one token at a time:

    token  ->  Replace  ->  ByteFallback  ->  Fuse  ->  Strip  ->  text
               (a `DecoderStage` each; what flows between them are pieces of tokens)

A `Piece` says whether it begins a token, because several decoders treat the first token, or each token's edges,
differently; after Fuse or ByteLevel everything is one token. Semantics are those of tokenizers 0.23 (`decode_chain` of
each decoder), with one exception: see `ByteFallback` in `engine/text/stages.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Regex, decoders
from tokenizers import Tokenizer as RawTokenizer

from engine.text.stages import (
    BpeSuffix,
    ByteFallback,
    ByteLevel,
    DecoderStage,
    EachToken,
    Fuse,
    Metaspace,
    Piece,
    Replace,
    SpaceJoin,
    Strip,
)
from executors.contract import ConfigError

Factory = Callable[[], DecoderStage]

CLEANUPS = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"""Replacements for `clean_up_tokenization_spaces` of tokenizer_config.json, in this order over the whole text (transformers 5,
`clean_up_tokenization`)."""


class TextStream:
    """Converts tokens, as written in the vocabulary, to text. The results of `push` and `end` add up to the whole text."""

    def __init__(self, stages: Sequence[DecoderStage]) -> None:
        self._stages = stages

    def push(self, token: str) -> str:
        """Text that became certain with this token."""
        pieces: Sequence[Piece] = ((token, True),)
        for stage in self._stages:
            pieces = [out for text, new in pieces for out in stage.push(text, new)]
        return "".join([text for text, _ in pieces])

    def end(self) -> str:
        """The held-back text."""
        pieces: Sequence[Piece] = ()
        for stage in self._stages:
            pieces = [*(out for text, new in pieces for out in stage.push(text, new)), *stage.end()]
        return "".join([text for text, _ in pieces])


class StreamDecoder:
    """A tokenizer's decoder, compiled. With `cleanup`, punctuation joins the word before it (`CLEANUPS`).

    Raises ConfigError for a decoder that cannot be streamed.
    """

    def __init__(self, raw: RawTokenizer, cleanup: bool = False) -> None:
        self._factories = _compile(raw)
        self.cleanup = cleanup
        if cleanup:
            self._factories += [_replace(old, new) for old, new in CLEANUPS]
        stages = [make() for make in self._factories]
        self.byte_level = len(stages) == 1 and isinstance(stages[0], ByteLevel)
        """Whether each token stands for fixed bytes, without other steps."""
        self.byte_fallback = any(isinstance(stage, ByteFallback) for stage in stages)
        self.strips_end = any(isinstance(stage, Strip) and stage.stop for stage in stages)
        """Whether a decoder removes characters from the end of a token."""
        self._middles = [stage.middle for stage in stages]

    def stream(self) -> TextStream:
        """A stream for a text from its beginning."""
        return TextStream([make() for make in self._factories])

    def token_bytes(self, token: str) -> bytes:
        """The bytes of a token in the middle of a text: with the space before it, and a single byte for a byte token."""
        text = token
        for middle in self._middles:
            out = middle(text)
            if isinstance(out, bytes):
                return out  # what follows bytes in a decoder (Fuse, Strip) changes only the edges of the text
            text = out
        return text.encode()


def _compile(raw: RawTokenizer) -> list[Factory]:
    """A factory for each step of the decoder; no decoder means tokens joined by spaces."""
    if raw.decoder is None:
        return [SpaceJoin]
    factories: list[Factory] = []
    before: set[str] = set()
    for step in _flat(json.loads(raw.decoder.__getstate__())):
        kind = step["type"]
        joined = bool(before & {"ByteLevel", "Fuse"})
        whole = not joined and "ByteFallback" not in before
        if not whole and kind in _NEED_WHOLE_TOKENS:
            raise ConfigError(f"tokenizer.json: decoder {kind} after one that joins tokens is not supported")
        factories.append(_factory(step, whole, joined))
        before.add(kind)
    return factories


_NEED_WHOLE_TOKENS = frozenset({"ByteLevel", "ByteFallback", "WordPiece", "BPEDecoder"})


def _flat(step: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    return [inner for one in step["decoders"] for inner in _flat(one)]


def _factory(step: Mapping[str, Any], whole: bool, joined: bool) -> Factory:
    """`whole`: the input is whole tokens. `joined`: all input is one token. (Neither, after ByteFallback: parts of tokens.)"""
    match step["type"]:
        case "ByteLevel":
            return ByteLevel
        case "ByteFallback":
            return ByteFallback
        case "Fuse":
            return Fuse
        case "Strip":
            content, start, stop = step["content"], step["start"], step["stop"]
            return lambda: Strip(content, start, stop, joined)
        case "Metaspace":
            replacement, keep = step["replacement"], step["prepend_scheme"] == "never"
            return lambda: Metaspace(replacement, keep_first=keep)
        case "WordPiece":
            return _each_token(decoders.WordPiece(step["prefix"], step["cleanup"]))
        case "BPEDecoder":
            suffix = step["suffix"]
            return lambda: BpeSuffix(suffix)
        case "Replace":
            return _replace_step(step["pattern"], step["content"], whole, joined)
        case kind:
            raise ConfigError(f"tokenizer.json: decoder {kind} is not supported")


def _replace_step(pattern: Mapping[str, str], content: str, whole: bool, joined: bool) -> Factory:
    string = pattern.get("String")
    if whole:
        return _each_token(decoders.Replace(Regex(pattern["Regex"]) if string is None else string, content))
    if string and (joined or len(string) == 1):  # a single character is never cut in two
        return _replace(string, content)
    raise ConfigError("tokenizer.json: a Replace of this kind, after tokens were joined, is not supported")


def _replace(old: str, new: str) -> Factory:
    return lambda: Replace(old, new)


def _each_token(decoder: Any) -> Factory:
    """A factory for steps that handle one token at a time: the library itself decodes each token, as the first of a text and
    as a later one."""

    @lru_cache(maxsize=16384)
    def text_of(token: str, first: bool) -> str:
        return str(decoder.decode([token] if first else ["", token]))

    return lambda: EachToken(text_of)
