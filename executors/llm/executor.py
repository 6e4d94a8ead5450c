"""`LlmExecutor`: the `ModelExecutor` of decoder-only transformers on torch.

    loader    config.json, safetensors            -> model
    kv_cache  how many blocks, the tensors        attention  the backend over them
    runner    one forward over packed items       unified    a UnifiedBatch      direct  calls on single sequences

All work runs on the caller's thread. On a CPU a coroutine blocks the event loop until its step is computed. On a device the
executor launches steps one after another, and their coroutines wait while the event loop does other work.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch

from executors.contract import (
    BatchModelExecutor,
    ConfigError,
    DecodeInput,
    DecodeOutput,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorError,
    ExecutorMemoryUsage,
    ExecutorMetrics,
    ExecutorState,
    ExecutorStatus,
    Int32Array,
    InvalidInput,
    KvCacheHandle,
    KvLayout,
    LogitsMode,
    ModelInfo,
    NotReady,
    Pace,
    PrefillInput,
    PrefillOutput,
    ProgressCallback,
    SampledToken,
    Skipped,
    SlotTable,
    SnapshotValue,
    SpeculativeDecodeOutput,
    StepFailed,
    Tensor,
    UnifiedBatch,
    UnifiedOutput,
    Unsupported,
)
from executors.contract.stats import StepStats
from executors.kernels import compiler
from executors.llm.assembly.device_sizing import DeviceSizing
from executors.llm.assembly.parts import step_device, unified_runner
from executors.llm.attention.backend import AttentionBackend
from executors.llm.checkpoint.draft import load_draft
from executors.llm.checkpoint.loader import load_model
from executors.llm.faults import step_fault
from executors.llm.finite import explained
from executors.llm.kernel_support.kernel_choice import choose_adapters, choose_attention, fuse
from executors.llm.lora.table import AdapterTable
from executors.llm.memory import sizing
from executors.llm.memory.cgroup import PressureGauge, cpu_threads
from executors.llm.memory.device_memory import DeviceMemory, device_memory
from executors.llm.memory.kv_cache import KvCache, KvPlan, free_bytes, plan_kv
from executors.llm.model.api import DecoderOnlyLLM, LoadedModel, PreparedModel
from executors.llm.model.caches import kv_group
from executors.llm.model.decoder import Decoder
from executors.llm.runtime import ExecutorRuntime
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.spec.companion import DraftCompanion
from executors.llm.step.direct import DirectRunner
from executors.llm.step.idle import IdleWork
from executors.llm.step.launched.graphs import StepDevice
from executors.llm.step.launched.steps import DeviceUnifiedRunner
from executors.llm.step.pending_steps import StepQueue
from executors.llm.step.pipeline import UnifiedRunner
from executors.llm.step.runner import ModelRunner

Load = Callable[[ProgressCallback], LoadedModel]
_NO_HEAD = "this model has no lm_head: it computes hidden states and no logits"


class LlmExecutor(BatchModelExecutor):
    """Runs any `DecoderOnlyLLM` over paged KV; samples on the device.

    A model with `unified_forward` gets one forward per step; one without gets serial prefills and one batched decode.
    """

    name = "llm"
    """Name in the executor registry."""

    def __init__(
        self, model: DecoderOnlyLLM | None, info: ModelInfo | None, config: ExecutorConfig | None = None,
        load: Load | None = None,
    ) -> None:  # fmt: skip
        """Pass either a `model` in memory with its `info`, or a function `load`, which `warmup` calls."""
        self.config = config or ExecutorConfig(executor=self.name)
        if model is not None and info is not None:
            made = LoadedModel(model, info, info.num_parameters * kv_group(model).dtype.itemsize, 0)
            load = lambda progress: made  # noqa: E731
        if load is None:
            raise InvalidInput("LlmExecutor needs a model and its info, or a function that loads them")
        self._load = load
        self._runtime: ExecutorRuntime | None = None
        self._progress: ProgressCallback = lambda stage, done, total: None
        self._state = ExecutorState.INITIALIZING
        self._gauge = PressureGauge()
        self._stats = StepStats()
        self._epoch: int | None = None
        self._step_failed = False
        self._steps = StepQueue()
        self._idle = IdleWork(
            self._steps,
            lambda: self._ready().unified.capture_next(),
            lambda: self._ready().unified.capture_wait,
        )
        self._calls = 0
        """Number of calls being computed."""

    @classmethod
    def from_config(cls, config: ExecutorConfig) -> Self:
        """Make an executor that loads `config.model` in `warmup`."""
        return cls(None, None, config, lambda progress: load_model(config, progress))

    # -- facts -----------------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        """See the contract."""
        return self._ready().info

    def capabilities(self) -> ExecutorCapabilities:
        """See the contract."""
        return self._ready().capabilities(self.config)

    def status(self) -> ExecutorStatus:
        """See the contract."""
        loaded = self._runtime
        if loaded is None:
            return self._stats.status(self._state, ExecutorMemoryUsage())
        return replace(self._stats.status(self._state, loaded.memory(self._gauge)), notes=loaded.notes)

    def metrics(self) -> ExecutorMetrics:
        """See the contract."""
        loaded = self._runtime
        used = loaded.blocks_used() / loaded.runner.cache.num_blocks if loaded else 0.0
        return self._stats.metrics(self.config.max_num_seqs, min(1.0, used))

    def kv_layout(self) -> KvLayout:
        """See the contract."""
        return self._ready().plan.layout

    def cache_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        """Return the blocks and bytes of KV in use."""
        return self._runtime.cache_snapshot() if self._runtime is not None else None

    def pace(self) -> Pace | None:
        """See the contract."""
        return self._ready().pace

    def supports_native_unified_decode(self) -> bool:
        """Return True: a step is one forward, or the model's own fallback within one call."""
        return True

    def slot_table(self) -> SlotTable:
        """Return the table of slots that batches refer to."""
        return self._ready().unified.slots

    # -- life ------------------------------------------------------------------------------------------------------------

    def set_progress(self, report: ProgressCallback) -> None:
        """See the contract."""
        self._progress = report

    async def warmup(self) -> None:
        """Load the model, size and allocate KV, run one small prefill and decode so that the first request finds everything
        warm, and measure the pace."""
        if self._state is ExecutorState.SHUTDOWN:
            raise NotReady("the executor was shut down")
        if self._runtime is not None:
            return
        torch.set_num_threads(self.config.optimization.num_threads or cpu_threads())
        try:
            with compiler.reporting(self._progress):
                source = self._load(self._progress)
                self._progress("preparing the layers", 0, 0)
                self._runtime = self._build(source, load_draft(self.config, source.info, self._progress))
            try:
                self._runtime.try_out(self._progress)
                self._progress("measuring the pace", 0, 0)
                self._runtime.measure(self.config, self._clock)
            except StepFailed as error:
                raise explained(error, self.config) from error
        except BaseException:
            self._state, self._runtime = ExecutorState.ERROR, None
            raise
        self._stats = StepStats()
        self._state = ExecutorState.READY
        self._runtime.touch_kv()
        if self._runtime.unified.can_capture:
            self._idle.start()

    _clock: Callable[[], float] = staticmethod(time.perf_counter)
    """Function that returns seconds, by which the pace is measured."""

    def _check(self, source: LoadedModel) -> None:
        """Raise ConfigError if this executor cannot run the loaded model. `LlmExecutor` accepts any model."""

    def _runner(self, model: DecoderOnlyLLM, cache: KvCache) -> ModelRunner:
        """Make the runner that computes the forwards."""
        attention = self._attention(cache)
        fuse(attention, model)
        return ModelRunner(model, attention, cache)

    def _build(self, source: LoadedModel, draft: LoadedModel | None) -> ExecutorRuntime:
        self._check(source)
        spec = kv_group(source.model)
        # From here on these are the limits: a second life must not find others, whatever else takes memory then.
        self.config = config = replace(self._fitting(source), shrink_batch=False)
        memory = self._device_memory(spec.device)
        if memory is not None:
            assemble = partial(self._assemble, source)
            return DeviceSizing(
                source, config, memory, assemble, ExecutorRuntime.run_alone, ExecutorRuntime.close
            ).make()
        runtime = self._assemble(source, self._planned(source, draft))
        if draft is not None:
            runtime.draft, runtime.companion = draft, self._companion(runtime, draft)
        return runtime

    def _fitting(self, source: LoadedModel) -> ExecutorConfig:
        """Return the configuration with batch limits that this machine supports."""
        free, _ = free_bytes(kv_group(source.model).device, self.config)
        return sizing.fitting(self.config, source, free)

    def _planned(self, source: LoadedModel, draft: LoadedModel | None) -> KvPlan:
        """Plan the KV memory."""
        spec, config = kv_group(source.model), self.config
        claims, beside = sizing.claims(config, source), sizing.kv_bytes_beside(draft)
        plan = plan_kv(spec, config, source.info.max_model_len, claims, beside=beside)
        return replace(plan, layout=replace(plan.layout, state=sizing.state_layout(config, source.model)))

    def _device_memory(self, device: torch.device) -> DeviceMemory | None:
        """Return the device's own memory, or None if the device uses the machine's memory."""
        return device_memory(device)

    def _assemble(self, source: LoadedModel, plan: KvPlan) -> ExecutorRuntime:
        """Build every part that computes, with KV of the given plan. On a device this happens more than once, see
        `DeviceSizing`."""
        config, spec, width = self.config, kv_group(source.model), source.info.logits_width
        info = replace(source.info, max_model_len=plan.max_model_len)
        if isinstance(source.model, PreparedModel):
            source.model.prepare(plan.max_model_len)
        sizing.check_slots(config, info.max_model_len)
        cache = KvCache(spec, plan.layout.num_blocks, plan.layout.block_size)
        runner = self._runner(source.model, cache)
        unified = self._unified(runner, source, info.max_model_len, self._grammars(width))
        unified.memory = self._device_memory(spec.device)
        unified.label_width = info.label_width
        direct = self._direct(runner, info.max_model_len, width)
        if (adapters := self._adapters(source.model, runner, unified)) is not None:
            unified.use_adapters(adapters)
            direct.adapters = adapters
        unified.report = lambda stage, done, total: self._progress(stage, done, total)
        return ExecutorRuntime(source, info, plan, runner, unified, direct)

    def _unified(
        self, runner: ModelRunner, source: LoadedModel, max_model_len: int, compiler: GrammarCompiler
    ) -> UnifiedRunner:
        """Make what runs steps."""
        device = self._step_device(runner.device)
        return unified_runner(runner, source, self.config, max_model_len, compiler, device)

    def _direct(self, runner: ModelRunner, max_model_len: int, width: int) -> DirectRunner:
        """Make what runs calls on single sequences."""
        return DirectRunner(runner, max_model_len, width)

    def _companion(self, runtime: ExecutorRuntime, draft: LoadedModel) -> DraftCompanion:
        """Make what runs the draft model, with KV in the blocks of the model's, and let steps use it."""
        model, layout, unified = draft.model, runtime.plan.layout, runtime.unified
        length = min(draft.info.max_model_len, runtime.info.max_model_len)
        if isinstance(model, PreparedModel):
            model.prepare(length)
        cache = KvCache(kv_group(model), layout.num_blocks, layout.block_size)
        attention = self._attention(cache)
        fuse(attention, model)
        companion = DraftCompanion(
            ModelRunner(model, attention, cache), unified.slots, unified.sampling, unified.pool.numpy(), length,
            runtime.info.logits_width, self.config.max_num_batched_tokens,
        )  # fmt: skip
        unified.companion = companion
        return companion

    def _adapters(
        self, model: DecoderOnlyLLM, runner: ModelRunner, unified: UnifiedRunner
    ) -> AdapterTable | None:
        """Make room for LoRA adapters, if the configuration asks for it. Raises ConfigError for a model that has no place for
        them."""
        wanted = self.config.optimization
        if not wanted.max_loras:
            return None
        if not isinstance(model, Decoder):
            raise ConfigError("max_loras: this model has no place for LoRA adapters")
        on_device = isinstance(unified, DeviceUnifiedRunner)
        weights = choose_adapters(model, runner.attention, wanted.max_loras, wanted.max_lora_rank, on_device)
        return AdapterTable(weights, wanted.max_loras, unified.slots.num_slots)

    def _grammars(self, width: int) -> GrammarCompiler:
        directory = self.config.tokenizer or self.config.model
        return GrammarCompiler(Path(directory) if directory else None, width)

    def _attention(self, cache: KvCache) -> AttentionBackend:
        config = self.config
        wanted = config.optimization
        return choose_attention(
            cache.spec, config.attention.backend, wanted.deterministic, wanted.cpu_isa, cache.block_size
        )

    def _step_device(self, device: torch.device) -> StepDevice | None:
        """Return the device that steps are launched on, or None if the host computes them."""
        return step_device(device)

    async def shutdown(self) -> None:
        """See the contract."""
        self._idle.stop()
        if self._runtime is not None:
            await self._steps.settled()
            self._runtime.close()
        self._runtime = None
        self._state = ExecutorState.SHUTDOWN

    async def begin_epoch(self, epoch: int) -> None:
        """See the contract."""
        await self._steps.settled()
        self._ready().unified.clear()
        self._epoch = epoch
        self._step_failed = False
        self._state = ExecutorState.READY

    def _ready(self) -> ExecutorRuntime:
        if self._runtime is None:
            raise NotReady(f"the executor is {self._state}: call warmup first")
        return self._runtime

    @contextlib.contextmanager
    def _computing(self, batch_size: int) -> Iterator[None]:
        """Mark the executor busy and translate torch's exceptions into those of the contract."""
        self._state, self._calls = ExecutorState.BUSY, self._calls + 1
        self._stats.current_batch_size = batch_size
        try:
            yield
        except ExecutorError as error:
            self._stats.failed += not isinstance(error, Skipped)
            raise
        except Exception as error:
            self._stats.failed += 1
            raise step_fault(error) from error
        finally:
            self._calls -= 1
            if not self._calls:
                self._state, self._stats.current_batch_size = ExecutorState.READY, 0

    # -- steps -----------------------------------------------------------------------------------------------------------

    async def unified_decode(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See the contract."""
        loaded = self._ready()
        self._check_epoch()
        if not loaded.info.generates and any(start.pooling is None for start in batch.starts):
            raise Unsupported(_NO_HEAD)
        if self._epoch is not None and batch.epoch != self._epoch:
            raise Skipped(f"this step belongs to epoch {batch.epoch}; the current epoch is {self._epoch}")
        try:
            with self._computing(len(batch)):
                launch = partial(loaded.unified.launch, batch)
                output, seconds = await self._steps.run(launch, self._check_epoch)
        except StepFailed:
            self._step_failed = True
            raise
        if len(batch):
            self._stats.record_step(batch, output, 1e3 * seconds)
        return output

    def _check_epoch(self) -> None:
        if self._step_failed:
            raise Skipped("an earlier step of this epoch failed")

    async def prepare_grammar(self, grammar: str) -> None:
        """See the contract. If the caller is cancelled, the compiler still finishes."""
        await asyncio.to_thread(self._ready().unified.grammars.compiler.compile, grammar)

    async def prefill(self, request: PrefillInput) -> PrefillOutput:
        """See the contract."""
        return (await self.batch_prefill([request]))[0]

    async def batch_prefill(self, inputs: Sequence[PrefillInput]) -> list[PrefillOutput]:
        """See the contract: one forward (a second one for prompts that keep no KV)."""
        if not inputs:
            return []
        loaded, began = self._ready(), time.perf_counter()
        _check_head(loaded.info, inputs)
        with self._computing(len(inputs)):
            outputs = loaded.direct.prefill(inputs)
        tokens = sum(one.sequence_length() for one in inputs)
        self._stats.record("batch_prefill", len(inputs), 0, tokens, _count_sampled(outputs), _ms_since(began))
        return outputs

    async def decode(self, request: DecodeInput) -> DecodeOutput:
        """See the contract."""
        return (await self.batch_decode([request]))[0]

    async def batch_decode(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """See the contract: one forward."""
        if not inputs:
            return []
        loaded, began = self._ready(), time.perf_counter()
        _check_head(loaded.info, inputs)
        with self._computing(len(inputs)):
            outputs = loaded.direct.decode(inputs)
        self._stats.record(
            "batch_decode", len(inputs), len(inputs), len(inputs), _count_sampled(outputs), _ms_since(began)
        )
        return outputs

    # -- verification ----------------------------------------------------------------------------------------------------

    async def forward_verify(self, inputs: Sequence[DecodeInput]) -> list[DecodeOutput]:
        """See the contract: one forward."""
        if not inputs:
            return []
        loaded, began = self._ready(), time.perf_counter()
        _check_head(loaded.info, inputs)
        with self._computing(1):
            outputs = loaded.direct.verify(inputs)
        self._stats.record("forward_verify", 1, 0, len(inputs), _count_sampled(outputs), _ms_since(began))
        return outputs

    async def speculative_decode(
        self, request: DecodeInput, draft_tokens: Sequence[int], acceptance_threshold: float = 1.0
    ) -> SpeculativeDecodeOutput:
        """See the contract: one forward. The handle's table must cover the drafts."""
        if acceptance_threshold != 1.0:
            raise Unsupported(
                "only acceptance_threshold 1.0 is supported: a draft counts iff it equals the sampled token"
            )
        if request.sampling is None:
            raise InvalidInput("speculative_decode needs sampling parameters")
        inputs = [request]
        for n, draft in enumerate(draft_tokens, 1):
            inputs.append(
                replace(inputs[0], input_ids=Tensor.of([[draft]], "int32"), pos_offset=request.pos_offset + n)
            )
        accepted: list[SampledToken] = []
        outputs = await self.forward_verify(inputs)
        for i, output in enumerate(outputs):
            assert output.sampled is not None  # asked for
            accepted.append(output.sampled)
            if i == len(draft_tokens) or draft_tokens[i] != output.sampled.token_id:
                break
        last = outputs[len(accepted) - 1]
        return SpeculativeDecodeOutput(tuple(accepted), last.logits, last.kv_cache, len(accepted) - 1)

    # -- sequence state --------------------------------------------------------------------------------------------------

    def release_cache(self, cache_id: int) -> None:
        """See the contract."""
        if self._runtime is not None:
            self._runtime.unified.release(cache_id)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> None:
        """See the contract. KV past the computed length is never read, so this only checks the arguments."""
        self.truncate_kv_for_cache_id(handle.cache_id, new_len)

    def truncate_kv_for_cache_id(self, cache_id: int, new_len: int) -> None:
        """Do the same as `truncate_kv`, given the id alone. Raises InvalidInput for a negative length; an unknown id is
        ignored."""
        if new_len < 0:
            raise InvalidInput(f"sequence {cache_id}: cannot truncate to {new_len} tokens")

    def release_memory(self, block_ids: Int32Array) -> None:
        """See the contract."""
        if self._runtime is not None:
            self._runtime.release_memory(block_ids)


class LlmAdapterExecutor(LlmExecutor):
    """The same with LoRA adapters: an `AdapterExecutor`."""

    _loading: asyncio.Lock
    """Held from the reading of an adapter until it is loaded, so that no other one is prepared in between."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loading = asyncio.Lock()

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """See the contract. `path`: a file of `executors.lora`."""
        async with self._loading:
            await self.prepare_adapter(name, path, digest)
            await self._steps.settled()
            self._table.load(name, digest)

    async def prepare_adapter(self, name: str, path: str, digest: str) -> None:
        """See the contract. If the caller is cancelled, the file is still read."""
        try:
            await asyncio.to_thread(self._table.prepare, name, path, digest)
        except (MemoryError, RuntimeError) as error:
            raise step_fault(error) from error

    async def unload_adapter(self, name: str) -> None:
        """See the contract. Raises InvalidInput while a sequence uses it."""
        await self._steps.settled()
        self._table.unload(name)

    def lora_metrics_snapshot(self) -> Mapping[str, SnapshotValue] | None:
        """How many adapters are loaded, of which highest rank, and their bytes."""
        return None if self._runtime is None else self._table.snapshot()

    @property
    def _table(self) -> AdapterTable:
        table = self._ready().unified.adapters
        assert table is not None, "the factory makes this class for configurations with adapters"
        return table


def _check_head(info: ModelInfo, inputs: Sequence[PrefillInput | DecodeInput]) -> None:
    """Raise Unsupported if a request needs logits and the model has no lm_head."""
    asked = any(one.sampling is not None or one.logits is not LogitsMode.NONE for one in inputs)
    if asked and not info.generates:
        raise Unsupported(_NO_HEAD)


def _count_sampled(outputs: Sequence[PrefillOutput | DecodeOutput]) -> int:
    return sum(output.sampled is not None for output in outputs)


def _ms_since(began: float) -> float:
    return 1e3 * (time.perf_counter() - began)
