"""Victim policies: whose KV is given up when the pool runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.sequence import Sequence

VictimPolicy = Callable[[Iterable[Sequence]], Sequence]
"""Chooses one of the running sequences that have no grant in this step yet, given in order of admission; there is at least
one, the sequence that asks for room. The oldest always gets on, so that every step makes progress."""


def youngest(candidates: Iterable[Sequence]) -> Sequence:
    """The one admitted last: the least work is lost."""
    *_, last = candidates
    return last


def least_important(candidates: Iterable[Sequence]) -> Sequence:
    """The one with the highest `RequestContext.priority` value, of several the one that came last."""
    return max(candidates, key=lambda seq: (seq.context.priority, seq.seq_id))


def most_present(candidates: Iterable[Sequence]) -> Sequence:
    """Of the tenant with the most sequences, the one admitted last."""
    listed = list(candidates)
    counts: dict[str, int] = {}
    for seq in listed:
        counts[seq.context.tenant] = counts.get(seq.context.tenant, 0) + 1
    most = max(counts.values())
    return next(seq for seq in reversed(listed) if counts[seq.context.tenant] == most)


VICTIM_POLICIES: dict[str, VictimPolicy] = {
    "fcfs": youngest,
    "priority": least_important,
    "fair": most_present,
}
"""The victim policy that goes with a queue policy."""
