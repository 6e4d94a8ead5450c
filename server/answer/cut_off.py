"""Whether something cut an answer off within a piece of notation."""

from __future__ import annotations


def cut_tag(text: str, cut_before: str | None, *tags: str) -> bool:
    """Whether a text is the beginning of one of these tags, of which the rest was cut off."""
    if cut_before is None or not text:
        return False
    prefix = text + cut_before
    return any(one.startswith(prefix) or prefix.startswith(one) for one in tags)
