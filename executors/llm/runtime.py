"""`ExecutorRuntime`: everything that an `LlmExecutor` holds between warmup and shutdown, and its status."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from executors.cgroup import PressureGauge, memory_limit
from executors.contract import (
    AttentionType,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorMemoryUsage,
    Int32Array,
    ModelInfo,
    Pace,
    PrefillInput,
    ProgressCallback,
    SamplingParams,
    SnapshotValue,
    Tensor,
    UnifiedBatch,
)
from executors.contract.faults import no_memory
from executors.kernels.cpu import kernels_in_use
from executors.llm.device.base import Device
from executors.llm.device.table import kinds_here
from executors.llm.kernel_support.passed_checks import PassedChecks, name_of
from executors.llm.memory import sizing
from executors.llm.memory.kv_groups import blocks_of_sequence
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.memory.kv_toucher import KvToucher
from executors.llm.memory.status import memory_usage
from executors.llm.model.api import LoadedModel
from executors.llm.step.direct import DirectRunner
from executors.llm.step.pace import MOST_TOKENS, MOST_TOKENS_ON_DEVICE, decode_step, measure_pace
from executors.llm.step.pipeline import StepPipeline
from executors.llm.step.runner import ModelRunner
from executors.llm.step.states import Companion

_SMALL_STEPS = "small steps"
_DRAFT_PAST = 32
"""Context length at which the draft model is timed, in tokens."""
_TOUCH_MOST = 4 << 30
"""Largest amount of KV to make resident ahead of requests, in bytes; a quarter of the free memory is a second limit."""


@dataclass(slots=True)
class ExecutorRuntime:
    """The parts that the executor's warmup builds."""

    source: LoadedModel
    info: ModelInfo
    plan: KvPlan
    runner: ModelRunner
    unified: StepPipeline
    direct: DirectRunner
    device: Device
    draft: LoadedModel | None = None
    """The draft model or MTP head, and `companion`, which runs it; None without one."""
    companion: Companion | None = None
    toucher: KvToucher | None = None
    """Prepares memory in the background; None before `touch_kv`, and where there is nothing to prepare."""
    pace: Pace | None = None
    """Pace of steps, as `measure` found it; None until then."""

    def capabilities(self, config: ExecutorConfig) -> ExecutorCapabilities:
        """See the contract."""
        return ExecutorCapabilities(
            max_batch_size=config.max_num_seqs,
            max_batched_tokens=config.max_num_batched_tokens,
            max_sequence_length=self.info.max_model_len,
            attention_types=(
                AttentionType.MULTI_HEAD, AttentionType.MULTI_QUERY, AttentionType.GROUPED_QUERY, AttentionType.PAGED,
                AttentionType.SLIDING_WINDOW,
            ),
            memory=sizing.requirements(config, self.source, self.draft),
            dynamic_batching=True,
            continuous_batching=True,
            speculative=True,
            drafts=self.companion is not None,
            dtypes=self.device.dtypes,
            devices=kinds_here(),
            grammars=self.unified.states.grammars.compiler.unsupported is None,
            max_in_flight=self.unified.max_in_flight,
            max_step_drafts=self.unified.max_step_drafts,
            tensor_parallel=config.parallel.tensor_parallel_size > 1,
            pipeline_parallel=config.parallel.pipeline_parallel_size > 1,
        )  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that the numbers do not show: how the executor computes, what is slower than it could be, what is
        unsupported."""
        notes = (
            self.runner.attention.note,
            self.plan.note,
            self.source.note,
            *self.source.warnings,
            self.unified.states.grammars.compiler.unsupported,
            *self.unified.notes,
        )
        return tuple(note for note in notes if note)

    def memory(self, gauge: PressureGauge) -> ExecutorMemoryUsage:
        """Return the current memory use."""
        num_bytes = self.source.parameter_bytes + self.runner.cache.num_bytes
        if self.runner.states is not None:
            num_bytes += self.runner.states.num_bytes
        if self.draft is not None and self.companion is not None:
            num_bytes += self.draft.parameter_bytes + self.companion.kv_bytes
        return memory_usage(self.device.memory, num_bytes, gauge)

    def blocks_used(self) -> int:
        """Count the entries of all block tables, in window groups those that a next token reads. A shared block counts once for
        each sequence that uses it."""
        layout, tables = self.plan.layout, self.unified.states.slots.num_blocks
        total = 0
        for group, num_blocks in zip(layout.groups, tables, strict=True):
            most = blocks_of_sequence(group.window, self.info.max_model_len, layout.block_size)
            total += int(np.minimum(num_blocks, most).sum())
        return total

    def cache_snapshot(self) -> Mapping[str, SnapshotValue]:
        """Return the blocks and bytes of KV."""
        layout = self.plan.layout
        return {
            "blocks_total": layout.num_blocks,
            "blocks_in_tables": self.blocks_used(),
            "block_size": layout.block_size,
            "bytes_per_block": layout.block_bytes // layout.num_blocks,
            "bytes_total": layout.num_bytes,
            "capacity_tokens": layout.capacity_tokens,
            "sequences": len(self.unified.states.slots),
        }

    def try_out(self, config: ExecutorConfig, progress: ProgressCallback, checks: PassedChecks) -> None:
        """Run one small prefill and decode so that the first request finds everything warm, and capture the first graphs. What of
        it is among the `checks` that have passed before is left out, but for the graphs."""
        progress("warmup", 0, 1)
        if _SMALL_STEPS not in checks:
            self._run_small_steps()
            checks.add(_SMALL_STEPS)
        limits = config.max_num_seqs, config.max_num_batched_tokens, self.info.max_model_len
        kernels = name_of("kernels of steps", *limits)
        if self.unified.capture_first(kernels in checks):
            checks.add(kernels)
        self.runner.forwards = 0
        progress("warmup", 1, 1)

    def _run_small_steps(self) -> None:
        length = min(2 * self.runner.cache.block_size, self.info.max_model_len)
        for ids in ([0] * length, [0]):  # a chunk and, being one token, a decode
            self.direct.prefill(
                [PrefillInput(Tensor.of([ids], "int32"), sampling=SamplingParams(temperature=0.0))]
            )

    def measure(self, config: ExecutorConfig, clock: Callable[[], float] = time.perf_counter) -> None:
        """Measure how fast steps are, by `clock` in seconds.

        `pace` stays None if memory does not allow these steps. A device's steps are timed to their results, one by one; those
        of shapes without a graph take up to twice as long as they will, which the first steps correct.
        """
        layout = self.plan.layout
        on_device = self.unified.max_in_flight > 1
        try:
            self.pace = measure_pace(
                self.run_alone,
                config.max_num_seqs,
                config.max_num_batched_tokens,
                self.info.max_model_len,
                layout.block_size,
                [group.num_blocks for group in layout.groups],
                self.info.generates,
                clock,
                MOST_TOKENS_ON_DEVICE if on_device else MOST_TOKENS,
            )
            if self.pace is not None and self.companion is not None:
                self.pace = replace(self.pace, draft_steps=self._draft_pace(self.companion, config))
        except Exception as error:
            if no_memory(error) is None:
                raise
            self.pace = None
        self.unified.forget_trials()
        self.runner.forwards = 0

    def _draft_pace(self, companion: Companion, config: ExecutorConfig) -> tuple[tuple[int, float], ...]:
        """Seconds of the draft model's forwards for one sequence, 8 and all: the shortest of three each."""
        past = min(_DRAFT_PAST, self.info.max_model_len, companion.max_model_len) - 1
        counts = sorted({1, min(8, config.max_num_seqs), config.max_num_seqs})
        return tuple((count, self._time_draft(companion, count, past)) for count in counts)

    def _time_draft(self, companion: Companion, count: int, past: int) -> float:
        """Seconds of a draft model's forward of one token for each of `count` sequences of `past` tokens."""
        if self.unified.follower is None:
            return min(companion.time_forward(count, past) for _ in range(3))
        layout = self.plan.layout
        blocks = [group.num_blocks for group in layout.groups]
        with self.unified.trial():
            try:  # the model's step gives the sequences their slots and blocks
                self.unified.run(decode_step(past, count, layout.block_size, blocks))
                return min(companion.time_forward(count, past) for _ in range(3))
            finally:
                self.unified.states.clear()

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        """See the contract."""
        states = self.runner.states
        if states is not None and group == self.plan.layout.state_group:
            states.give_back(block_ids)
            return
        self.runner.cache.give_back(group, block_ids)
        if self.companion is not None:
            self.companion.give_back(group, block_ids)

    def run_alone(self, batch: UnifiedBatch) -> None:
        """Compute a step whose sequences are unknown before and after it. Raises as `StepPipeline.run`."""
        with self.unified.trial():
            try:
                self.unified.run(batch)
            finally:
                self.unified.states.clear()

    def close(self) -> None:
        """Stop background work and wait for its end; nothing is computed after this call."""
        self.unified.states.grammars.close()
        if self.toucher is not None:
            self.toucher.stop()
            self.toucher = None

    def touch_kv(self) -> None:
        """Make the memory of the first blocks resident in a background thread before requests need it. Does nothing if KV
        memory is allocated on demand."""
        cache, kernels = self.runner.cache, kernels_in_use()
        if self.plan.layout.on_demand or kernels is None or cache.spec.device.type != "cpu":
            return
        num_bytes = min(_TOUCH_MOST, cache.num_bytes, memory_limit().available // 4)
        self.toucher = KvToucher(cache, kernels, num_bytes, torch.get_num_threads())
