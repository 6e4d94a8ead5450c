"""`WaitReasons`: how long each waiting sequence waited for what, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.sequence import Sequence
from engine.story import WaitReason

_NOTHING = 1e-9
"""Seconds below which a difference of two totals is the rounding of floats."""


@dataclass(slots=True)
class _Wait:
    """One sequence's wait. Its seconds by reason are the totals' growth since `totals_before`, corrected by `shift`."""

    totals_before: dict[WaitReason, float]
    shift: dict[WaitReason, float] = field(default_factory=dict)
    """Seconds that the queue spent for its reason and this sequence for one of its own: they sum to 0."""


class WaitReasons:
    """Splits the time of every waiting sequence by reason. The work of a step is in proportion to the sequences that have a
    reason of their own in it, not to those that wait.

        steps    |    1    |     2     |     3     |    4
        queue      slots       slots       tokens      slots      the reason of all that have none of their own
        seq          begin     prefix      tokens      slots end  0.5 step, 1 prefix, 1 tokens, 0.5 slots
                     step

    One reason of the queue suffices for most: those behind the first sequence that is not admitted wait for the same thing. A
    sequence that is passed over (`hold`), or that has just come, has a reason of its own until the next step is put together.

    Written by `WaitingQueue` and by the loop task. The time in which a step is put together counts with that step.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._totals = dict.fromkeys(WaitReason, 0.0)
        """Seconds for which the queue had each reason."""
        self._reason = WaitReason.STEP
        self._since = clock()
        self._frozen = False
        """True while a step is put together."""
        self._waits: dict[Sequence, _Wait] = {}
        self._own: dict[Sequence, tuple[WaitReason, float]] = {}
        """Reasons that sequences have of their own in this step, and since when."""

    # -- steps ---------------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is put together from now on: all reasons of the step before end."""
        self._settle()
        self._frozen = True

    def end_step(self, reason: WaitReason | None) -> None:
        """The step is put together. Until the next one the queue waits for `reason`; None: for the step to end."""
        self._frozen = False
        self._reason = reason or WaitReason.STEP

    def wait_for(self, reason: WaitReason) -> None:
        """From now on, and until the next step is put together, every sequence waits for this."""
        self._settle()
        self._reason = reason

    # -- sequences -----------------------------------------------------------------------------------------------------

    def begin(self, seq: Sequence) -> None:
        """A sequence begins to wait, unless it waits already: for the next step at first, whatever others wait for. While the
        executor is away it waits for that."""
        if seq in self._waits:
            return
        self._count()
        self._waits[seq] = _Wait(dict(self._totals))
        if self._reason is not WaitReason.RECOVERY:
            self._own[seq] = WaitReason.STEP, self._since

    def hold(self, seq: Sequence, reason: WaitReason) -> None:
        """A waiting sequence has a reason of its own from now until the next step is put together."""
        self._count()
        self._settle_one(seq)
        self._own[seq] = reason, self._since

    def end(self, seq: Sequence) -> tuple[float, dict[WaitReason, float]]:
        """A sequence waits no longer. Returns the time, and the seconds it has waited by reason, without those of 0."""
        waited = self.so_far(seq)
        self._waits.pop(seq, None)
        self._own.pop(seq, None)
        return self._since, waited

    def so_far(self, seq: Sequence) -> dict[WaitReason, float]:
        """Seconds for which a sequence has waited until now, by reason, without those of 0; none if it does not wait."""
        self._count()
        if (wait := self._waits.get(seq)) is None:
            return {}
        self._settle_one(seq)
        shift = wait.shift
        spent = (
            (one, total - wait.totals_before[one] + shift.get(one, 0.0))
            for one, total in self._totals.items()
        )
        return {one: seconds for one, seconds in spent if seconds > _NOTHING}

    # -- time ----------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        if self._frozen:
            return
        now = self._clock()
        self._totals[self._reason] += now - self._since
        self._since = now

    def _settle(self) -> None:
        """Book what sequences waited for reasons of their own; they have none any more."""
        self._count()
        for seq in self._own:
            self._settle_one(seq)
        self._own.clear()

    def _settle_one(self, seq: Sequence) -> None:
        """Book a sequence's own reason up to now."""
        if (own := self._own.get(seq)) is None or (wait := self._waits.get(seq)) is None:
            return
        reason, since = own
        seconds = self._since - since
        if seconds > 0 and reason is not self._reason:
            shift = wait.shift
            shift[reason] = shift.get(reason, 0.0) + seconds
            shift[self._reason] = shift.get(self._reason, 0.0) - seconds
        self._own[seq] = reason, self._since
