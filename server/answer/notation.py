"""The notation of a model's answers: its format of tool calls, its reasoning tags, and which of these are special tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import structlog

from server.answer import reasoning
from server.answer.harmony.history import history_of
from server.answer.harmony.marks import MARKS
from server.answer.reasoning import REASONING, ReasoningNotation
from server.answer.reasoning.harmony import Channels
from server.answer.tools import detect, registry
from server.answer.tools.harmony import Harmony
from server.answer.tools.hermes import Hermes
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.notation import ToolNotation
from server.templates.generic_tools import GenericTools
from server.templates.template import ChatTemplate

log = structlog.get_logger("server")

NONE = "none"
"""Name that disables a parser."""
JSON = "json"
"""Name of the notation of forced calls if the model's own is unknown."""
_GENERIC = "hermes"
"""Name of the notation that the generic tool prompt describes if no other is known."""
_HARMONY_CALLS, _HARMONY_REASONING = "openai", "openai_gptoss"
"""Names of the two notations of Harmony."""
_SINGLE = "only supports single tool-calls"
"""Part of the message with which Llama 3 templates refuse a second call."""


class _Tokens(Protocol):
    """The part of `engine.text.tokenizer.Tokenizer` that this module uses."""

    @property
    def added_tokens(self) -> Mapping[str, int]: ...

    @property
    def byte_level(self) -> bool: ...

    def is_special(self, token_id: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class ModelNotation:
    """`tools` is None if answers are not searched for calls: the operator disabled this, or (with `unknown`) the chat template
    shows tools but no known notation of calls. `tokens`: ids of the notation's literals that are single tokens of the model.
    `special`: those of them that are special tokens. `marks`: characters in place of tokens of Harmony, by their ids; empty if
    its literals are no tokens, and are read in the text. `single_calls`: the chat template refuses a conversation with two calls
    in one message, so the model makes at most one."""

    tools: ToolNotation | None = field(default_factory=lambda: Hermes("hermes"))
    reasoning: ReasoningNotation | None = None
    tokens: Mapping[str, int] = field(default_factory=dict)
    special: frozenset[str] = frozenset()
    single_calls: bool = False
    unknown: bool = False
    marks: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_harmony(self) -> bool:
        """True if answers are messages of Harmony, which one parser reads for reasoning, text and calls."""
        if self.tools is None:
            return isinstance(self.reasoning, Channels)
        return isinstance(self.tools, Harmony)

    def special_ids(self, literals: Iterable[str]) -> frozenset[int]:
        """Ids of the literals that are special tokens."""
        return frozenset(self.tokens[one] for one in literals if one in self.special)

    def for_calls(self, forced: bool) -> ModelNotation:
        """The notation of one request. The grammar determines the form of a forced call: plain JSON if the model's own
        notation is unknown."""
        return replace(self, tools=Llama3Json(JSON)) if forced and self.unknown else self

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the log and GET /v1/models show."""
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
    generic_tools: bool = False,
) -> ModelNotation:
    """The notation that the operator named (`--tool-call-parser`, `--reasoning-parser`), else that of the chat template. With
    `asks` False the template is not rendered, and the tool format is unknown unless the operator named it. Rendering may not
    terminate: call it on a fenced thread. `generic_tools`: a template that shows no tools gets the generic prompt, in
    the named notation, in the one in which the template writes calls, or in Hermes'."""
    added = tokenizer.added_tokens
    text = "" if template is None else "\n".join(template.sources.values())
    shows_tools = template is not None and template.shows_tools
    if reasoning_parser is None:
        thinks = reasoning.detected(text, added)
    else:
        thinks = None if reasoning_parser == NONE else REASONING[reasoning_parser]
    name = tool_parser
    if name is None and template is not None and asks:
        name = detect.detected(template, added)
    # In Harmony reasoning and calls are messages: where the template shows the one, the model writes the other.
    if name is None and isinstance(thinks, Channels):
        name = _HARMONY_CALLS
    if name == _HARMONY_CALLS and reasoning_parser is None:
        thinks = REASONING[_HARMONY_REASONING]
    if generic_tools and asks and template is not None and not shows_tools and name != NONE:
        name = name or _GENERIC
        generic = registry.tool_notation(name, text)
        template.generic_tools = GenericTools(generic.written, detect.writes(template, name))
    tools = None if name in (None, NONE) else registry.tool_notation(name, text)
    if (
        tools is not None
        and template is not None
        and asks
        and shows_tools
        and not detect.shows_calls(template)
    ):
        template.writes_calls = tools.written
    literals = [*(tools.literals if tools else ()), *(thinks.literals if thinks else ())]
    tokens = {one: added[one] for one in literals if one in added}
    special = frozenset(one for one, token_id in tokens.items() if tokenizer.is_special(token_id))
    unknown = shows_tools and name is None
    notation = ModelNotation(tools, thinks, tokens, special, _SINGLE in text, unknown)
    if notation.is_harmony and tokenizer.byte_level and MARKS.keys() <= tokens.keys():
        notation = replace(notation, marks={tokens[one]: mark for one, mark in MARKS.items()})
    if notation.is_harmony and template is not None and asks:
        template.history = history_of(template)
    prompt = ", by the generic tool prompt" if template is not None and template.generic_tools else ""
    log.info(f"tool format {notation.facts['tool_calls']}{prompt}", **notation.facts)
    if notation.unknown:
        log.warning(
            "the chat template shows no known tool format: calls stay text",
            known=", ".join(registry.TOOL_PARSERS),
            flag="--tool-call-parser",
        )
    return notation
