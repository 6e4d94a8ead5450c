"""Positions in a prompt behind which later prompts are likely to part from it, for layers that keep something there only.

Where a part of a conversation ends in its prompt is the template's secret: a text may be trimmed, escaped or moved. So the
conversation is rendered once more with a mark behind that part; the two prompts are the same up to there:

    prompt       ... tools <end> user How is Rome? <end> assistant
    marked       ... tools <end> user How is Rome?MARK <end> assistant
    opening      ... tools <end> user MARK                             what a new conversation with these tools has in common
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InvalidRequest
from server.templates.message_forms import Message, TookTooMuch

MARK = "\u2603 cohortmark"
"""A text whose first character no prompt has at that place."""
MARK_TOOL = "cohort_mark"
"""Name of a tool behind the one that is marked."""
SECONDS = 1.0
"""Time after which no further position is looked for: positions save time, and must not cost a large prompt its deadline."""
_SYSTEM = ("system", "developer")

Tools = Sequence[Mapping[str, Any]]
Rendered = Callable[[Sequence[Message], Tools], str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a conversation. `opening`: position where a new conversation with the same system prompt and tools parts from
    it, 0 if unknown. `marked`: positions behind the parts that the client has marked, in their order."""

    ids: tuple[int, ...]
    opening: int = 0
    marked: tuple[int, ...] = ()

    @property
    def cache_points(self) -> tuple[int, ...]:
        """All of them, rising."""
        return tuple(sorted({self.opening, *self.marked} - {0}))


def opening_of(messages: Sequence[Message]) -> list[Message] | None:
    """Another conversation that begins like this one: its first messages are the system's. None if it is the same."""
    first = 0
    while first < len(messages) and messages[first]["role"] in _SYSTEM:
        first += 1
    opening = [*messages[:first], {"role": "user", "content": MARK}]
    return None if messages == opening else opening


def ends_in(text: str, variants: Sequence[tuple[Sequence[Message], Tools]], render: Rendered) -> list[int]:
    """For each variant of a conversation the number of characters that its prompt has in common with `text`; 0 for one that the
    template refuses or whose mark it does not show, and for all that come after SECONDS. Raises TookTooMuch."""
    start = time.monotonic()
    ends = []
    for messages, tools in variants:
        if time.monotonic() - start > SECONDS:
            ends.append(0)
            continue
        try:
            end = common(text, render(messages, tools))
            ends.append(end if end < len(text) else 0)
        except TookTooMuch:
            raise
        except InvalidRequest:
            ends.append(0)
    return ends


def common(one: str, other: str) -> int:
    """Number of characters that two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def num_tokens(token_ends: Sequence[int], end: int) -> int:
    """How many tokens at the beginning lie within the first `end` characters. `token_ends`: the index behind the last character
    of each token; 0 for tokens that were added around the text."""
    count = len(token_ends)
    while count and not token_ends[count - 1]:
        count -= 1
    return bisect_right(token_ends, end, hi=count)
