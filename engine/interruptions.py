"""`Interruptions`: what failures of the executor cost one call."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Outage:
    """A time without an executor, in seconds of the engine's clock: from its loss, or a step that failed, until the next life is
    ready. `GET /v1/steps`, stories and the console all take the duration from here. Written by `Recovery`.
    """

    epoch: int
    """The executor life that ended."""
    began: float
    cause: str
    """As in `Interruptions.causes`."""
    ended: float | None = None
    """None until the next life is ready, and for ever if none is."""


class Interruptions:
    """Counts the interruptions of a call's sequences by their cause, and splits the time each one takes.

        failure ........ admitted ......... next token
                 restart          recompute

    Times are seconds of the engine's clock. A sequence that fails again before its next token is interrupted once more; what it
    had recomputed until then was lost, too. Written by the call's story.
    """

    def __init__(self) -> None:
        self.causes: Counter[str] = Counter()
        """Interruptions of all choices, by cause: `executor_died:signal`, say."""
        self.restart_seconds = 0.0
        """Until the sequences ran again, added up over them."""
        self.recompute_seconds = 0.0
        """Until their next tokens from then on."""
        self.outages: list[Outage] = []
        """Times without an executor that interrupted it, each once for any number of choices."""
        self._since: dict[int, tuple[float, bool]] = {}
        """When each interrupted choice was interrupted or, with True, admitted again."""

    @property
    def count(self) -> int:
        """Interruptions, of all choices."""
        return self.causes.total()

    def outage_seconds(self, now: float) -> float:
        """Seconds without an executor, choices not added up; an outage under way counts up to `now`."""
        return sum(max(0.0, (now if one.ended is None else one.ended) - one.began) for one in self.outages)

    def interrupt(self, now: float, choice: int, cause: str, outage: Outage | None = None) -> None:
        """A failure rolled a sequence back. `outage`: None if the executor went on."""
        self._book(now, choice)
        self.causes[cause] += 1
        if outage is not None and outage not in self.outages:
            self.outages.append(outage)
        self._since[choice] = now, False

    def admit(self, now: float, choice: int) -> bool:
        """A sequence begins to run. Returns whether it does so again after an interruption."""
        if choice not in self._since:
            return False
        self._book(now, choice)
        self._since[choice] = now, True
        return True

    def end(self, now: float, choice: int) -> None:
        """A sequence gave its next token, ended, or was rolled back for another reason."""
        self._book(now, choice)

    def _book(self, now: float, choice: int) -> None:
        if (since := self._since.pop(choice, None)) is None:
            return
        began, runs = since
        if runs:
            self.recompute_seconds += max(0.0, now - began)
        else:
            self.restart_seconds += max(0.0, now - began)
