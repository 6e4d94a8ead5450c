"""The tokenizer of a checkpoint directory: text to ids and back, and the exact bytes of each id."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from engine.text import tokenizer_classes as classes
from engine.text import tokenizer_files as files
from engine.text.decoding import CLEANUPS, StreamDecoder
from engine.text.stages import fallback_byte
from engine.text.vocabulary_files import missing, read_vocabulary_file, vocabulary_file
from executors.contract import ConfigError

_PARALLELISM = "TOKENIZERS_PARALLELISM"
_OFF = ("", "off", "false", "f", "no", "n", "0")
"""Values of that variable, in lower case, with which the library works in the calling thread alone."""


@dataclass(frozen=True, slots=True)
class PairEncoding:
    """Two texts that the tokenizer's post-processor joined, token by token: `ids`, `types` (0 and 1 for BERT's segments), and
    `texts`, the number of the text that a token comes from, None for one that was added."""

    ids: list[int]
    types: list[int]
    texts: list[int | None]


class Tokenizer:
    """Immutable after `load`; safe to use from several threads."""

    def __init__(
        self,
        raw: RawTokenizer,
        config: dict[str, Any],
        eos_token_ids: frozenset[int],
        generation_config: dict[str, Any],
        chat_template: str | dict[str, str] | None,
        warnings: Sequence[str] = (),
    ) -> None:
        self.raw = raw
        self.config = config
        self.eos_token_ids = eos_token_ids
        self.generation_config = generation_config
        self.chat_template = chat_template
        """The chat template, or several by name (`default`, `tool_use`, ...)."""
        self.warnings = tuple(warnings)
        """Settings in the files that are not used, a sentence each."""
        self.vocab_size = raw.get_vocab_size()
        self.special_tokens = files.special_tokens(config)
        """Texts by role: bos_token, eos_token, ..."""
        self._special_ids = frozenset(
            i for i, token in raw.get_added_tokens_decoder().items() if token.special
        )
        # Made for WordPiece; on BPE it would take spaces away that were in the text (transformers 5 ignores it there, too).
        cleanup = config.get("clean_up_tokenization_spaces") is True and type(raw.model).__name__ != "BPE"
        self.added_tokens = {token.content: i for i, token in raw.get_added_tokens_decoder().items()}
        """Ids of the tokens that were added to the vocabulary, special or not, by their texts."""
        self.decoder = StreamDecoder(raw, cleanup)
        self.byte_level = self.decoder.byte_level
        self.token_bytes = lru_cache(maxsize=65536)(self._token_bytes)
        self._in_one_thread = os.environ.get(_PARALLELISM, "on").lower() in _OFF
        self.whole_texts: dict[int, str] = {}
        """Texts of ordinary tokens that are whole characters, as far as detokenizers of a byte-level vocabulary met them."""

    @staticmethod
    def load(directory: Path) -> Tokenizer:
        """Read tokenizer.json, or the vocabulary file that stands for it, and the files beside it: tokenizer_config.json (or
        special_tokens_map.json), generation_config.json, config.json and the chat templates.

        Raises ConfigError, one line naming the file, if there is no usable tokenizer.
        """
        path = directory / "tokenizer.json"
        raw_file = _read_file(path) if path.is_file() else None
        config = files.read_tokenizer_config(directory)
        model_config = files.read_json(directory / "config.json")
        name = classes.class_of(raw_file, config, model_config)
        if raw_file is not None:
            raw, config = classes.rebuild(raw_file, config, name)
        elif (source := vocabulary_file(directory)) is not None:
            if source.name == "vocab.json":
                name = classes.class_of_words(config, model_config)
            raw, config, is_bare = read_vocabulary_file(source, config, name)
            if is_bare:
                raw, config = classes.rebuild(raw, config, name)
            else:
                config = classes.with_defaults(config, name)
        else:
            raise missing(directory)
        files.add_tokens(raw, config, str(directory / "tokenizer_config.json"))
        classes.finish(raw, config, name, has_file=raw_file is not None)
        raw.encode_special_tokens = config.get("split_special_tokens") is True
        generation = files.read_json(directory / "generation_config.json")
        eos, warnings = files.eos_ids(raw, config, generation, model_config)
        if name in classes.OTHERS and raw_file is not None:
            warnings.append(f"tokenizer_config.json: tokenizer_class {name} not used: tokenizer.json decides")
        notes = config.get(files.NOTES)
        warnings = [
            *(note for note in (notes if isinstance(notes, list) else []) if isinstance(note, str)),
            *warnings,
        ]
        templates = files.chat_templates(directory, config)
        only = templates[files.DEFAULT] if list(templates) == [files.DEFAULT] else templates or None
        return Tokenizer(raw, config, eos, generation, only, warnings)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens written in the text are recognised."""
        ids: list[int]
        if self._in_one_thread:
            # Without offsets and the tokens' texts: a sixth less. It would wake the library's own threads for one text.
            ids = self.raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        else:
            ids = self.raw.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """Two texts with the special tokens that the tokenizer puts around and between them."""
        encoding = self.raw.encode(first, second)
        return PairEncoding(encoding.ids, encoding.type_ids, encoding.sequence_ids)

    def encode_with_ends(self, text: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """Ids as of `encode`, and for each the index behind the last character of the text that it stands for; 0 for a token
        that the tokenizer has added."""
        encoding = self.raw.encode(text, add_special_tokens=add_special_tokens)
        return encoding.ids, [end for _, end in encoding.offsets]

    def single_token(self, text: str) -> int | None:
        """The id of a text that is one token, None if it is several or none."""
        if (added := self.added_tokens.get(text)) is not None:
            return added
        ids = self.encode(text, False)
        return ids[0] if len(ids) == 1 else None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; invalid UTF-8 bytes become U+FFFD, all others stay."""
        if self.decoder.strips_end:
            return self._decode_streamed(
                ids, skip_special_tokens
            )  # the library panics when a token is shorter
        text: str = self.raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        if self.decoder.byte_fallback and "\ufffd" in text:
            return self._decode_streamed(ids, skip_special_tokens)
        if self.decoder.cleanup:
            for old, new in CLEANUPS:
                text = text.replace(old, new)
        return text

    def _decode_streamed(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text that the stream of the same ids gives. The library would lose whole characters next to an invalid byte."""
        stream = self.decoder.stream()
        visible = (i for i in ids if not (skip_special_tokens and self.is_special(i)))
        tokens = (token for i in visible if (token := self.raw.id_to_token(i)) is not None)
        return "".join([stream.push(token) for token in tokens]) + stream.end()

    def has_tokens_of(self, other: Tokenizer) -> bool:
        """Whether every id means the same token in both."""
        return bool(self.raw.get_vocab(True) == other.raw.get_vocab(True))

    def is_special(self, token_id: int) -> bool:
        """True for tokens that `skip_special_tokens` hides."""
        return token_id in self._special_ids

    def token_string(self, token_id: int) -> str:
        """The token as written in the vocabulary; empty for an id without a token."""
        return self.raw.id_to_token(token_id) or ""

    def token_text(self, token_id: int) -> str:
        """The token alone as text, special tokens included; incomplete characters become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for in the middle of a text, special tokens included; empty for an id without a token
        (padding). Concatenated over a text they are its bytes, except for the decoder's changes at the edges of the whole text
        (such as a space stripped from its beginning)."""
        token = self.raw.id_to_token(token_id)
        return b"" if token is None else self.decoder.token_bytes(token)

    def fallback_byte(self, token_id: int) -> bytes | None:
        """The byte of a byte-fallback token such as `<0x41>`, None for every other token."""
        return fallback_byte(self.raw.id_to_token(token_id) or "") if self.decoder.byte_fallback else None


def has_tokenizer(directory: Path) -> bool:
    """Whether a directory has a file that `Tokenizer.load` reads a vocabulary from."""
    return (directory / "tokenizer.json").is_file() or vocabulary_file(directory) is not None


def _read_file(path: Path) -> RawTokenizer:
    try:
        raw = RawTokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault in the file
        raise ConfigError(f"{path}: not a readable tokenizer: {files.one_line(error)}") from error
    raw.no_padding()
    raw.no_truncation()
    return raw
