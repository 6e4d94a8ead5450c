"""Notations of tool calls by name, and which of them a model speaks."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from server.chat.tools import hermes, llama3_json, mistral
from server.chat.tools.hermes import Hermes
from server.chat.tools.llama3_json import Llama3Json
from server.chat.tools.mistral import Mistral
from server.chat.tools.notation import ToolNotation

_MAKERS: Mapping[str, Callable[[str], ToolNotation]] = {
    "hermes": lambda template: Hermes("hermes"),
    "llama3_json": lambda template: Llama3Json("llama3_json"),
    "mistral": lambda template: Mistral(
        "mistral", named=mistral.ARGUMENTS in template, with_ids=mistral.CALL_ID in template
    ),
}

TOOL_PARSERS = tuple(_MAKERS)
"""The names that `--tool-call-parser` knows, which are vLLM's."""


def tool_notation(name: str, template: str) -> ToolNotation:
    """The notation of this name, in the variant that the chat template shows."""
    return _MAKERS[name](template)


def detected(template: str, tokens: Container[str]) -> str | None:
    """The name of the notation that a chat template shows, else the one that the tokenizer has a token for."""
    if mistral.OPEN in template:
        return "mistral"
    if hermes.OPEN in template:
        return "hermes"
    # The templates of Llama 3.2 write calls without the tag; the key is what they have in common.
    if llama3_json.TAG in template or ("<|start_header_id|>" in template and '"parameters"' in template):
        return "llama3_json"
    for name, token in (("mistral", mistral.OPEN), ("hermes", hermes.OPEN), ("llama3_json", llama3_json.TAG)):
        if token in tokens:
            return name
    return None
