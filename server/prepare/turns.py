"""Messages of a chat that is made of another API's conversation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.errors import InvalidRequest
from server.schemas.chat import ChatMessage, ContentPart, ToolCall

TEXT = "text"
"""Type of a part of text."""


@dataclass(slots=True)
class Turn:
    """One message of the chat."""

    role: str
    parts: list[ContentPart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None
    places: list[str] = field(default_factory=list)
    """The paths of the calls' arguments in the body, where these are texts."""

    def message(self) -> ChatMessage:
        """In the chat's form: a single text as a text."""
        content: Any = self.parts
        if not self.parts:
            content = None if self.calls else ""
        elif len(self.parts) == 1 and self.parts[0].type == TEXT:
            content = self.parts[0].text
        members: dict[str, Any] = {"role": self.role, "content": content}
        members |= {"tool_calls": self.calls or None, "tool_call_id": self.tool_call_id, "name": self.name}
        return ChatMessage.model_construct(**members)


@contextlib.contextmanager
def naming_arguments(turns: Sequence[Turn]) -> Iterator[None]:
    """Name arguments of calls in refusals by their paths in the body, in place of those in the chat of these turns."""
    try:
        yield
    except InvalidRequest as error:
        match (error.param or "").split("."):
            case ["messages", at, "tool_calls", number, "function", "arguments"]:
                error.rename(turns[int(at)].places[int(number)])
        raise


def folded_turns(turns: Sequence[Turn]) -> list[Turn] | None:
    """The turns with a user's text behind a tool's result as part of it, and with later words of the system as the user's."""
    out: list[Turn] = []
    for number, turn in enumerate(turns):
        late = number > 0 and turn.role in ("system", "developer")
        role = "user" if late else turn.role
        if role == "user" and out and out[-1].role in ("tool", "user"):
            out[-1] = replace(out[-1], parts=[*out[-1].parts, *turn.parts])
        else:
            out.append(replace(turn, role=role))
    return out if [turn.role for turn in out] != [turn.role for turn in turns] else None
