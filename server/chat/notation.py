"""What a model's answers are written in: how it calls tools, how it marks reasoning, and which of that is special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from server.chat import reasoning
from server.chat.reasoning import REASONING, ReasoningNotation
from server.chat.tools import registry
from server.chat.tools.hermes import Hermes
from server.chat.tools.notation import ToolNotation

log = structlog.get_logger("server")

NONE = "none"
"""The name that switches a parser off."""
FALLBACK = "hermes"
"""Where a template shows no notation that is known. Text in another notation stays text."""

_SINGLE = "only supports single tool-calls"
"""Of the message with which templates of Llama 3 refuse."""


class _Tokens(Protocol):
    """The part of `engine.text.tokenizer.Tokenizer` that is asked here."""

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class ModelNotation:
    """`tokens`: notation that is one token of the model, and its id. `special`: those of them that are special.
    `single_calls`: the chat template refuses a conversation with two calls in one message, so none is made."""

    tools: ToolNotation | None = field(default_factory=lambda: Hermes(FALLBACK))
    reasoning: ReasoningNotation | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    special: frozenset[str] = frozenset()
    single_calls: bool = False

    def special_ids(self, literals: Iterable[str]) -> frozenset[int]:
        """Ids of those of these literals that are special tokens."""
        return frozenset(self.tokens[one] for one in literals if one in self.special)


def model_notation(
    tokenizer: _Tokens, template: str, tool_parser: str | None, reasoning_parser: str | None
) -> ModelNotation:
    """What the operator named (`--tool-call-parser`, `--reasoning-parser`), else what the chat template shows."""
    added = tokenizer.added_tokens
    name = tool_parser or registry.detected(template, added) or FALLBACK
    tools = None if name == NONE else registry.tool_notation(name, template)
    if reasoning_parser is None:
        thinks = reasoning.detected(template)
    else:
        thinks = None if reasoning_parser == NONE else REASONING[reasoning_parser]
    literals = [*(tools.literals if tools else ()), *(thinks.literals if thinks else ())]
    tokens = {one: added[one] for one in literals if one in added}
    special = frozenset(one for one, token_id in tokens.items() if tokenizer.is_special(token_id))
    log.info(
        "notation of answers",
        tool_calls=tools.name if tools else NONE,
        reasoning=thinks.name if thinks else NONE,
    )
    return ModelNotation(tools, thinks, tokens, special, _SINGLE in template)
