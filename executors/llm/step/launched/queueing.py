"""`StepQueue`: writes a step to host memory and queues all of its work on the device, from copy to copy.

ring     buffers of the host, one for each step in flight and one being written
inputs   one copy to the device: the packed step, and behind it changes of tables
forward  a graph's replay, or the same calls one by one
sample   the same; held back, with a copy of masks before it, where a row follows a grammar: see `grammar_rows.py`
results  one copy back, and one more of logprobs where a row has some
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.llm.device.base import DeviceMemory, StepDevice
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.sampling.shaped_slots import ShapedSlots
from executors.llm.step.launched.graphs import StepGraphs
from executors.llm.step.launched.inputs import (
    BufferRing,
    StepBuffer,
    StepShape,
    Tail,
    num_words,
    result_words,
)
from executors.llm.step.launched.program import DeviceProgram

RING = 4
"""Number of steps with buffers of their own: three in flight, and one being written."""
_CHANGES = 1 << 12
"""Number of changes of block tables for which the input memory has room; a step with more gets memory of its own."""


class StepWork(Protocol):
    """What a step computes on the device, in two phases: `graphs.StepGraph`, or calls."""

    @property
    def captured(self) -> bool:
        """Whether it reads the packed step at the fixed place `DeviceProgram.inputs`, not where `words` are."""

    def forward(self, words: torch.Tensor) -> None:
        """Queue the forward over a packed step, at the beginning of `words`, int32 on the device."""

    def sample(self, words: torch.Tensor) -> None:
        """Queue the sampler, behind the forward of the same step."""


@dataclass(slots=True)
class QueuedStep:
    """A step of which at least the copy to the device is queued. `inputs` int32: the copy, with what lies behind it."""

    buffer: StepBuffer
    shape: StepShape
    work: StepWork
    tail: Tail
    logprobs: LogprobRows | None
    inputs: torch.Tensor


class StepQueue:
    """See the module."""

    queueing: Callable[[], contextlib.AbstractContextManager[None]] = staticmethod(contextlib.nullcontext)
    """Context entered around the queueing of a step's work, from copy to copy, so that a caller can measure when the device
    executes it."""

    def __init__(
        self, program: DeviceProgram, shaped: ShapedSlots | None, graphs: Callable[[], StepGraphs | None], device: StepDevice,
        memory: DeviceMemory | None, shapes: Sequence[StepShape], ring: int = RING,
    ) -> None:  # fmt: skip
        """Reserve memory for steps of these shapes, before the first capture. `shaped`: None if no logits are shaped; `graphs`
        returns those of the steps, if any are captured; `memory`: see `retried`; `ring`: number of buffers."""
        self._program = program
        self._runner = program.runner
        self._tables = program.tables
        self._shaped = shaped
        self._graphs = graphs
        self._memory = memory
        words = max(num_words(shape) for shape in shapes) + 3 * _CHANGES
        samples = max(shape.samples for shape in shapes)
        program.reserve(
            words, samples, max(shape.pieces for shape in shapes), max(shape.tile_pieces for shape in shapes)
        )
        self.ring = BufferRing(
            [StepBuffer(words, result_words(samples), device.pinned, device.event()) for _ in range(ring)]
        )

    def send(
        self, batch: UnifiedBatch, shape: StepShape, logprobs: LogprobRows | None, write: Callable[[np.ndarray], None],
        work: StepWork, sampler_later: bool = False,
    ) -> QueuedStep:  # fmt: skip
        """Write a step to host memory and launch it. With `sampler_later` it is missing until `finish`, and the buffer is not
        marked."""
        changes = [(one.tensor, *one.unsent()) for one in self._tables]
        sending = None if self._shaped is None else self._shaped.sending
        if sending is not None:
            changes.append((sending.tensor, *sending.unsent()))
        tail = Tail(num_words(shape), changes, None if logprobs is None else logprobs.rows)
        buffer = self.ring.take()
        buffer.fit(tail.end)
        write(buffer.words)
        tail.write(buffer.words)
        step = QueuedStep(buffer, shape, work, tail, logprobs, self._program.inputs)
        graphs = self._graphs()
        if graphs is not None:
            graphs.in_step = True
        try:
            with self.queueing():
                self._begin(batch, step)
                if not sampler_later:
                    self._finish(step)
        except BaseException:
            self.abandon(step)
            raise
        finally:
            if graphs is not None:
                graphs.in_step = False
        if not sampler_later:
            buffer.event.record()
        return step

    def mask_rows(self, step: QueuedStep, count: int) -> np.ndarray:
        """int32 [count, mask_words]: where to write the masks of a held step."""
        return step.buffer.fit_masks(count, self._program.masks.shape[1])

    def finish(self, step: QueuedStep, masks: int) -> None:
        """Queue the rest of a held step, whose first `masks` rows of masks are written. What measures steps by `queueing` sees
        its forward alone."""
        try:
            with self._runner.ranges("copy in"):
                self._program.masks[:masks].copy_(step.buffer.masks[:masks], non_blocking=True)
            self._finish(step)
        except BaseException:
            self.abandon(step)
            raise
        step.buffer.event.record()

    @staticmethod
    def abandon(step: QueuedStep) -> None:
        """Mark the buffer of a step that failed, or that will not be finished. Its copy may be queued: the old mark would say
        that the buffer is free."""
        with contextlib.suppress(RuntimeError):  # on a device that is lost nothing can be recorded
            step.buffer.event.record()

    def _begin(self, batch: UnifiedBatch, step: QueuedStep) -> None:
        """Queue a step's copy to the device and its forward."""
        static, begin, end = self._program.inputs, num_words(step.shape), step.tail.end
        if end > len(static):
            step.inputs = retried(self._memory, lambda: self._room(end))
        inputs = step.inputs
        with self._runner.ranges("copy in"):
            inputs[:end].copy_(step.buffer.tensor[:end], non_blocking=True)
        if inputs is not static and step.work.captured:
            static[:begin].copy_(inputs[:begin])
        sending = None if self._shaped is None else self._shaped.sending
        if sending is not None:
            sending.clean()
        step.tail.apply(inputs)
        for tables in self._tables:
            tables.sent()
        if sending is not None:
            sending.sent()
        self._runner.cache.copy_blocks(batch.block_copies)
        if step.work.captured:
            self._runner.forwards += 1
        with self._runner.ranges("replay") if step.work.captured else contextlib.nullcontext():
            step.work.forward(step.inputs)

    def _finish(self, step: QueuedStep) -> None:
        """Queue a step's sampler and the copies of its results."""
        with self._runner.ranges("replay") if step.work.captured else contextlib.nullcontext():
            step.work.sample(step.inputs)
        shape, buffer, logprobs = step.shape, step.buffer, step.logprobs
        results = result_words(shape.samples)
        with self._runner.ranges("copy out"):
            buffer.result[:results].copy_(self._program.result[:results], non_blocking=True)
        if logprobs is not None:
            rows = step.tail.rows(step.inputs)
            more = retried(self._memory, lambda: self._program.described(shape, rows, logprobs.most))
            buffer.fit_more(logprobs.words).copy_(more.view(-1), non_blocking=True)

    def _room(self, words: int) -> torch.Tensor:
        """Return memory on the device for a step with a longer tail than `program.inputs` has room for."""
        return torch.empty(words, dtype=torch.int32, device=self._runner.device)
