"""`cohort serve --check`: which of several models fit together, before any of them is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A declared model. `need` in bytes. `problem`: why a load of it would fail, None if nothing is known against it. `context`:
    tokens of the longest sequence that its KV holds, None if that is not known or it has none."""

    name: str
    need: int
    pin: bool
    problem: str | None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """`text`: lines for a person. `is_good`: whether every model can be loaded."""

    text: str
    is_good: bool


def report_of(models: Sequence[CheckedModel], budget: float) -> Report:
    """What fits into `budget` bytes: each model beside the pinned ones, and how many of the smallest ones at once."""
    width = max(len("together"), *(len(one.name) for one in models))
    good = [one for one in models if one.problem is None]
    pinned = sum(one.need for one in good if one.pin)
    lines = [f"{'memory':{width}}  {_gib(budget)} for all loaded models, {_gib(pinned)} of it pinned"]
    is_good = pinned <= budget
    if not is_good:
        lines.append(f"{'':{width}}  the pinned models do not fit together")
    for one in models:
        others = pinned - (one.need if one.pin else 0)
        if one.problem is not None:
            verdict = f"cannot be served: {one.problem}"
        elif one.need + others > budget:
            verdict = f"{_gib(one.need)}, does not fit" + (" beside the pinned models" if others else "")
        else:
            context = "" if one.context is None else f", contexts of {one.context:,} tokens"
            verdict = f"{_gib(one.need)}, " + ("pinned" if one.pin else "fits") + context
            lines.append(f"{one.name:{width}}  {verdict}")
            continue
        is_good = False
        lines.append(f"{one.name:{width}}  {verdict}")
    free, count = budget - pinned, 0
    for need in sorted(one.need for one in good if not one.pin):
        if need > free:
            break
        free, count = free - need, count + 1
    most = count + sum(one.pin for one in good)
    lines.append(f"{'together':{width}}  at most {most} of {len(models)} models are loaded at once")
    return Report("\n".join(lines), is_good)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
