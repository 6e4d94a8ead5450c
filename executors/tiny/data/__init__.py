"""The generator of everything `cohort-tiny` learns and is measured on; the same seed gives the same text."""

from collections.abc import Iterator, Mapping

from executors.tiny.data.dialogs import (
    DEFAULT_WEIGHTS,
    SKILL_NAMES,
    conversation,
    questions_apart,
    tool_result,
)
from executors.tiny.data.forced_calls import forced_call
from executors.tiny.data.phrasing import Draw, digest
from executors.tiny.data.sample import Message, Sample, Tool

__all__ = [
    "DEFAULT_WEIGHTS",
    "SKILL_NAMES",
    "Message",
    "Sample",
    "Tool",
    "held_out_samples",
    "training_samples",
]

_TOOL_SHARE = 0.33
_APART_SHARE = 0.7
"""Of conversations with tools, those whose questions do not see each other."""
_RESULT_SHARE = 0.01
_FORCED_SHARE = 0.01
_TOOL_TURNS = (1, 2, 3, 4, 5, 5, 6, 6)
"""The tools take longer to read than anything else: several calls of each conversation are learned at that price."""


def training_samples(seed: int, weights: Mapping[str, float] | None = None) -> Iterator[Sample]:
    """Yield conversations to learn from, without end."""
    draw = Draw(seed)
    share = dict(weights or DEFAULT_WEIGHTS)
    names = list(share)
    while True:
        roll = draw.rng.random()
        turns = draw.rng.choice((1, 1, 1, 2, 2, 3, 3, 4, 5, 6))
        if roll < _RESULT_SHARE:
            yield tool_result(draw)
        elif roll < _RESULT_SHARE + _FORCED_SHARE:
            yield forced_call(draw)
        elif roll < _RESULT_SHARE + _FORCED_SHARE + _TOOL_SHARE:
            if draw.chance(_APART_SHARE):
                yield questions_apart(draw, share)
            else:
                yield conversation(draw, "tools", draw.rng.choice(_TOOL_TURNS), weights=share)
        else:
            yield conversation(
                draw, draw.rng.choices(names, [share[name] for name in names])[0], turns, weights=share
            )


def held_out_samples(
    skill: str, count: int, seed: int = 0, turns: int = 1, seen: bool = False
) -> list[Sample]:
    """Return `count` conversations of `turns` turns ending in `skill`, with operands and phrasings never trained on.

    `seen` draws from the training side of the split instead, to tell memory from skill.
    """
    draw = Draw(digest("held out", skill, seed, turns), held_out=not seen)
    with_tools = None if turns > 1 else False
    return [conversation(draw, skill, turns, with_tools=with_tools) for _ in range(count)]
