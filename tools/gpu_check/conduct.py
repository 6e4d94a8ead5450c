"""Runs the parts one after the other within the budget, and remembers after each where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.gpu_check.plan import DEVICE, Part
from tools.gpu_check.record import Outcome, Record, State

Launch = Callable[[Part, float], Outcome]
"""Runs a part for at most so many seconds; never raises for what the part does."""
_MARGIN = 5.0
"""Seconds kept for ending what is over its time and for writing the report."""
NO_TIME = "no time left in this call: call again to go on"


class Conductor:
    """`launch` and `clock` are given so that a test can play both."""

    def __init__(
        self, parts: Sequence[Part], launch: Launch, path: Path, identity: dict[str, Any], *,
        budget: float, clock: Callable[[], float], say: Callable[[str], None] = print,
        kept: Callable[[Record], object] = lambda record: None, sources: Mapping[str, str] | None = None,
        device_kind: str = "", shared: bool = False,
    ) -> None:  # fmt: skip
        """`identity` of what is checked, the device left out: that is known once its part has run. `kept` is called after
        each part with all that is known by then. `sources` of a part: what it alone depends on. `device_kind` is recorded.
        `shared`: no part takes so long that those behind it would not have the least they need."""
        self._device_kind, self._shared = device_kind, shared
        self._kept, self._sources = kept, sources or {}
        self._parts, self._launch, self._path, self._identity = parts, launch, path, identity
        self._budget, self._clock, self._say = budget, clock, say
        self._began = clock()
        self.record = Record()
        self._spent_before = 0.0
        self._saves = True

    def run(self, fresh: bool = False, anew: Sequence[str] = ()) -> Record:
        """Everything that is not settled, and the parts named in `anew` in any case. `fresh`: all of it."""
        before = Record() if fresh else Record.load(self._path)
        device = self._try(DEVICE)
        # A device that is not there for once, or not to be had, takes nothing back that was found on it.
        self._saves = device.state is State.PASS or not before.outcomes
        self._resume(before, device)
        for name in anew:
            self.record.outcomes.pop(name, None)
        for number, part in enumerate(self._parts):
            if part.name == DEVICE.name:
                continue
            later = (
                sum(one.least for one in self._parts[number + 1 :] if self._open(one))
                if self._shared
                else 0.0
            )
            if device.state is not State.PASS:
                self._keep(part, Outcome(State.NOT_RUN, detail=f"no device: {device.detail}", settled=False))
            elif self._open(part):
                self._keep(part, self._try(part, later))
            else:
                self._say(f"{part.name}: {self.record.outcomes[part.name].state}, from an earlier call")
        return self.record

    def _open(self, part: Part) -> bool:
        """Whether a part is still to be run."""
        kept = self.record.outcomes.get(part.name)
        return kept is None or not kept.settled or kept.sources != self._sources.get(part.name, "")

    def _resume(self, before: Record, device: Outcome) -> None:
        identity = {**self._identity, **device.figures.get("identity", {})}
        if before.outcomes and before.identity == identity:
            self.record = before
        elif before.outcomes and self._saves:
            self._say("the record before is of other sources or another machine: beginning anew")
        self.record.identity = identity
        self.record.device_kind = self._device_kind or self.record.device_kind
        self._spent_before = self.record.seconds
        # It runs in every call: it says what machine this is.
        self._keep(DEVICE, replace(device, settled=False))

    def _try(self, part: Part, later: float = 0.0) -> Outcome:
        """Run a part within what is left of the budget without the seconds that those behind it need."""
        left = self._budget - (self._clock() - self._began) - _MARGIN - later
        if left < part.least:
            return Outcome(State.NOT_RUN, detail=NO_TIME, settled=False)
        self._say(f"{part.name}: {part.what} ...")
        allowed = min(part.limit, left)
        outcome = self._launch(part, allowed)
        if outcome.state is State.FAIL and allowed < part.limit and outcome.seconds >= allowed:
            # It was this call's time that ended, not the part's own: nothing is known against it.
            return replace(outcome, state=State.NOT_RUN, detail=NO_TIME, settled=False)
        return outcome

    def _keep(self, part: Part, outcome: Outcome) -> None:
        self.record.outcomes[part.name] = replace(outcome, sources=self._sources.get(part.name, ""))
        self.record.seconds = self._spent_before + self._clock() - self._began
        if self._saves:
            self.record.save(self._path)
        self._kept(self.record)
        detail = f": {outcome.detail.splitlines()[0]}" if outcome.detail else ""
        self._say(f"{part.name}: {outcome.state}, {outcome.seconds:.1f} s{detail}")
