"""Reasoning before an answer: the formats of models, and the parsers that separate it from the answer as it is generated.

base.py       the interface: where an answer begins, how it is split, what its grammar begins with
tags.py       a block between two tags, such as `<think>` and `</think>`
harmony.py    gpt-oss: messages on channels (server/answer/harmony/)
registry.py   the notations by name, and detection of a chat template's
"""

from server.answer.reasoning.base import (
    Place,
    ReasoningNotation,
    ReasoningParser,
    ReasoningTokens,
    Thought,
    continued_text,
)
from server.answer.reasoning.registry import REASONING, detected

__all__ = [
    "REASONING",
    "Place",
    "ReasoningNotation",
    "ReasoningParser",
    "ReasoningTokens",
    "Thought",
    "continued_text",
    "detected",
]
