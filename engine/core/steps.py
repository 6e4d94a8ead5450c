"""`StepQueue`: the steps in flight."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from engine.core.inbox import Inbox
from executors.contract import ExecutorError, ModelExecutor, UnifiedBatch, UnifiedOutput, check_output

logger = logging.getLogger("cohort.engine")

SHORT_STEP_S = 1.5e-3
"""Decode steps that take less, in seconds, may end before the host has answered the step before them."""
WITH_GRAMMARS = 2
"""Most steps in flight while one of them follows a grammar. Its sampler may be held until the token before it is known, and the
launch of a third step would wait for that within the executor, where nothing else is answered meanwhile."""
_SHARE = 0.125
"""Share of the latest step in the estimate of what a decode step takes."""


class StepDepth(NamedTuple):
    """How many steps may be in flight: `most`, and `of_long_steps`, those beyond which all that are out must be short steps of
    decodes only."""

    most: int
    of_long_steps: int

    def most_granted(self, step_tokens: int) -> int:
        """Return the most tokens that steps in flight compute of one sequence. `step_tokens`: most tokens of a step."""
        return max(self.of_long_steps * step_tokens, self.most - 1 + step_tokens)


@dataclass(slots=True)
class PendingStep:
    """A step that was submitted and has no result yet."""

    batch: UnifiedBatch
    result: asyncio.Task[UnifiedOutput]
    began: float
    """When it was submitted, or when the step before it was done, if that came later."""
    has_grammar: bool = False
    """Whether a sequence of it follows a grammar."""
    ended: float = 0.0
    """When it had landed; 0 before."""
    host: float = 0.0
    """Seconds for which the executor had waited for it, while the host made it of the results of the steps before."""

    @property
    def decodes_only(self) -> bool:
        """Whether it computes one token of each sequence."""
        return len(self.batch.token_ids) == len(self.batch)


class StepQueue:
    """The steps in flight, the oldest first: the executor runs them in the order of submission. Used by the loop task only."""

    def __init__(self, executor: ModelExecutor, inbox: Inbox, clock: Callable[[], float]) -> None:
        self.out: deque[PendingStep] = deque()
        self.depth = StepDepth(1, 1)
        self._decode_s = 2 * SHORT_STEP_S
        """Usual time of a step of decodes only, in seconds, estimated from the last ones."""
        self._landed_at = math.inf
        """When the latest step had landed, in seconds of the clock; infinite if the executor has not waited for a step since."""
        self._before_s = math.inf
        """Time of the latest of them."""
        self._executor = executor
        self._inbox = inbox
        self._clock = clock
        self._interrupt: Callable[[], None] = _no_interrupt
        self._has_log_line = False
        """Whether it was logged that more steps are out than long ones may be."""

    def __len__(self) -> int:
        return len(self.out)

    @property
    def room(self) -> bool:
        """One more may be submitted."""
        out = len(self.out)
        if out >= WITH_GRAMMARS and any(step.has_grammar for step in self.out):
            return False
        if out < self.depth.of_long_steps or out >= self.depth.most:
            return out < self.depth.most
        return self._decode_s < SHORT_STEP_S and all(step.decodes_only for step in self.out)

    def submit(self, batch: UnifiedBatch, has_grammar: bool = False) -> None:
        """Submit a step; `has_grammar`: see `PendingStep`. It is sent in the next turn of the event loop, before tasks that are
        woken after this call run."""
        step = asyncio.create_task(self._computed(batch), name=f"step {batch.step_id}")
        now = self._clock()
        host = 0.0 if self.out else max(0.0, now - self._landed_at)
        self.out.append(PendingStep(batch, step, now, has_grammar, host=host))
        if len(self.out) > self.depth.of_long_steps and not self._has_log_line:
            self._has_log_line = True
            logger.info("steps are short: %s are in flight", {3: "three"}.get(len(self.out), len(self.out)))

    async def _computed(self, batch: UnifiedBatch) -> UnifiedOutput:
        """Return the step's result. Raises ExecutorError for an answer that does not fit the step: it would break what the
        scheduler relies on, or leave a sequence that is never computed. The step has failed then, and all are recomputed."""
        output = await self._executor.unified_decode(batch)
        check_output(batch, output)
        return output

    async def next_result(self, timeout: float | None = None) -> PendingStep | None:
        """The oldest step, not among those out any more, once its result is in, be that an error. None if that takes longer than
        `timeout` seconds, or `interrupt` was called first, or a command came while another step could be submitted."""
        step = self.out[0]
        if not step.result.done():
            await (self._command_or if self.room else self._interruption_or)(step.result, timeout)
            if not step.result.done():
                return None
        with contextlib.suppress(ExecutorError):
            await step.result
        self.out.popleft()
        return step

    def seconds(self, step: PendingStep) -> float:
        """How long a step that has landed just now took; the next one's time begins with its end."""
        now = step.ended = self._landed_at = self._clock()
        if self.out:
            self.out[0].began = now
        seconds = now - step.began
        if step.decodes_only:
            # Where the device waits for the host, with two steps out, results come in pairs: a step, and a step and the wait.
            shorter, self._before_s = min(seconds, self._before_s), seconds
            # One that waited for a capture, say, must not count for many.
            self._decode_s += _SHARE * (min(shorter, 2 * SHORT_STEP_S) - self._decode_s)
        return seconds

    def rest(self) -> None:
        """There is nothing to compute: the executor does not wait for the next step."""
        self._landed_at = math.inf

    def interrupt(self) -> None:
        """Make `next_result` return: the time-out that it was called with is too late now."""
        self._interrupt()

    async def _interruption_or(self, result: asyncio.Task[UnifiedOutput], timeout: float | None) -> None:
        """Wait for a step's end, the time-out or an interruption, whichever comes first. Without a task of its own: with short
        steps it would cost a few per cent of them."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake(*_: object) -> None:
            if not woken.done():
                woken.set_result(None)

        self._interrupt = wake
        result.add_done_callback(wake)
        timer = None if timeout is None else loop.call_later(timeout, wake)
        try:
            await woken
        finally:
            result.remove_done_callback(wake)
            if timer is not None:
                timer.cancel()
            self._interrupt = _no_interrupt

    async def _command_or(self, result: asyncio.Task[UnifiedOutput], timeout: float | None) -> None:
        """Wait for a step's end, the time-out or a command, whichever comes first."""
        self._inbox.read()  # nothing was awaited since commands were applied
        command = asyncio.create_task(self._inbox.news())
        try:
            await asyncio.wait((result, command), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            command.cancel()

    async def cancel(self) -> None:
        """Cancel the steps in flight and discard their results."""
        for step in self.out:
            step.result.cancel()
        await asyncio.gather(*(step.result for step in self.out), return_exceptions=True)
        self.out.clear()
        self.rest()


def _no_interrupt() -> None:
    """No wait is in progress."""
