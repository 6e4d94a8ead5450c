"""`StepQueue`: writes a step to host memory and queues all of its work on the device, from copy to copy.

ring     buffers of the host, one for each step in flight and one being written
inputs   one copy to the device: the packed step, and behind it changes of tables
compute  a graph's replay, or the same calls one by one
results  one copy back, and one more of logprobs where a row has some
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.llm.device.base import DeviceMemory, Graph, StepDevice
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.sampling.shaped_slots import ShapedSlots
from executors.llm.step.launched.captures import StepCaptures
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


class StepQueue:
    """See the module."""

    queueing: Callable[[], contextlib.AbstractContextManager[None]] = staticmethod(contextlib.nullcontext)
    """Context entered around the queueing of a step's work, from copy to copy, so that a caller can measure when the device
    executes it."""

    def __init__(
        self, program: DeviceProgram, shaped: ShapedSlots, captures: StepCaptures, device: StepDevice,
        memory: DeviceMemory | None, shapes: Sequence[StepShape],
    ) -> None:  # fmt: skip
        """Reserve memory for steps of these shapes, before the first capture. `memory`: see `retried`."""
        self._program = program
        self._runner = program.runner
        self._tables = program.tables
        self._shaped = shaped
        self._captures = captures
        self._memory = memory
        words = max(num_words(shape) for shape in shapes) + 3 * _CHANGES
        samples = max(shape.samples for shape in shapes)
        program.reserve(words, samples, max(shape.pieces for shape in shapes))
        self.ring = BufferRing(
            [StepBuffer(words, result_words(samples), device.pinned, device.event()) for _ in range(RING)]
        )

    def send(
        self, batch: UnifiedBatch, shape: StepShape, logprobs: LogprobRows | None, write: Callable[[np.ndarray], None],
        compute: Graph | Callable[[torch.Tensor], None],
    ) -> StepBuffer:  # fmt: skip
        """Write a step to host memory and launch it. `compute`: the graph to replay, or the function that launches calls over
        the packed step."""
        changes = [(one.tensor, *one.unsent()) for one in self._tables]
        changes.append((self._shaped.sending.tensor, *self._shaped.sending.unsent()))
        tail = Tail(num_words(shape), changes, None if logprobs is None else logprobs.rows)
        buffer = self.ring.take()
        buffer.fit(tail.end)
        write(buffer.words)
        tail.write(buffer.words)
        if self._captures.graphs is not None:
            self._captures.graphs.in_step = True
        try:
            with self.queueing():
                self._queue(batch, shape, logprobs, compute, tail, buffer)
        except BaseException:
            self._mark_failed(buffer)
            raise
        finally:
            if self._captures.graphs is not None:
                self._captures.graphs.in_step = False
        buffer.event.record()
        return buffer

    @staticmethod
    def _mark_failed(buffer: StepBuffer) -> None:
        """Mark the buffer of a step that failed half-way. Its copy may be queued, and the old mark would say that the buffer is
        free."""
        with contextlib.suppress(RuntimeError):  # on a device that is lost nothing can be recorded
            buffer.event.record()

    def _queue(
        self, batch: UnifiedBatch, shape: StepShape, logprobs: LogprobRows | None,
        compute: Graph | Callable[[torch.Tensor], None], tail: Tail, buffer: StepBuffer,
    ) -> None:  # fmt: skip
        """Queue all of a step's work on the device, from copy to copy."""
        static, begin, end = self._program.inputs, num_words(shape), tail.end
        inputs = static if end <= len(static) else retried(self._memory, lambda: self._room(end))
        with self._runner.ranges("copy in"):
            inputs[:end].copy_(buffer.tensor[:end], non_blocking=True)
        if inputs is not static and not callable(compute):
            static[:begin].copy_(inputs[:begin])
        self._shaped.sending.clean()
        tail.apply(inputs)
        for tables in self._tables:
            tables.sent()
        self._shaped.sending.sent()
        self._runner.cache.copy_blocks(batch.block_copies)
        if callable(compute):
            compute(inputs[:begin])
        else:
            self._runner.forwards += 1
            with self._runner.ranges("replay"):
                compute.replay()
        results = result_words(shape.samples)
        with self._runner.ranges("copy out"):
            buffer.result[:results].copy_(self._program.result[:results], non_blocking=True)
        if logprobs is not None:
            rows = tail.rows(inputs)
            more = retried(self._memory, lambda: self._program.described(shape, rows, logprobs.most))
            buffer.fit_more(logprobs.words).copy_(more.view(-1), non_blocking=True)

    def _room(self, words: int) -> torch.Tensor:
        """Return memory on the device for a step with a longer tail than `program.inputs` has room for."""
        return torch.empty(words, dtype=torch.int32, device=self._runner.device)
