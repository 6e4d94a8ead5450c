"""Notations of tool calls by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from server.answer.tools import gemma, json_lists, mistral, pythonic
from server.answer.tools.deepseek import DeepSeek
from server.answer.tools.deepseek_v32 import DeepSeekV4, DeepSeekV32
from server.answer.tools.gemma import Gemma
from server.answer.tools.glm45 import Glm45
from server.answer.tools.harmony import Harmony
from server.answer.tools.hermes import Hermes
from server.answer.tools.json_lists import JsonList
from server.answer.tools.kimi_k2 import KimiK2
from server.answer.tools.llama3_json import Llama3Json
from server.answer.tools.minimax_m2 import MinimaxM2
from server.answer.tools.mistral import Mistral
from server.answer.tools.notation import ToolNotation
from server.answer.tools.pythonic import Pythonic
from server.answer.tools.qwen3_coder import Qwen3Coder
from server.answer.tools.seed_oss import SeedOss

_MAKERS: Mapping[str, Callable[[str], ToolNotation]] = {
    "hermes": lambda template: Hermes("hermes"),
    "llama3_json": lambda template: Llama3Json("llama3_json"),
    "mistral": lambda template: Mistral(
        "mistral", has_marks=mistral.ARGUMENTS in template, with_ids=mistral.CALL_ID in template
    ),
    "qwen3_coder": lambda template: Qwen3Coder("qwen3_coder"),
    "seed_oss": lambda template: SeedOss("seed_oss"),
    "minimax_m2": lambda template: MinimaxM2("minimax_m2"),
    "glm45": lambda template: Glm45("glm45"),
    **{name: lambda template, name=name: JsonList(name) for name in json_lists.TAGS},  # type: ignore[misc]
    "deepseek_v3": lambda template: DeepSeek("deepseek_v3", fenced=True),
    "deepseek_v31": lambda template: DeepSeek("deepseek_v31"),
    "deepseek_v32": lambda template: DeepSeekV32("deepseek_v32"),
    "deepseek_v4": lambda template: DeepSeekV4("deepseek_v4"),
    "kimi_k2": lambda template: KimiK2("kimi_k2"),
    "openai": lambda template: Harmony("openai"),
    **{name: lambda template, name=name: Pythonic(name) for name in pythonic.FORMS},  # type: ignore[misc]
    **{name: lambda template, name=name: Gemma(name) for name in gemma.FORMS},  # type: ignore[misc]
}

TOOL_PARSERS = tuple(_MAKERS)
"""Names that `--tool-call-parser` accepts, which are vLLM's."""


def tool_notation(name: str, template: str) -> ToolNotation:
    """The notation of this name, in the variant that the chat template shows."""
    return _MAKERS[name](template)
