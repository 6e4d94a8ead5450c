"""`RankExecutor`: the `LlmExecutor` of one rank of a tensor-parallel or pipeline-parallel model.

All ranks get the same calls in the same order. They meet before anything is loaded, agree on the sizes of steps and KV, and end
together. See `parallel/stages.py` for a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch

from executors.contract import (
    ConfigError,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
    ExecutorError,
    ExecutorStatus,
    InvalidInput,
    NotReady,
    Unsupported,
)
from executors.llm.checkpoint.loader import load_model, resolve_device
from executors.llm.executor import LlmAdapterExecutor, LlmExecutor
from executors.llm.faults import step_fault
from executors.llm.memory import sizing
from executors.llm.memory.cgroup import cpu_threads
from executors.llm.memory.device_memory import DeviceMemory
from executors.llm.memory.kv_cache import KvCache, KvPlan
from executors.llm.model.api import LoadedModel
from executors.llm.parallel.ranks import Ranks
from executors.llm.parallel.stages import ParallelUnifiedRunner
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.step.direct import DirectItem, DirectResult, DirectRunner, NoTokenSampled
from executors.llm.step.runner import ModelRunner


class RankExecutor(LlmExecutor):
    """See the module."""

    _ranks: Ranks | None = None

    @classmethod
    def from_config(cls, config: ExecutorConfig) -> Self:
        """See `LlmExecutor`."""
        made = cls(None, None, config, lambda progress: load_model(made.config, progress, made._met()))
        return made

    def _met(self) -> Ranks:
        if self._ranks is None:
            raise NotReady("the ranks have not met")
        return self._ranks

    async def warmup(self) -> None:
        """See the contract. Waits for the other ranks."""
        if self._ranks is None:
            self.config = _own_share(self.config)
            self._progress("meeting other ranks", 0, 1)
            self._ranks = Ranks(self.config.parallel, resolve_device(self.config.device))
            self._clock = self._ranks.clock
            self._progress("meeting other ranks", 1, 1)
        await super().warmup()

    def capabilities(self) -> ExecutorCapabilities:
        """See the contract."""
        parallel = self.config.parallel
        return replace(
            super().capabilities(),
            tensor_parallel=parallel.tensor_parallel_size > 1,
            pipeline_parallel=parallel.pipeline_parallel_size > 1,
        )

    def status(self) -> ExecutorStatus:
        """See the contract; the notes name the ranks."""
        found = super().status()
        if self._ranks is None:
            return found
        parallel = self.config.parallel
        note = (
            f"{parallel.world_size} ranks over {self._ranks.backend}: tensor parallel "
            f"{parallel.tensor_parallel_size}, {parallel.pipeline_parallel_size} stages"
        )
        return replace(found, notes=(note, *found.notes))

    async def shutdown(self) -> None:
        """See the contract."""
        await super().shutdown()
        if self._ranks is not None:
            self._ranks.close()

    # -- what ranks agree on ---------------------------------------------------------------------------------------------

    def _fitting(self, source: LoadedModel) -> ExecutorConfig:
        # Reading memory only when all have loaded their weights: the same memory may be free to all of them.
        ranks = self._met()
        ranks.least([0])
        own = super()._fitting(source)
        seqs, tokens = ranks.least([own.max_num_seqs, own.max_num_batched_tokens])
        return replace(own, max_num_seqs=seqs, max_num_batched_tokens=tokens)

    def _planned(self, source: LoadedModel, draft: LoadedModel | None) -> KvPlan:
        ranks = self._met()
        own = super()._planned(source, draft)
        layout = own.layout
        blocks, length, span = ranks.least([layout.num_blocks, own.max_model_len, layout.blocks_per_span])
        # A span that is too short for a page of the system is given back in part; 0 on one rank: memory is taken at once.
        span = max(span, layout.blocks_per_span) if span else 0
        note = own.note
        if length < own.max_model_len:
            note = f"max_model_len reduced to {length}: another rank has memory for no more"
        return KvPlan(replace(layout, num_blocks=blocks, blocks_per_span=span), length, note)

    def _device_memory(self, device: torch.device) -> DeviceMemory | None:
        return None  # a step that is tried again would leave the other ranks waiting

    def _unified(
        self, runner: ModelRunner, source: LoadedModel, max_model_len: int, compiler: GrammarCompiler
    ) -> ParallelUnifiedRunner:
        slots = sizing.num_slots(self.config)
        try:
            return ParallelUnifiedRunner(
                self._met(), runner, slots, self.config.max_num_seqs, max_model_len, compiler
            )
        except MemoryError:
            raise sizing.slots_do_not_fit(self.config, max_model_len) from None

    def _direct(self, runner: ModelRunner, max_model_len: int, width: int) -> DirectRunner:
        return _ParallelDirectRunner(runner, max_model_len, width)


class RankAdapterExecutor(RankExecutor, LlmAdapterExecutor):
    """The same with LoRA adapters."""

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """See the contract. An adapter is loaded on all ranks or on none."""
        fault: ExecutorError | None = None
        try:
            await super().load_adapter(name, path, digest)
        except Exception as error:
            fault = step_fault(error)
        unified = self._ready().unified
        assert isinstance(unified, ParallelUnifiedRunner)
        try:
            unified.agree(fault)
        except ExecutorError:
            if fault is None:
                await self.unload_adapter(name)
            raise


class _ParallelDirectRunner(DirectRunner):
    """Ends the process for what fails within a forward: the other ranks wait for it."""

    def _run(self, items: list[DirectItem], cache: KvCache) -> list[DirectResult]:
        try:
            return super()._run(items, cache)
        except (InvalidInput, Unsupported, NoTokenSampled, ExecutorDied):
            raise
        except Exception as error:
            raise ExecutorDied(str(step_fault(error))) from error


def _own_share(config: ExecutorConfig) -> ExecutorConfig:
    """Return the configuration with this rank's GPU, or its share of the CPUs."""
    parallel = config.parallel
    device = resolve_device(config.device)
    if device.type == "cuda":
        if device.index is not None:
            raise ConfigError(
                f"device {config.device}: {parallel.world_size} ranks need as many GPUs; take --device cuda"
            )
        if (count := torch.cuda.device_count()) < parallel.world_size:
            raise ConfigError(
                f"tensor_parallel_size x pipeline_parallel_size: {parallel.world_size} ranks need as many GPUs; there "
                f"are {count}"
            )
        return replace(config, device=f"cuda:{parallel.rank}")
    threads = config.optimization.num_threads or max(1, cpu_threads() // parallel.world_size)
    return replace(config, optimization=replace(config.optimization, num_threads=threads))
