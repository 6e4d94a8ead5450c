"""Steps submitted to a device, launched and answered in the order of submission.

While a device computes a step, the host waits without blocking its event loop and launches the next step. On a CPU a step is
done when it is launched.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from executors.contract.batch import UnifiedOutput
from executors.contract.errors import ExecutorDied

_log = logging.getLogger(__name__)

_SPIN_S = 2e-3
"""Seconds around the expected end of a step in which the device is polled on every turn of the event loop. The loop's timers
are no finer than a millisecond."""
_NAP_S = 1e-3
_LATE = 0.01
"""Share of the time that a step has taken beyond its expected end by which its end may be noticed late. A timer of the event
loop would add a millisecond and more: shorter pauses block the loop for as long as they last."""
_SHORT_NAP_S = 1e-4
_LOOK_S = 0.1
"""Longest time between two polls that counts as time in which the device computed, in seconds. Between them the host may have
compiled a kernel or captured a graph, or the process may have been stopped."""
PATIENCE_S = 5.0
"""Seconds for which no step counts as hung."""
_BREATH_S = 2e-5
"""Seconds to sleep per poll, so that the thread that reads messages can take the GIL. Without the sleep a poll rarely
releases the GIL, and the next step would wait."""


class PendingStep(Protocol):
    """A launched step.

    `is_held`: whether the device waits for the host to queue the rest of the step, which `ready` does when it can.
    """

    @property
    def is_held(self) -> bool:
        """See the class."""

    def ready(self) -> bool:
        """Return whether the step is done. Raises the errors that the device reports."""

    def result(self) -> UnifiedOutput:
        """Return the step's output; waits if the step is not done."""


class ComputedStep:
    """A step that was computed when it was launched."""

    is_held = False

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
        self._usual_held_s = 0.0
        """The same of what comes before a held step's rest can be queued."""
        self.ended_at = clock()
        """Time on `clock` when the last step ended, in seconds."""

    @property
    def busy(self) -> bool:
        """Return whether a step is in flight."""
        return self._out > 0

    async def run(
        self,
        launch: Callable[[], PendingStep],
        check: Callable[[], None],
        patience: Callable[[], float] | None = None,
    ) -> tuple[UnifiedOutput, float]:
        """Launch a step now; return its output and the seconds it took. A step's time begins when the step before it ends.

        `check` is called when the step's turn comes; an exception from it replaces the output. `patience` returns the seconds
        after which a step that the device computes counts as hung, asked after `PATIENCE_S`; None: never. Raises an exception of
        `launch` in its turn, and ExecutorDied for a hung step. A launched step whose caller is cancelled stays in flight until
        the device has computed it.
        """
        before, mine = self._last, asyncio.get_running_loop().create_future()
        self._last, began = mine, self._clock()
        self._out += 1
        launched: PendingStep | None = None
        try:
            try:
                launched = launch()
            finally:
                if before is not None and not before.done():
                    await asyncio.wait((before,))
            began = max(began, self.ended_at)
            await self._until(launched, began, patience)
            check()
            output = launched.result()
            self.ended_at = self._clock()
            # A slow one (a graph captured before it, say) must not send those after it to sleep.
            seconds = min(self.ended_at - began, 2 * self._usual_s + _SPIN_S)
            self._usual_s += 0.2 * (seconds - self._usual_s)
        except asyncio.CancelledError:
            self._settle_later(before, launched, mine)
            raise
        except BaseException:
            self._settled(mine)
            raise
        self._settled(mine)
        return output, self.ended_at - began

    def _settled(self, mine: asyncio.Future[None]) -> None:
        self._out -= 1
        mine.set_result(None)

    def _settle_later(
        self, before: asyncio.Future[None] | None, launched: PendingStep | None, mine: asyncio.Future[None]
    ) -> None:
        """Settle a step whose caller was cancelled when the device is done with it, behind the step before it. Callbacks, because
        a task might not run any more when the event loop ends."""
        if before is not None and not before.done():
            before.add_done_callback(lambda _: self._settle_later(None, launched, mine))
            return
        try:
            if launched is not None and not launched.ready():
                asyncio.get_running_loop().call_later(_NAP_S, self._settle_later, None, launched, mine)
                return
            if launched is not None:
                launched.result()
        except Exception as error:  # of the device: the next step meets it, too
            _log.warning("a step whose caller was cancelled failed: %s", error)
        self.ended_at = self._clock()
        self._settled(mine)

    async def settled(self) -> None:
        """Wait until no step is in flight."""
        while self._last is not None and not self._last.done():
            await asyncio.wait((self._last,))

    async def _until(self, step: PendingStep, began: float, patience: Callable[[], float] | None) -> None:
        """Yield to the event loop until the step is ready. Raises ExecutorDied."""
        ready = step.ready
        if ready():
            return
        # What the device waits for is not left until the step should end: its first part may be much shorter than usual.
        while step.is_held and self._rest_s(began) > _NAP_S:
            elapsed = self._clock() - began
            if abs(self._usual_held_s - elapsed) < _SPIN_S:
                time.sleep(_BREATH_S)  # noqa: ASYNC251 - as below
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(_NAP_S)
            if ready():
                return
            if not step.is_held:
                self._usual_held_s += 0.2 * (
                    min(elapsed, 2 * self._usual_held_s + _SPIN_S) - self._usual_held_s
                )
        rest = self._rest_s(began)
        if rest > _NAP_S:
            await asyncio.sleep(rest)
            if ready():  # since when is unknown: look much earlier next time
                self._usual_s *= 0.5
                return
        waited, looked, limit = 0.0, self._clock(), PATIENCE_S
        while not ready():  # the device does not notify the host: the host has to poll
            now = self._clock()
            waited, looked = waited + min(now - looked, _LOOK_S), now
            if waited > limit and patience is not None:
                limit = max(PATIENCE_S, patience())
                if waited > limit:
                    raise ExecutorDied(
                        f"a step took the device longer than its deadline of {limit:.1f} s", "hang"
                    )
            nap = _LATE * waited
            if nap >= _NAP_S:
                await asyncio.sleep(_NAP_S)
            else:
                pause = _BREATH_S if waited < 2 * _SPIN_S else max(nap, _SHORT_NAP_S)
                time.sleep(pause)  # noqa: ASYNC251 - shorter than timers of event loops can be
                await asyncio.sleep(0)

    def _rest_s(self, began: float) -> float:
        """Return the seconds until a step that began then is worth polling all the time."""
        return self._usual_s - (self._clock() - began) - _SPIN_S
