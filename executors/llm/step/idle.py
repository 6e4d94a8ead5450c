"""Background work done in pieces while no step is being computed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from executors.llm.step.pending_steps import PendingSteps

QUIET_S = 0.05
"""Idle time before a piece of work may run, in seconds. The gap between two steps of a stream is shorter."""
_BETWEEN_S = 2e-3
"""Pause after a piece, in seconds, so that a step that arrived meanwhile starts first."""


class IdleWork:
    """Runs pieces of work on the event loop that computes the steps. A piece blocks the loop as a step does."""

    def __init__(
        self, steps: PendingSteps, piece: Callable[[], bool], wait: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`piece` does some of the work and returns False if none is left. `wait` returns the seconds to wait before the next
        piece."""
        self._steps = steps
        self._piece = piece
        self._wait = wait
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the work."""
        self._later(QUIET_S)

    def stop(self) -> None:
        """Stop the work; what is left stays undone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._steps.busy or time.perf_counter() - self._steps.ended_at < QUIET_S:
            self._later(QUIET_S)
        elif (seconds := self._wait()) > 0:
            self._later(seconds)
        elif self._piece():
            self._later(_BETWEEN_S)
