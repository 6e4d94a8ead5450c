"""What an executor counts: written after each step, read by `status()` and `metrics()`. Standard library only."""

from __future__ import annotations

import time
from collections import deque

from executors.facts import ExecutorMetrics

_WINDOW = 1000


class Stats:
    """Totals since start, and the times of the last steps. A step counts as prefill when it holds any chunk longer than
    one token, else as decode. Times in milliseconds."""

    def __init__(self) -> None:
        self.steps = 0
        self.failed_steps = 0
        self.prefills = 0
        self.decodes = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.sampled_tokens = 0
        self.items = 0
        self.current_batch_size = 0
        self.last_operation = ""
        self._prefill_ms = 0.0
        self._decode_ms = 0.0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._began = 0.0

    def begin(self, operation: str, batch_size: int) -> None:
        """A step starts now."""
        self.last_operation = operation
        self.current_batch_size = batch_size
        self._began = time.perf_counter()

    def end(self, total_tokens: int, single_tokens: int, sampled: int) -> None:
        """The step is done: all its query tokens, those of one-token items, and how many tokens were sampled."""
        ms = (time.perf_counter() - self._began) * 1e3
        self.steps += 1
        self.items += self.current_batch_size
        self.current_batch_size = 0
        self.prefill_tokens += total_tokens - single_tokens
        self.decode_tokens += single_tokens
        self.sampled_tokens += sampled
        if total_tokens > single_tokens:
            self.prefills += 1
            self._prefill_ms += ms
        else:
            self.decodes += 1
            self._decode_ms += ms
        self._recent.append((ms, sampled))

    def fail(self) -> None:
        """The step raised."""
        self.failed_steps += 1
        self.current_batch_size = 0

    @property
    def mean_prefill_ms(self) -> float:
        """Mean time of steps with prefill."""
        return self._prefill_ms / self.prefills if self.prefills else 0.0

    @property
    def mean_decode_ms(self) -> float:
        """Mean time of steps without."""
        return self._decode_ms / self.decodes if self.decodes else 0.0

    def metrics(self, max_batch_size: int, memory_efficiency: float) -> ExecutorMetrics:
        """The totals as the contract's record."""
        times = sorted(ms for ms, _ in self._recent)
        busy = sum(times)
        return ExecutorMetrics(
            total_steps=self.steps,
            total_prefill_tokens=self.prefill_tokens,
            total_decode_tokens=self.decode_tokens,
            total_sampled_tokens=self.sampled_tokens,
            failed_steps=self.failed_steps,
            mean_step_ms=busy / len(times) if times else 0.0,
            p95_step_ms=times[int(0.95 * (len(times) - 1))] if times else 0.0,
            tokens_per_second=1e3 * sum(n for _, n in self._recent) / busy if busy else 0.0,
            memory_efficiency=memory_efficiency,
            batch_utilization=min(1.0, self.items / self.steps / max_batch_size) if self.steps else 0.0,
        )
