"""What a model's answers are written in: how it calls tools, how it marks reasoning, and which of that is special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from server.answer import reasoning
from server.answer.reasoning import REASONING, ReasoningNotation
from server.answer.tools import detect, registry
from server.answer.tools.hermes import Hermes
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.notation import ToolNotation
from server.templates.template import ChatTemplate

log = structlog.get_logger("server")

NONE = "none"
"""The name that switches a parser off."""
JSON = "json"
"""The name of the notation of forced calls where the model's own is unknown."""
_SINGLE = "only supports single tool-calls"
"""Of the message with which templates of Llama 3 refuse."""


class _Tokens(Protocol):
    """The part of `engine.text.tokenizer.Tokenizer` that is asked here."""

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class ModelNotation:
    """`tools` is None where calls are not looked for: the operator has it so, or, with `unknown`, the chat template shows
    tools and no notation of calls that is known. `tokens`: notation that is one token of the model, and its id. `special`:
    those of them that are special. `single_calls`: the chat template refuses a conversation with two calls in one message,
    so none is made."""

    tools: ToolNotation | None = field(default_factory=lambda: Hermes("hermes"))
    reasoning: ReasoningNotation | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    special: frozenset[str] = frozenset()
    single_calls: bool = False
    unknown: bool = False

    def special_ids(self, literals: Iterable[str]) -> frozenset[int]:
        """Ids of those of these literals that are special tokens."""
        return frozenset(self.tokens[one] for one in literals if one in self.special)

    def for_calls(self, forced: bool) -> ModelNotation:
        """The notation of one request. A forced call is written by its grammar, whatever the model is used to: where the
        model's own notation is unknown, as plain JSON."""
        return replace(self, tools=Llama3Json(JSON)) if forced and self.unknown else self

    @property
    def facts(self) -> dict[str, Any]:
        """For whoever operates the server."""
        return {
            "tool_calls": self.tools.name if self.tools else NONE,
            "tool_calls_stay_text": self.tools is None,
            "reasoning": self.reasoning.name if self.reasoning else NONE,
        }


def model_notation(
    tokenizer: _Tokens,
    template: ChatTemplate | None,
    tool_parser: str | None,
    reasoning_parser: str | None,
    *,
    asks: bool = True,
) -> ModelNotation:
    """What the operator named (`--tool-call-parser`, `--reasoning-parser`), else what the chat template shows. With `asks`
    False the template is not rendered, and calls that the operator did not name are unknown. Renders: call it behind a
    fence."""
    added = tokenizer.added_tokens
    text = "" if template is None else "\n".join(template.sources.values())
    shows_tools = template is not None and template.reads_tools
    name = tool_parser
    if name is None and template is not None and asks:
        name = detect.detected(template, added)
    tools = None if name in (None, NONE) else registry.tool_notation(name, text)
    if reasoning_parser is None:
        thinks = reasoning.detected(text)
    else:
        thinks = None if reasoning_parser == NONE else REASONING[reasoning_parser]
    literals = [*(tools.literals if tools else ()), *(thinks.literals if thinks else ())]
    tokens = {one: added[one] for one in literals if one in added}
    special = frozenset(one for one, token_id in tokens.items() if tokenizer.is_special(token_id))
    found = ModelNotation(
        tools, thinks, tokens, special, _SINGLE in text, unknown=shows_tools and name is None
    )
    log.info("notation of answers", **found.facts)
    if found.unknown:
        log.warning(
            "the chat template shows no tool format that is known: calls stay text",
            known=", ".join(registry.TOOL_PARSERS),
            flag="--tool-call-parser",
        )
    return found
