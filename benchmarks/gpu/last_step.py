"""`LlmExecutor` that replays graphs of its last steps alone when asked: seconds on the device without a host in between.

The asking is the contract's call `forward`, which this executor has no other use for: rows in, seconds out. A replay computes the
last step again, from the inputs that lie on the device, and writes the same keys and values to the same places, which belong to
no sequence any more. Inputs lie differently for each shape, so the graph that is replayed is the one that the last step took,
or none.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from executors.contract import Tensor, Unsupported
from executors.llm.assembly.parts import Assembly
from executors.llm.executor import LlmExecutor
from executors.llm.factory import LlmFactory
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.runtime import ExecutorRuntime
from executors.llm.step.launched.graphs import StepGraph
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.queueing import QueuedStep, StepWork
from executors.llm.step.launched.steps import LaunchedSteps

NAME = f"{__name__}:LastStepFactory"
TIMES = 100
NO_GRAPH = math.nan
"""In place of seconds."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """The last step: its shape, its graph if it took one, and how many had been captured by then."""

    shape: StepShape
    graph: StepGraph | None
    captured: int


class LastStepFactory(LlmFactory):
    """`LlmFactory` of `LastStepExecutor`."""

    def executor_class(self) -> type[LlmExecutor]:
        """See `LlmFactory`."""
        return LastStepExecutor


class LastStepExecutor(LlmExecutor):
    """See the module."""

    name = "llm"
    _sent: _Sent | None = None

    def _assemble(self, assembly: Assembly, plan: KvPlan) -> ExecutorRuntime:
        loaded = super()._assemble(assembly, plan)
        launched = loaded.unified.launched
        if isinstance(launched, LaunchedSteps) and launched.graphs is not None:
            graphs, send = launched.graphs, launched.queue.send

            def noted(
                batch: Any, shape: StepShape, logprobs: Any, write: Any, work: StepWork, *more: Any
            ) -> QueuedStep:
                graph = work if isinstance(work, StepGraph) else None
                self._sent = _Sent(shape, graph, len(graphs._graphs))
                return send(batch, shape, logprobs, write, work, *more)

            launched.queue.send = noted  # type: ignore[method-assign]
        return loaded

    async def forward(self, tensor: Tensor) -> Tensor:
        """`tensor` int32 [1]: the rows of the last step. Returns float64 [2]: seconds of a replay of its graph, the mean of
        `TIMES` that follow each other, NO_GRAPH where the last step had no graph for exactly so many rows, or others were
        captured since; and the free bytes of the device, NaN if it has no memory of its own. Raises Unsupported while a
        sequence runs."""
        await self._steps.settled()
        loaded, rows, sent = self._ready(), int(tensor.numpy()[0]), self._sent
        if loaded.blocks_used():
            raise Unsupported("a graph is not replayed beside sequences: it would write to their blocks")
        memory, seconds = loaded.device.memory, NO_GRAPH
        if (
            sent is not None
            and sent.graph is not None
            and sent.shape.tokens == rows
            and not sent.shape.listed
        ):
            launched = loaded.unified.launched
            assert isinstance(launched, LaunchedSteps) and launched.graphs is not None
            if len(launched.graphs._graphs) == sent.captured:  # a capture leaves padding in the inputs
                seconds = seconds_of(sent.graph, TIMES)
        free = math.nan if memory is None else float(memory.free_and_total()[0])
        return Tensor.of([seconds, free], "float64")


def seconds_of(graph: StepGraph, times: int) -> float:
    """Seconds of one replay, of so many that follow each other: by events where there is a GPU, else by the host's clock."""
    if not torch.cuda.is_available():
        began = time.perf_counter()
        for _ in range(times):
            graph.replay()
        return (time.perf_counter() - began) / times
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    first.record()
    for _ in range(times):
        graph.replay()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / times
