"""The tokenizer of a checkpoint directory: text to ids and back, and the exact bytes of each id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from executors.contract import ConfigError

_TOKEN_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


class Tokenizer:
    """Immutable after `load`; safe to use from several threads."""

    def __init__(
        self,
        raw: RawTokenizer,
        config: dict[str, Any],
        eos_token_ids: frozenset[int],
        generation_config: dict[str, Any],
        chat_template: str | None,
    ) -> None:
        self.raw = raw
        self.config = config
        self.eos_token_ids = eos_token_ids
        self.generation_config = generation_config
        self.chat_template = chat_template
        self.vocab_size = raw.get_vocab_size()
        self.special_tokens = {
            role: text for role in _TOKEN_ROLES if (text := _token_text(config.get(role))) is not None
        }
        self._special_ids = frozenset(
            i for i, token in raw.get_added_tokens_decoder().items() if token.special
        )
        self.byte_level = type(raw.decoder).__name__ == "ByteLevel"
        self._fallback_bytes = {} if self.byte_level else _fallback_bytes(raw)
        self.token_bytes = lru_cache(maxsize=65536)(self._token_bytes)

    @staticmethod
    def load(directory: Path) -> Tokenizer:
        """Read tokenizer.json, tokenizer_config.json, generation_config.json and the chat template of a checkpoint.

        Raises ConfigError, one line naming the file, when there is no usable tokenizer.json.
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path}: not found; a tokenizer.json (Hugging Face fast tokenizer) is needed")
        try:
            raw = RawTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault in the file
            raise ConfigError(f"{path}: not a readable tokenizer: {_one_line(error)}") from error
        raw.no_padding()
        raw.no_truncation()
        config = _read_json(directory / "tokenizer_config.json")
        generation = _read_json(directory / "generation_config.json")
        model_config = _read_json(directory / "config.json")
        eos = _eos_ids(raw, config, generation, model_config)
        return Tokenizer(raw, config, eos, generation, _chat_template(directory, config))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text; special tokens written in the text are recognised."""
        ids: list[int] = self.raw.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD."""
        text: str = self.raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def is_special(self, token_id: int) -> bool:
        """True for tokens that `skip_special_tokens` hides."""
        return token_id in self._special_ids

    def token_string(self, token_id: int) -> str:
        """The token as it stands in the vocabulary; empty for an id without a token."""
        return self.raw.id_to_token(token_id) or ""

    def token_text(self, token_id: int) -> str:
        """The token alone as text, special tokens included; incomplete characters become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, special tokens included; empty for an id without a token (padding)."""
        token = self.raw.id_to_token(token_id)
        if token is None:
            return b""
        if self.byte_level:
            return byte_level_bytes(token)
        byte = _fallback_byte(token)
        return token.replace("\u2581", " ").encode() if byte is None else byte

    def fallback_byte(self, token_id: int) -> bytes | None:
        """The byte of a byte-fallback token such as `<0x41>`, None for every other token."""
        return self._fallback_bytes.get(token_id)


def _fallback_byte(token: str) -> bytes | None:
    if len(token) != 6 or not (token.startswith("<0x") and token.endswith(">")):
        return None
    try:
        return bytes([int(token[3:5], 16)])
    except ValueError:
        return None


def _fallback_bytes(raw: RawTokenizer) -> dict[int, bytes]:
    names = (f"<0x{byte:02X}>" for byte in range(256))
    found = ((raw.token_to_id(name), bytes([byte])) for byte, name in enumerate(names))
    return {token_id: byte for token_id, byte in found if token_id is not None}


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map of printable characters to bytes: visible Latin-1 characters stand for themselves, the 68 others for
    U+0100 and up, in order (Radford et al. 2019, the byte-level BPE of the released model)."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(visible)]
    return {chr(b): b for b in visible} | {chr(0x100 + i): b for i, b in enumerate(hidden)}


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level BPE token. A token with a character outside the alphabet (an added token with a space, say)
    stands for its own text."""
    alphabet = _byte_alphabet()
    try:
        return bytes(alphabet[c] for c in token)
    except KeyError:
        return token.encode()


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a file; {} where there is no such file. Raises ConfigError for one that cannot be read."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: a JSON object is expected, not {type(value).__name__}")
    return value


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_ids(
    raw: RawTokenizer, config: dict[str, Any], generation: dict[str, Any], model: dict[str, Any]
) -> frozenset[int]:
    """End tokens: those of generation_config.json, else of config.json; and always the tokenizer's own eos_token."""
    ids: set[int] = set()
    text_config = model.get("text_config")
    for source in (generation, model, text_config if isinstance(text_config, dict) else {}):
        value = source.get("eos_token_id")
        if value is not None:
            ids = _id_set(value)
            break
    text = _token_text(config.get("eos_token"))
    if text is not None and (eos := raw.token_to_id(text)) is not None:
        ids.add(eos)
    return frozenset(ids)


def _id_set(value: Any) -> set[int]:
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ConfigError(f"eos_token_id must be a token id or a list of token ids, not {_one_line(value)}")
    return set(ids)


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja first, then tokenizer_config.json: a string, or named templates of which "default" counts."""
    path = directory / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not readable as UTF-8 text: {_one_line(error)}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _one_line(what: object) -> str:
    return " ".join(str(what).split())[:300]
