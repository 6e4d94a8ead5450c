"""A GGUF file's tokens: their texts, their types, and the ids of the tokens with a role."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.text.gguf.ends import answer_ends
from engine.text.gguf.metadata import MAX_TOKEN_CHARS, MAX_TOKENS, Metadata, as_unicode
from executors.contract import ConfigError

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"
TEMPLATE = "tokenizer.chat_template"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Values of `tokenizer.ggml.token_type`."""

_ROLE_KEYS = {
    "bos": "tokenizer.ggml.bos_token_id",
    "eos": "tokenizer.ggml.eos_token_id",
    "eot": "tokenizer.ggml.eot_token_id",
    "eom": "tokenizer.ggml.eom_token_id",
    "unk": "tokenizer.ggml.unknown_token_id",
    "sep": "tokenizer.ggml.seperator_token_id",  # written so in the format
    "pad": "tokenizer.ggml.padding_token_id",
    "mask": "tokenizer.ggml.mask_token_id",
    "cls": "tokenizer.ggml.cls_token_id",
}
_LLAMA_IDS = {"unk": 0, "bos": 1, "eos": 2}
"""Ids that SentencePiece gives these tokens unless told otherwise; files of model `llama` may leave them out."""
_T5_IDS = {"pad": 0, "eos": 1, "unk": 2}
"""Ids of these tokens in files of model `t5` that leave them out."""
_BERT_TEXTS = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
"""Texts that BERT gives these tokens; files of model `bert` may leave out their ids."""

_VISIBLE = re.compile(
    r"<unused\d+>|<mask>|<2mass>|\[@BOS@\]|<\|(fim_(prefix|middle|suffix|pad)|repo_name|file_sep)\|>"
    r"|<｜(fim▁(begin|hole|end)|tool▁[a-z▁]+|User|Assistant)｜>"
)
"""Tokens of Gemma, Qwen and DeepSeek that a conversion to GGUF marks as control tokens for the look of their texts, although the
original tokenizer shows them in an answer; the calls of tools that DeepSeek writes are read there."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file, in the order of their ids."""

    texts: list[str]
    types: np.ndarray[Any, np.dtype[Any]]
    """Type of each token, shape (len(texts),), int64."""
    roles: dict[str, int]
    """Ids by role: bos, eos, eot, eom, unk, sep, pad, mask, cls; only those that the file has."""
    ends: tuple[int, ...]
    """Ids that end an answer, see `answer_ends`."""
    padding: frozenset[int]
    """Ids that only fill the embedding matrix up to a round size: the original vocabulary does not have them."""

    def role_text(self, role: str) -> str | None:
        """The text of the token with a role."""
        at = self.roles.get(role)
        return None if at is None else self.texts[at]

    def index(self) -> dict[str, int]:
        """Ids by text, without padding. Raises ConfigError if two tokens have the same text."""
        ids = dict(zip(self.texts, range(len(self.texts)), strict=True))
        for i in self.padding:
            ids.pop(self.texts[i], None)
        if len(ids) != len(self.texts) - len(self.padding):
            later = next(i for i, text in enumerate(self.texts) if i not in self.padding and ids[text] != i)
            raise ConfigError(f"{TOKENS}: tokens {later} and {ids[self.texts[later]]} have the same text")
        return ids

    def added_tokens(self, strip_right: bool) -> list[dict[str, Any]]:
        """Entries of `added_tokens` in tokenizer.json: tokens found in a text before anything else is done with it.

        `strip_right`: tokens other than bos, unk and `<|endoftext|>` take the white space after them.
        """
        bare = {self.role_text("bos"), self.role_text("unk"), "<|endoftext|>"}
        ends = set(self.ends)
        types = self.types.tolist()
        listed = {i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)} | ends
        return [
            {
                "id": i,
                "content": self.texts[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": strip_right and self.texts[i] not in bare,
                "normalized": False,
                "special": i in ends
                or (types[i] != USER_DEFINED and _VISIBLE.fullmatch(self.texts[i]) is None),
            }
            for i in sorted(listed - self.padding)
            if self.texts[i]
        ]


def read_vocabulary(metadata: Metadata, model: str) -> Vocabulary:
    """The vocabulary of a file whose `tokenizer.ggml.model` is `model`. Raises ConfigError."""
    texts = metadata.texts(TOKENS, MAX_TOKENS)
    if not texts:
        raise ConfigError(f"{TOKENS}: missing or empty: the file holds no tokenizer")
    if max(map(len, texts)) > MAX_TOKEN_CHARS:
        at = next(i for i, text in enumerate(texts) if len(text) > MAX_TOKEN_CHARS)
        raise ConfigError(f"{TOKENS}[{at}]: {len(texts[at])} characters; at most {MAX_TOKEN_CHARS} are read")
    for i in [i for i, text in enumerate(texts) if not text][1:]:
        texts[i] = f"[EMPTY_{i}]"  # as llama.cpp does; texts have to differ, and no text has these
    types = _types(metadata, len(texts))
    for i in _not_text(metadata):
        texts[i], types[i] = f"[INVALID_{i}]", NORMAL
    by_role = {role: metadata.token_id(key, len(texts)) for role, key in _ROLE_KEYS.items()}
    roles = {role: i for role, i in by_role.items() if i is not None}
    if model == "llama":
        roles = {role: i for role, i in _LLAMA_IDS.items() if i < len(texts)} | roles
    if model == "t5":
        roles = {role: i for role, i in _T5_IDS.items() if i < len(texts)} | roles
    if model == "bert":
        texts_of_roles = {role: texts.index(text) for role, text in _BERT_TEXTS.items() if text in texts}
        if "bos" in roles:
            roles.setdefault("cls", roles["bos"])
        roles = texts_of_roles | roles
    unused = np.flatnonzero(types == UNUSED).tolist()
    padding = {i for i in unused if texts[i] == f"[PAD{i}]"} - set(roles.values())
    if model == "llama":
        spaces = [i for i in np.flatnonzero(types == USER_DEFINED).tolist() if texts[i].strip(" ") == ""]
        for i in spaces:  # conversion wrote such pieces as they look in a text
            texts[i] = texts[i].replace(" ", "▁")
    return Vocabulary(texts, types, roles, _ends(metadata, texts, types, roles), frozenset(padding))


def _types(metadata: Metadata, count: int) -> np.ndarray[Any, np.dtype[Any]]:
    """The type of each token; NORMAL for one whose type is missing or unknown."""
    types = metadata.numbers(TYPES, count, missing=NORMAL)
    if types is None:
        return np.full(count, NORMAL)
    valid = np.isin(types, range(NORMAL, BYTE + 1))
    if not valid.all():
        at = int(np.flatnonzero(~valid)[0])
        number = int((~valid).sum())
        metadata.note(
            f"{TYPES}: {number} are unknown, the first is {types[at]} of token {at}: taken as ordinary text"
        )
    return np.where(valid, types, NORMAL).astype(np.int64)


def _not_text(metadata: Metadata) -> list[int]:
    """Ids of the tokens that are not UTF-8, which no text has."""
    bad = [i for i, text in enumerate(metadata.values[TOKENS]) if as_unicode(text) != text]
    if bad:
        metadata.note(f"{TOKENS}: {len(bad)} are not UTF-8, the first is token {bad[0]}: no text has them")
    return bad


def _ends(
    metadata: Metadata, texts: list[str], types: np.ndarray[Any, np.dtype[Any]], roles: dict[str, int]
) -> tuple[int, ...]:
    """Ids that end an answer, see `answer_ends`."""
    ends = [roles[role] for role in ("eos", "eot", "eom") if role in roles]
    return answer_ends(metadata, texts, types.tolist(), ends)
