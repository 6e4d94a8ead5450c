"""Fill in the middle: a prompt made of the text before and after the middle that the model writes, in the notation of the
model's training. The tokens added to the model's vocabulary show the notation.

    Qwen 2.5 and 3, CodeGemma    <|fim_prefix|> before <|fim_suffix|> behind <|fim_middle|>
    StarCoder 1 and 2, Granite   <fim_prefix> before <fim_suffix> behind <fim_middle>
    SantaCoder                   <fim-prefix> before <fim-suffix> behind <fim-middle>
    Code Llama                   <PRE> before <SUF> behind <MID>
    DeepSeek Coder and later     <fim begin> before <fim hole> behind <fim end>
    Codestral, Mistral           [SUFFIX] behind [PREFIX] before

Sources: Bavarian et al. 2022 (arXiv:2207.14255), and the model cards and tokenizers of these families.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import FIELD, InvalidRequest
from server.prepare.chat_prompt import encode_text
from server.state.server_state import ServedModel, TokenizerLike


class ClientText(enum.Enum):
    """The client's texts."""

    BEFORE = "prompt"
    BEHIND = "suffix"


@dataclass(frozen=True, slots=True)
class _Family:
    """`layout`: marks and parts in order. `ends`: other tokens that occur only at the end of the middle."""

    layout: tuple[str | ClientText, ...]
    ends: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(part for part in self.layout if isinstance(part, str))


def _psm(before: str, behind: str, middle: str, *ends: str) -> _Family:
    return _Family((before, ClientText.BEFORE, behind, ClientText.BEHIND, middle), ends)


_FAMILIES = (
    _psm(
        "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
        "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>",
    ),
    _psm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<repo_name>", "<file_sep>"),
    _psm("<fim-prefix>", "<fim-suffix>", "<fim-middle>", "<fim-pad>"),
    _psm("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>"),
    _psm("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    _Family(("[SUFFIX]", ClientText.BEHIND, "[PREFIX]", ClientText.BEFORE), ("[MIDDLE]",)),
)  # fmt: skip

_ANCHOR = "\u263a"
"""Text after which tokenizers add no space to the beginning of a text, because it continues a line."""


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """The notation of one model in token ids. `end_ids` end the middle when they are generated: they are notation, not text."""

    layout: tuple[int | ClientText, ...]
    end_ids: tuple[int, ...]

    def prompt(self, before: Sequence[int], behind: Sequence[int]) -> tuple[int, ...]:
        """The whole prompt, without the special tokens that the tokenizer adds to every text."""
        ids: list[int] = []
        for part in self.layout:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids.extend(before if part is ClientText.BEFORE else behind)
        return tuple(ids)


def fill_in_middle(tokenizer: TokenizerLike) -> FillInMiddle:
    """The notation whose tokens the tokenizer has. Raises InvalidRequest naming `suffix` if there is none."""
    for family in _FAMILIES:
        ids_by_text = {text: tokenizer.added_tokens.get(text) for text in (*family.marks, *family.ends)}
        if all(ids_by_text[mark] is not None for mark in family.marks):
            ids = {text: id_ for text, id_ in ids_by_text.items() if id_ is not None}
            layout = tuple(ids[part] if isinstance(part, str) else part for part in family.layout)
            return FillInMiddle(layout, tuple(ids.values()))
    message = (
        f"'{FIELD}' is not supported by this model: its tokenizer has no tokens for filling in the middle."
    )
    raise InvalidRequest(message, param="suffix", code="unsupported_parameter")


def encode_behind(model: ServedModel, text: str) -> list[int]:
    """Ids of a text that continues another, without the space that some tokenizers add at the beginning of a text.

    Raises InvalidRequest naming `suffix`.
    """
    ids = encode_text(model, text, False, "suffix")
    if not ids or text.startswith(" ") or not model.tokenizer.token_text(ids[0]).startswith(" "):
        return ids
    anchor = model.tokenizer.encode(_ANCHOR, False)
    anchored = model.tokenizer.encode(_ANCHOR + text, False)
    return anchored[len(anchor) :] if anchored[: len(anchor)] == anchor else ids
