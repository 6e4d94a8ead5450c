"""Work that can wait until nobody computes, a piece at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from executors.llm.step.pending_steps import StepQueue

QUIET_S = 0.05
"""How long nothing must have been computed: between two steps of a stream there is less."""
_BETWEEN_S = 2e-3
"""Left free after a piece, so that a step that has come meanwhile is begun first."""


class IdleWork:
    """On the event loop that computes the steps, which a piece holds up as a step does."""

    def __init__(
        self, steps: StepQueue, piece: Callable[[], bool], wait: Callable[[], float] = lambda: 0.0
    ) -> None:
        """`piece` does some of the work; False: there is no more. `wait`: seconds before which the next is not to be done."""
        self._steps = steps
        self._piece = piece
        self._wait = wait
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on."""
        self._later(QUIET_S)

    def stop(self) -> None:
        """Whatever is left stays undone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._steps.busy or time.perf_counter() - self._steps.ended_at < QUIET_S:
            self._later(QUIET_S)
        elif (left := self._wait()) > 0:
            self._later(left)
        elif self._piece():
            self._later(_BETWEEN_S)
