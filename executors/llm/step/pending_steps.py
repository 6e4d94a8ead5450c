"""Steps submitted to a device, launched and answered in the order of submission.

While a device computes a step, the host waits without blocking its event loop and launches the next step. On a CPU a step is
done when it is launched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from executors.contract.batch import UnifiedOutput

_SPIN_S = 2e-3
"""Seconds around the expected end of a step in which the device is polled on every turn of the event loop. The loop's timers
are no finer than a millisecond."""
_NAP_S = 1e-3
_BREATH_S = 2e-5
"""Seconds to sleep per poll, so that the thread that reads messages can take the GIL. Without the sleep a poll rarely
releases the GIL, and the next step would wait."""


class PendingStep(Protocol):
    """A launched step."""

    def ready(self) -> bool:
        """Return whether the step is done. Raises the errors that the device reports."""

    def result(self) -> UnifiedOutput:
        """Return the step's output; waits if the step is not done."""


class ComputedStep:
    """A step that was computed when it was launched."""

    def __init__(self, output: UnifiedOutput) -> None:
        self._output = output

    def ready(self) -> bool:
        """See `PendingStep`."""
        return True

    def result(self) -> UnifiedOutput:
        """See `PendingStep`."""
        return self._output


class PendingSteps:
    """Steps in the order of submission: the first launched answers first. Serves one event loop; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: asyncio.Future[None] | None = None
        self._out = 0
        self._usual_s = 0.0
        """Usual time of a step in seconds, estimated from the last ones."""
        self.ended_at = clock()
        """Time on `clock` when the last step ended, in seconds."""

    @property
    def busy(self) -> bool:
        """Return whether a step is in flight."""
        return self._out > 0

    async def run(
        self, launch: Callable[[], PendingStep], check: Callable[[], None]
    ) -> tuple[UnifiedOutput, float]:
        """Launch a step now; return its output and the seconds it took. A step's time begins when the step before it ends.

        `check` is called when the step's turn comes; an exception from it replaces the output. Raises an exception of
        `launch` in its turn.
        """
        before, mine = self._last, asyncio.get_running_loop().create_future()
        self._last, began = mine, self._clock()
        self._out += 1
        try:
            try:
                launched = launch()
            finally:
                if before is not None and not before.done():
                    await asyncio.wait((before,))
            began = max(began, self.ended_at)
            await self._until(launched.ready, began)
            check()
            output = launched.result()
            self.ended_at = self._clock()
            # A slow one (a graph captured before it, say) must not send those after it to sleep.
            seconds = min(self.ended_at - began, 2 * self._usual_s + _SPIN_S)
            self._usual_s += 0.2 * (seconds - self._usual_s)
            return output, self.ended_at - began
        finally:
            self._out -= 1
            mine.set_result(None)

    async def settled(self) -> None:
        """Wait until no step is in flight."""
        while self._last is not None and not self._last.done():
            await asyncio.wait((self._last,))

    async def _until(self, ready: Callable[[], bool], began: float) -> None:
        """Yield to the event loop until `ready()` is true."""
        if ready():
            return
        rest = self._usual_s - (self._clock() - began) - _SPIN_S
        if rest > _NAP_S:
            await asyncio.sleep(rest)
            if ready():  # since when is unknown: look much earlier next time
                self._usual_s *= 0.5
                return
        spin_until = self._clock() + 2 * _SPIN_S
        while not ready():  # the device does not notify the host: the host has to poll
            if self._clock() < spin_until:
                time.sleep(_BREATH_S)  # noqa: ASYNC251 - shorter than timers of event loops can be
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(_NAP_S)
