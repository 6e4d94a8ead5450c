"""Notations of tool calls by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server.answer.tools import mistral
from server.answer.tools.hermes import Hermes
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.mistral import Mistral
from server.answer.tools.notation import ToolNotation

_MAKERS: Mapping[str, Callable[[str], ToolNotation]] = {
    "hermes": lambda template: Hermes("hermes"),
    "llama3_json": lambda template: Llama3Json("llama3_json"),
    "mistral": lambda template: Mistral(
        "mistral", named=mistral.ARGUMENTS in template, with_ids=mistral.CALL_ID in template
    ),
}

TOOL_PARSERS = tuple(_MAKERS)
"""Names that `--tool-call-parser` accepts, which are vLLM's."""


def tool_notation(name: str, template: str) -> ToolNotation:
    """The notation of this name, in the variant that the chat template shows."""
    return _MAKERS[name](template)
