"""`SequenceState`: the slots in which a sequence's state lies, and those that it keeps for others."""

from __future__ import annotations

from typing import NamedTuple

ZEROS = -1
"""Source of a sequence that begins at position 0."""


class Kept(NamedTuple):
    """The state after the first `position` tokens of a sequence, in a slot."""

    position: int
    slot: int


class SequenceState:
    """The state of one sequence. Written by StatePool, and by the packing of a step.

    - `slot`: where the state is once the steps submitted so far, and the one being assembled, are computed.
    - `source`: where the step being assembled reads it; `slot` where it writes it at the same place.
    - `before`: while drafts are verified, the slot with the state before their step's first token; None else.
    - `snapshots`: those that this step leaves on its way.
    - `unnamed`: snapshots that the sequence holds until the tokens before them are known, which name them.
    - `fork`: the slot with the state behind all of the prompt but its last token, held for other choices; None if they need none.
    - `rolling`: keys of the latest snapshots behind the prompt, the oldest first.
    """

    __slots__ = ("before", "fork", "rolling", "slot", "snapshots", "source", "unnamed")

    def __init__(self, slot: int) -> None:
        self.slot = self.source = slot
        self.before: int | None = None
        self.snapshots: list[Kept] = []
        self.unnamed: list[Kept] = []
        self.fork: int | None = None
        self.rolling: list[bytes] = []

    @property
    def holds_more(self) -> bool:
        """Whether it holds slots beside its own."""
        return self.fork is not None or bool(self.unnamed)

    def advance(self, slot: int) -> None:
        """The step being assembled writes the state to this slot."""
        self.source, self.slot = self.slot, slot

    def verify(self, slot: int) -> None:
        """The step being assembled writes the state to this slot, and drafts decide whether it counts."""
        self.before = self.slot
        self.advance(slot)

    def settle(self, accepted: bool) -> int | None:
        """Go on from the state behind the drafts, or from the one before their step. Returns the slot of the other."""
        before, self.before = self.before, None
        if accepted or before is None:
            return before
        other, self.slot = self.slot, before
        self.source = before
        return other

    def packed(self) -> list[Kept]:
        """The step is put together: the next one reads what it writes. Returns the snapshots that it leaves."""
        self.source = self.slot
        snapshots, self.snapshots = self.snapshots, []
        return snapshots

    def keep(self, position: int, slot: int) -> None:
        """Hold a slot until the snapshot in it has a name."""
        self.unnamed.append(Kept(position, slot))

    def take_named(self, num_tokens: int) -> list[Kept]:
        """The snapshots up to a position, which it holds no longer."""
        done = [one for one in self.unnamed if one.position <= num_tokens]
        if done:
            self.unnamed = [one for one in self.unnamed if one.position > num_tokens]
        return done

    def hold_fork(self, slot: int | None) -> None:
        """Hold a slot for other choices, or none any longer."""
        self.fork = slot

    def roll(self, key: bytes, most: int) -> bytes | None:
        """The latest snapshot behind the prompt has this key; returns that of the oldest one if there are more than `most`."""
        self.rolling.append(key)
        return self.rolling.pop(0) if len(self.rolling) > most else None
