"""`cache_control`: the blocks that a client marks, and the conversation with a text behind one of them, which shows its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import InvalidRequest
from server.prepare.cache_points import MARK, MARK_TOOL
from server.prepare.turns import TEXT, Turn
from server.schemas.chat import ContentPart, FunctionCall, FunctionDefinition, Tool, ToolCall

MOST = 4
"""Marks of one request, as with Anthropic."""
FIELD = "cache_control"


@dataclass(frozen=True, slots=True)
class Mark:
    """A marked block. `name`: the field's name for the header of what has no effect. `part`: the text in which the block ends,
    behind `length` characters. `call`: a call. `num_tools`: tools up to the marked one."""

    name: str
    part: ContentPart | None = None
    length: int = 0
    call: ToolCall | None = None
    num_tools: int = 0

    def turns(self, turns: Sequence[Turn]) -> list[Turn]:
        """The turns with a text behind the block. Modifies none."""
        if self.part is None and self.call is None:
            return list(turns)
        return [
            replace(turn, parts=[*map(self._part, turn.parts)], calls=[*map(self._call, turn.calls)])
            for turn in turns
        ]

    def tools(self, tools: Sequence[Tool] | None) -> list[Tool] | None:
        """The tools with another one behind the marked one."""
        if not self.num_tools or tools is None:
            return None if tools is None else list(tools)
        function = FunctionDefinition.model_construct(name=MARK_TOOL, description=MARK, parameters={})
        return [*tools[: self.num_tools], Tool.model_construct(type="function", function=function)]

    def _part(self, part: ContentPart) -> ContentPart:
        if part is not self.part:
            return part
        return ContentPart.model_construct(type=TEXT, text=(part.text or "")[: self.length] + MARK)

    def _call(self, call: ToolCall) -> ToolCall:
        if call is not self.call:
            return call
        arguments: Any = {**call.function.arguments, MARK: MARK}  # type: ignore[dict-item]
        function = FunctionCall.model_construct(name=call.function.name, arguments=arguments)
        return ToolCall.model_construct(id=call.id, type="function", function=function)


def last_of(turns: Sequence[Turn]) -> Mark | None:
    """The mark behind the last block of a conversation, which is no reasoning; None if there is none."""
    for turn in reversed(turns):
        if turn.calls:
            return Mark(FIELD, call=turn.calls[-1])
        for part in reversed(turn.parts):
            if part.type == TEXT and part.text:
                return Mark(FIELD, part, len(part.text))
    return None


def check(marks: Sequence[Mark]) -> None:
    """Raises InvalidRequest for too many marks."""
    if len(marks) > MOST:
        message = f"A maximum of {MOST} blocks with '{FIELD}' may be provided. Found {len(marks)}."
        raise InvalidRequest(message, FIELD, "invalid_value")
