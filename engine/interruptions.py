"""`Interruptions`: what failures of the executor cost one call."""

from __future__ import annotations

from collections import Counter


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
        self._since: dict[int, tuple[float, bool]] = {}
        """When each interrupted choice was interrupted or, with True, admitted again."""

    @property
    def count(self) -> int:
        """Interruptions, of all choices."""
        return self.causes.total()

    def interrupt(self, now: float, choice: int, cause: str) -> None:
        """A failure rolled a sequence back."""
        self._book(now, choice)
        self.causes[cause] += 1
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
