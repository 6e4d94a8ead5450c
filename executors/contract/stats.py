"""`StepStats`: counts and latencies of an executor's steps, the source of its status and metrics.

Standard library and NumPy only. Executors need not use it.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

import numpy as np

from executors.contract.batch import UnifiedBatch, UnifiedOutput
from executors.contract.status import ExecutorMemoryUsage, ExecutorMetrics, ExecutorState, ExecutorStatus

_WINDOW = 512


class StepStats:
    """Written once a step by the executor, read by its `status()` and `metrics()`."""

    def __init__(self) -> None:
        self.steps = self.failed = 0
        self.prefills = self.decodes = 0
        self.prefill_tokens = self.decode_tokens = self.sampled_tokens = 0
        self.items = 0
        self.prefill_ms: deque[float] = deque(maxlen=_WINDOW)
        self.decode_ms: deque[float] = deque(maxlen=_WINDOW)
        self.step_ms: deque[float] = deque(maxlen=_WINDOW)
        self.last_operation = ""
        self.current_batch_size = 0
        self._since = time.monotonic()

    def record_step(self, batch: UnifiedBatch, output: UnifiedOutput, ms: float) -> None:
        """Record a unified step that took `ms` milliseconds."""
        decodes = int(np.count_nonzero((batch.num_q_tokens == 1) & (batch.pos_offsets > 0)))
        sampled = int(output.num_tokens.sum())
        self.record("unified_decode", len(batch), decodes, batch.total_q_tokens(), sampled, ms)

    def record(self, operation: str, items: int, decodes: int, tokens: int, sampled: int, ms: float) -> None:
        """Record a forward of `items` items, `decodes` of them single tokens; `tokens` query tokens in all."""
        self.steps += 1
        self.items += items
        self.prefills += items - decodes
        self.decodes += decodes
        self.prefill_tokens += tokens - decodes
        self.decode_tokens += decodes
        self.sampled_tokens += sampled
        self.last_operation = operation
        self.step_ms.append(ms)
        (self.decode_ms if decodes == items else self.prefill_ms).append(ms)

    def status(self, state: ExecutorState, memory: ExecutorMemoryUsage) -> ExecutorStatus:
        """The status in a given state."""
        return ExecutorStatus(
            state=state,
            is_ready=state in (ExecutorState.READY, ExecutorState.BUSY),
            current_batch_size=self.current_batch_size,
            prefill_count=self.prefills,
            decode_count=self.decodes,
            mean_prefill_ms=_mean(self.prefill_ms),
            mean_decode_ms=_mean(self.decode_ms),
            memory=memory,
            last_operation=self.last_operation,
        )

    def metrics(self, max_batch_size: int, memory_efficiency: float) -> ExecutorMetrics:
        """Totals so far."""
        elapsed = max(time.monotonic() - self._since, 1e-9)
        ordered = sorted(self.step_ms)
        return ExecutorMetrics(
            total_steps=self.steps,
            total_prefill_tokens=self.prefill_tokens,
            total_decode_tokens=self.decode_tokens,
            total_sampled_tokens=self.sampled_tokens,
            failed_steps=self.failed,
            mean_step_ms=_mean(self.step_ms),
            p95_step_ms=ordered[int(0.95 * (len(ordered) - 1))] if ordered else 0.0,
            tokens_per_second=self.sampled_tokens / elapsed,
            memory_efficiency=memory_efficiency,
            batch_utilization=self.items / (self.steps * max_batch_size) if self.steps else 0.0,
        )


def _mean(values: deque[float]) -> float:
    return statistics.fmean(values) if values else 0.0
