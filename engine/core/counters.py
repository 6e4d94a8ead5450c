"""`Counters`: adds up the figures of `/metrics` and `EngineStats`, the one place that does."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf

from engine.errors import EngineError, Overloaded
from engine.interruptions import Outage
from engine.metrics_sink import MetricsSink
from engine.observer import Observer, PrefixLookup, Waits
from engine.request import FinishReason, RequestContext
from engine.sequence import Sequence
from executors.contract import UnifiedBatch, UnifiedOutput


class Counters(Observer):
    """Totals since the start of the engine, read by `EngineCore.stats`; durations and the like go on to `sink`."""

    def __init__(self, sink: MetricsSink) -> None:
        self.steps = 0
        self.steps_cut = 0
        """Steps for which there was no memory."""
        self.prompt_tokens = 0
        """Tokens of prompts that steps computed, those computed again after a failure included."""
        self.preemptions = 0
        """Sequences that were rolled back, for want of blocks or by a failure."""
        self.resumed = 0
        """Running sequences that went on after a failure."""
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache, and `prefix_hits` of them found."""
        self.prefix_hits = 0
        self.adapter_loads = 0
        self.adapter_evictions = 0
        self._sink = sink

    def refused(self, context: RequestContext, error: Overloaded) -> None:
        self._sink.refused(str(error.code))

    def admitted(self, seq: Sequence, now: float, waits: Waits, lookup: PrefixLookup | None) -> None:
        if lookup is not None and lookup.searched:
            self.prefix_queries += seq.prompt_len
            self.prefix_hits += seq.num_cached_tokens

    def preempted(self, seq: Sequence, now: float) -> None:
        self.preemptions += 1

    def interrupted(self, seq: Sequence, now: float, cause: str, outage: Outage | None) -> None:
        self.preemptions += 1

    def sequences_rewound(self, num_resumed: int) -> None:
        self.resumed += num_resumed

    def output_started(self, seq: Sequence, count: int, now: float) -> None:
        self._sink.first_token(now - seq.context.arrival_time)
        if count > 1:
            self._sink.tokens(count - 1, 0.0)

    def tokens_committed(self, gaps: Mapping[tuple[int, float], int]) -> None:
        for (count, seconds), sequences in gaps.items():
            self._sink.tokens(count, seconds, sequences)

    def failed(self, seq: Sequence, error: EngineError) -> None:
        if error.status >= 500:
            self._sink.failed(str(error.code))

    def finished(self, seq: Sequence, now: float) -> None:
        # A prompt is computed once for all its choices, and not at all for a sequence that leaves while it waits.
        prompt_tokens = seq.prompt_len if seq.is_first and seq.was_started else 0
        output_tokens = len(seq.output_token_ids)
        outcome = str(seq.finish_reason or FinishReason.ERROR)
        self._sink.finished(outcome, prompt_tokens, output_tokens, now - seq.context.arrival_time)
        if seq.context.key_name:
            self._sink.used(seq.context.key_name, prompt_tokens, output_tokens)

    def step_submitted(self, batch: UnifiedBatch) -> None:
        self.steps += 1

    def step_landed(
        self,
        batch: UnifiedBatch,
        output: UnifiedOutput,
        seqs: SequenceOf[Sequence],
        seconds: float,
        now: float,
    ) -> None:
        self.prompt_tokens += batch.num_prompt_tokens

    def step_cut(self) -> None:
        self.steps_cut += 1

    def executor_restarted(self, cause: str) -> None:
        self._sink.restarted(cause)

    def blocks_adopted(self, num_kept: int, num_damaged: int) -> None:
        self._sink.adopted(num_kept, num_damaged)

    def adapter_loaded(self) -> None:
        self.adapter_loads += 1

    def adapter_evicted(self) -> None:
        self.adapter_evictions += 1
