"""Prompts of cross-encoders: a query and a document, joined by the tokenizer's own post-processor.

BERT       [CLS] query [SEP] document [SEP]          types 0 up to the first [SEP], then 1
RoBERTa    <s> query </s></s> document </s>          one type
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.text.tokenizer import PairEncoding
from executors.contract import ConfigError, ModelInfo
from server.templates.pairs import QWEN3_MARKS, PairPrompt, knows_pairs, pair_prompt
from server.templates.template import ChatTemplate

_INPUTS, _TYPES = "model_input_names", "token_type_ids"


class JoiningTokenizer(Protocol):
    """The part of a tokenizer that joins texts."""

    @property
    def config(self) -> Mapping[str, Any]:
        """tokenizer_config.json."""

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of added tokens by their texts."""

    def encode_pair(self, first: str, second: str) -> PairEncoding:
        """Two texts to ids."""


@dataclass(frozen=True, slots=True)
class JoinedPairs:
    """How the pairs of a model are cut and told apart. `has_types`: whether tokens of the second text have their own type."""

    has_types: bool

    def cut(self, pair: PairEncoding, length: int) -> tuple[tuple[int, ...], int | None] | None:
        """The ids of a pair in at most `length` tokens, and where its second segment begins, None without types. Tokens are taken
        from the end of the second text alone, as transformers' `only_second` does; None: none of that text would be left."""
        surplus = len(pair.ids) - length
        places: Sequence[int] = range(len(pair.ids))
        if surplus > 0:
            of_second = [place for place, text in enumerate(pair.texts) if text == 1]
            if surplus >= len(of_second):
                return None
            removed = set(of_second[-surplus:])
            places = [place for place in places if place not in removed]
        ids = tuple(pair.ids[place] for place in places)
        types = [pair.types[place] for place in places]
        return ids, types.index(1) if self.has_types and 1 in types else None


def pair_form(
    template: ChatTemplate | None, tokenizer: JoiningTokenizer, info: ModelInfo
) -> PairPrompt | JoinedPairs | None:
    """What makes a model's pairs; None if their form is unknown. A chat template for pairs comes first. Raises ConfigError for
    token types that cannot be computed."""
    if info.token_types and not (template is not None and knows_pairs(template)):
        return _joined(tokenizer, info)
    return pair_prompt(template, all(mark in tokenizer.added_tokens for mark in QWEN3_MARKS))


def leaves_types_out(tokenizer: JoiningTokenizer) -> bool:
    """Whether the tokenizer's files say that the model takes no types of tokens."""
    inputs = tokenizer.config.get(_INPUTS)
    return isinstance(inputs, list) and _TYPES not in inputs


def _joined(tokenizer: JoiningTokenizer, info: ModelInfo) -> JoinedPairs:
    if info.token_types < 2 or leaves_types_out(tokenizer):
        return JoinedPairs(False)
    types = tokenizer.encode_pair("a", "a").types
    if types != sorted(types) or max(types, default=0) > 1:
        raise ConfigError(
            f"tokenizer.json: its post_processor gives a pair the token types {types}; types 0 and then 1 are supported"
        )
    return JoinedPairs(True)
