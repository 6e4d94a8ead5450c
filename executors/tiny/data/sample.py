"""What the generator makes: a turn of one skill, and a conversation that ends in a prompt to be answered."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""An OpenAI chat message."""

Tool = dict[str, Any]
"""An OpenAI tool definition, `{"type": "function", "function": {...}}`."""


@dataclass(frozen=True)
class Turn:
    """One user message, the answer to learn, and what a grader needs to know to judge another answer."""

    skill: str
    user: str
    answer: str
    check: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """A conversation in OpenAI form whose last message asks for `answer`.

    `messages` ends with a user (or tool) message; `tools` are the tools offered; `skill` and `check` describe the last
    turn only. Training learns every assistant message in `messages` and `answer`, without the `given` part that it begins with;
    if its turns are `apart`, each as if it were the only one behind the system prompt.
    """

    skill: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    answer: str
    check: Mapping[str, Any]
    given: str = ""
    apart: bool = False
