"""Notations of reasoning by name."""

from __future__ import annotations

from collections.abc import Container, Mapping

from server.answer.harmony.marks import ANALYSIS, CHANNEL, CONSTRAIN, MESSAGE
from server.answer.reasoning.base import ReasoningNotation
from server.answer.reasoning.harmony import Channels
from server.answer.reasoning.tags import Tags

REASONING: Mapping[str, ReasoningNotation] = {
    one.name: one
    for one in (
        Tags("qwen3"),
        Tags("deepseek_r1", assumed=True),
        Tags("mistral", "[THINK]", "[/THINK]"),
        Tags("seed_oss", "<seed:think>", "</seed:think>"),
        Tags("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
        Tags("gemma4", "<|channel>thought", "<channel|>", tokens=("<|channel>",)),
        Tags("thinking", "<thinking>", "</thinking>"),
        Tags("thought", "<thought>", "</thought>"),
        Channels("openai_gptoss"),
        *(Tags(name) for name in ("deepseek_v3", "glm45", "kimi_k2", "minimax_m2", "olmo3")),
    )
}
"""Reasoning notations by the names that `--reasoning-parser` accepts, which are vLLM's where it has them. The last five are
other names of "qwen3"."""
_DETECTED = ("qwen3", "mistral", "seed_oss", "cohere", "gemma4", "thinking", "thought")


def detected(template: str, tokens: Container[str] = ()) -> ReasoningNotation | None:
    """The notation that a chat template shows, or that only the model's added `tokens` show. A template never says that a tag is
    assumed: the operator does."""
    if CHANNEL in template and (f"{ANALYSIS}{MESSAGE}" in template or CONSTRAIN in tokens):
        return REASONING["openai_gptoss"]
    for name in _DETECTED:
        notation = REASONING[name]
        assert isinstance(notation, Tags)
        if notation.closing in template:
            return notation
    return None
