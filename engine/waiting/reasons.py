"""`WaitReasons`: how long each waiting sequence waited for what."""

from __future__ import annotations

from collections.abc import Callable

from engine.sequence import Sequence
from engine.story import WaitReason


class WaitReasons:
    """Adds up seconds by the reason why the queue stood still, once a step and not once a sequence.

        reason  step      slots          slots     kv_blocks
        steps   |---------|--------------|---------|------->
        seq            begin .................. end            0.1 step, 2.1 slots: the totals' growth between the two

    The reason is that of the whole queue: those behind the first that is not admitted wait for the same thing. A sequence that is
    passed over for a reason of its own (`hold`) has that reason from then on. Written by `WaitingQueue` and by the loop task.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._totals = dict.fromkeys(WaitReason, 0.0)
        self._reason = WaitReason.STEP
        self._since = clock()
        self._begun: dict[Sequence, dict[WaitReason, float]] = {}
        """Totals when each sequence began to wait."""
        self._held: dict[Sequence, tuple[WaitReason, float, dict[WaitReason, float]]] = {}
        """Reason of a sequence's own, since when, and what it had waited for before."""

    def wait_for(self, reason: WaitReason | None) -> None:
        """From now on the queue waits for this; None: for the step to end."""
        self._count()
        self._reason = reason or WaitReason.STEP

    def begin(self, seq: Sequence) -> None:
        """A sequence begins to wait, unless it waits already."""
        if seq not in self._begun:
            self._count()
            self._begun[seq] = dict(self._totals)

    def hold(self, seq: Sequence, reason: WaitReason) -> None:
        """A waiting sequence is passed over for a reason of its own."""
        held = self._held.get(seq)
        if held is None or held[0] is not reason:
            self._held[seq] = reason, self._clock(), self._waited(seq)

    def end(self, seq: Sequence) -> tuple[float, dict[WaitReason, float]]:
        """A sequence waits no longer. Returns the time, and the seconds it has waited by reason, without those of 0."""
        waited = self._waited(seq)
        self._begun.pop(seq, None)
        self._held.pop(seq, None)
        return self._since, {reason: seconds for reason, seconds in waited.items() if seconds > 0}

    def _count(self) -> None:
        now = self._clock()
        self._totals[self._reason] += now - self._since
        self._since = now

    def _waited(self, seq: Sequence) -> dict[WaitReason, float]:
        self._count()
        held = self._held.get(seq)
        if held is not None:
            reason, since, waited = held
            return {**waited, reason: waited[reason] + self._since - since}
        begun = self._begun.get(seq)
        if begun is None:
            return dict.fromkeys(WaitReason, 0.0)
        return {reason: total - begun[reason] for reason, total in self._totals.items()}
