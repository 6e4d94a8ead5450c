"""`LlmExecutor`: the `ModelExecutor` of decoder-only transformers on torch.

    loader    config.json, safetensors            -> model
    device    where it computes                   group      the ranks that share the model
    kv_cache  how many blocks, the tensors        attention  the backend over them
    runner    one forward over packed items       pipeline   a UnifiedBatch      direct  calls on single sequences

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
from typing import Any, ClassVar, Self

import numpy as np
import torch

from executors.cgroup import PressureGauge, count_as_available, cpu_threads
from executors.contract import (
    BatchModelExecutor,
    ConfigError,
    DecodeInput,
    DecodeOutput,
    DeviceChecks,
    DeviceLost,
    ExecutorCapabilities,
    ExecutorConfig,
    ExecutorDied,
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
    SealedBlocks,
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
from executors.llm.assembly.parts import Assembly, fitting
from executors.llm.checkpoint.draft import load_draft, load_mtp
from executors.llm.checkpoint.loader import load_model
from executors.llm.device.base import Device
from executors.llm.device.table import device_of, find_device, open_device, shares_weights
from executors.llm.faults import step_fault
from executors.llm.finite import explained
from executors.llm.kernel_support.passed_checks import PassedChecks, conditions
from executors.llm.kernel_support.rehearsals import Rehearsals
from executors.llm.lora.table import LoraTable
from executors.llm.memory.arena import KvArena
from executors.llm.memory.fingerprint import COMPUTING, code_digest
from executors.llm.memory.kv_plan import KvPlan
from executors.llm.memory.sizing import limits_note
from executors.llm.model.api import DecoderOnlyLLM, LoadedModel
from executors.llm.model.caches import kv_group
from executors.llm.parallel.group import Alone, RankGroup, Together
from executors.llm.runtime import ExecutorRuntime
from executors.llm.step.idle import IdleWork
from executors.llm.step.patience import patience
from executors.llm.step.pending_steps import PendingSteps
from executors.memory_file import MemoryFile

Load = Callable[[ProgressCallback], LoadedModel]
LoadDraft = Callable[[ExecutorConfig, LoadedModel, ProgressCallback], LoadedModel | None]
_NO_HEAD = "this model has no lm_head: it computes hidden states and no logits"


def _load_draft(
    config: ExecutorConfig, source: LoadedModel, progress: ProgressCallback
) -> LoadedModel | None:
    return load_mtp(config, source, progress) or load_draft(config, source.info, progress)


class LlmExecutor(BatchModelExecutor):
    """Runs any `DecoderOnlyLLM` over paged KV; samples on the device.

    A model with `unified_forward` gets one forward per step; one without gets serial prefills and one batched decode.
    """

    name: ClassVar[str] = "llm"
    """Name in the executor registry."""
    family: ClassVar[str | None] = None
    """The only model family that it runs; None for all."""

    def __init__(
        self, model: DecoderOnlyLLM | None, info: ModelInfo | None, config: ExecutorConfig | None = None,
        load: Load | None = None, device: Device | None = None,
    ) -> None:  # fmt: skip
        """Pass either a `model` in memory with its `info`, or a function `load`, which `warmup` calls. `device`: where the model
        is; None for the one of a `model` in memory, or the one that the configuration names."""
        self.config = config or ExecutorConfig(executor=self.name)
        if model is not None and info is not None:
            loaded = LoadedModel(model, info, info.num_parameters * kv_group(model).dtype.itemsize, 0)
            load = lambda progress: loaded  # noqa: E731
            device = device or device_of(kv_group(model).device)
        if load is None:
            raise InvalidInput("LlmExecutor needs a model and its info, or a function that loads them")
        self.device = device
        self._group: RankGroup = Alone() if self.config.parallel.world_size == 1 else Together(self.config)
        self._load = load
        self._load_draft: LoadDraft = _load_draft
        self._runtime: ExecutorRuntime | None = None
        self._progress: ProgressCallback = lambda stage, done, total: None
        self._state = ExecutorState.INITIALIZING
        self._gauge = PressureGauge()
        self._stats = StepStats()
        self._epoch: int | None = None
        self._step_failed = False
        self._loss_reason = ""
        """Why this process can use its device no more; "" while it can."""
        self._report_death: Callable[[ExecutorDied], None] = lambda death: None
        self._checks = PassedChecks()
        self._limits_note = ""
        """Limits of a step and where they come from."""
        self._arena: KvArena | None = None
        self._steps = PendingSteps()
        self._idle = IdleWork(
            self._steps,
            self._capture_next,
            lambda: self._ready().unified.capture_wait,
        )
        self._calls = 0
        """Number of calls being computed."""

    @classmethod
    def from_config(cls, config: ExecutorConfig) -> Self:
        """Make an executor that loads `config.model` in `warmup`."""
        executor = cls(
            None,
            None,
            config,
            lambda progress: load_model(executor.config, progress, executor._group.ranks, executor._checks),
        )
        return executor

    @classmethod
    def over_shared_weights(
        cls, config: ExecutorConfig, progress: ProgressCallback
    ) -> Callable[[ExecutorConfig], LlmExecutor] | None:
        """Load `config.model` and what drafts beside it, and return what makes executors over these weights, for processes that
        are forked; None on a device whose weights they do not share. Raises as `warmup`."""
        if not shares_weights(config.device):
            code_digest(COMPUTING)  # for `PassedChecks` of each life
            return None
        with compiler.reporting(progress):
            progress("opening the device", 0, 0)
            source = load_model(config, progress)
            progress("preparing the layers", 0, 0)
            draft = _load_draft(config, source, progress)
        # Of the sources as they are imported here.
        code_digest()
        code_digest(COMPUTING)

        def make(config: ExecutorConfig) -> LlmExecutor:
            length = min(config.max_model_len or source.info.max_model_len, source.info.max_model_len)
            own = replace(source, info=replace(source.info, max_model_len=length))
            executor = cls(None, None, config, lambda progress: own)
            executor._load_draft = lambda config, source, progress: draft
            return executor

        return make

    @classmethod
    def stand_by(cls, config: ExecutorConfig, opens_device: bool) -> str:
        """Open the device of `config` and its rank, if asked to. Returns its name, "" where there is none to open."""
        if not opens_device:
            return ""
        return open_device(cls.from_config(config)._group.own_share(config).device)

    # -- facts -----------------------------------------------------------------------------------------------------------

    def info(self) -> ModelInfo:
        """See the contract."""
        return self._ready().info

    def capabilities(self) -> ExecutorCapabilities:
        """See the contract."""
        return self._ready().capabilities(self.config)

    def status(self) -> ExecutorStatus:
        """See the contract."""
        loaded, notes = self._runtime, () if self._group.note is None else (self._group.note,)
        if loaded is None:
            return replace(self._stats.status(self._state, ExecutorMemoryUsage()), notes=notes)
        status = self._stats.status(self._state, loaded.memory(self._gauge))
        note = None if self._arena is None else self._arena.note
        notes = (*notes, *loaded.notes) if note is None else (*notes, *loaded.notes, note)
        return replace(status, notes=(*notes, self._limits_note))

    def metrics(self) -> ExecutorMetrics:
        """See the contract."""
        loaded = self._runtime
        used = loaded.blocks_used() / loaded.plan.layout.num_blocks if loaded else 0.0
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

    def device_checks(self) -> DeviceChecks | None:
        """See the contract."""
        return self._checks.record()

    def supports_native_unified_decode(self) -> bool:
        """Return True: a step is one forward, or the model's own fallback within one call."""
        return True

    def slot_table(self) -> SlotTable:
        """Return the table of slots that batches refer to."""
        return self._ready().unified.states.slots

    # -- life ------------------------------------------------------------------------------------------------------------

    def set_progress(self, report: ProgressCallback) -> None:
        """See the contract."""
        self._progress = report

    def set_death_listener(self, report: Callable[[ExecutorDied], None]) -> None:
        """See the contract. It dies where its device is lost while no call computes: a new process is needed then."""
        self._report_death = report

    def use_memory(self, descriptor: int) -> None:
        """See the contract. It is used where KV lies in the machine's memory."""
        self._arena = KvArena(MemoryFile(descriptor))

    async def warmup(self) -> None:
        """Load the model, size and allocate KV, run one small prefill and decode so that the first request finds everything
        warm, and measure the pace."""
        if self._state is ExecutorState.SHUTDOWN:
            raise NotReady("the executor was shut down")
        if self._runtime is not None:
            return
        try:
            # Until the weights: the first tensor makes the device's context.
            self._progress("opening the device", 0, 0)
            if self._arena is not None:  # of all ranks, which have equal shares of the memory
                count_as_available(self._arena.found_bytes * self.config.parallel.world_size)
            device = self._meet()
            self._checks = PassedChecks(conditions(self.config, device), self.config.checks)
            torch.set_num_threads(self.config.optimization.num_threads or cpu_threads())
            with compiler.reporting(self._progress):
                source = self._load(self._progress)
                self._progress("preparing the layers", 0, 0)
                draft = self._load_draft(self.config, source, self._progress)
                self._runtime = self._build(source, draft, device)
            try:
                self._try_out(self._runtime)
            except StepFailed as error:
                raise explained(error, self.config) from error
            if self._arena is not None:
                self._arena.share()
        except BaseException:
            self._state, self._runtime = ExecutorState.ERROR, None
            raise
        count_as_available(0)
        self._stats = StepStats()
        self._state = ExecutorState.READY
        self._runtime.touch_kv()
        if self._runtime.unified.can_capture:
            self._idle.start()

    def _try_out(self, runtime: ExecutorRuntime) -> None:
        """Run steps that make everything warm, and measure the pace. Where an earlier life or an earlier start has measured it,
        calls need not wait for that, and on a CPU trial steps would prepare nothing for theirs."""
        pace = self.config.pace
        if pace is None or runtime.unified.max_in_flight > 1:
            runtime.try_out(self.config, self._progress, self._checks)
        if pace is None:
            self._progress("measuring the pace", 0, 0)
            runtime.measure(self.config, self._group.clock)
        else:
            runtime.pace = pace

    def _build(self, source: LoadedModel, draft: LoadedModel | None, device: Device) -> ExecutorRuntime:
        if self.family is not None and source.info.family != self.family:
            raise ConfigError(
                f"model {source.info.name}: family {source.info.family} is not supported by executor {self.name}; "
                f"supported: {self.family}"
            )
        # From here on these are the limits: a second life must not find others, whatever else takes memory then.
        fitted = fitting(self.config, source, device, self._group, draft)
        self._limits_note = limits_note(self.config, fitted, device)
        self.config = config = replace(fitted, default_limits=())
        assembly = self._assembly(source, draft, device)
        if assembly.memory is not None:
            assemble = partial(self._assemble, assembly)
            return DeviceSizing(
                source,
                config,
                assembly.memory,
                assemble,
                self._try_largest,
                ExecutorRuntime.close,
                report=assembly.report,
                checks=self._checks,
                draft=draft,
            ).make()
        return self._assemble(assembly, assembly.planned())

    def _try_largest(self, runtime: ExecutorRuntime, batch: UnifiedBatch) -> None:
        self._progress("trying the largest steps", 0, 0)
        runtime.run_alone(batch)

    def _assembly(self, source: LoadedModel, draft: LoadedModel | None, device: Device) -> Assembly:
        def report(stage: str, done: int, total: int) -> None:
            self._progress(stage, done, total)

        rehearsals = None
        # Ranks would have to agree on each rehearsal. A life that believes an earlier one's checks launches few kernels at first.
        if device.compiles and self.config.parallel.world_size == 1 and not self._checks.believed:
            rehearsals = Rehearsals(report)
        return Assembly(
            self.config, source, device, self._group, report, self._arena, self._checks, rehearsals, draft
        )

    def _assemble(self, assembly: Assembly, plan: KvPlan) -> ExecutorRuntime:
        return assembly.runtime(plan)

    def _meet(self) -> Device:
        """Meet the other ranks, if there are any, and return the device of this one."""
        group = self._group
        if group.ranks is None:
            self.config = group.own_share(self.config)
        device = self.device or find_device(self.config.device)
        if group.ranks is None and self.config.parallel.world_size > 1:
            self._progress("meeting other ranks", 0, 1)
            group.meet(self.config, device)
            self._progress("meeting other ranks", 1, 1)
        self.device = device
        return device

    async def shutdown(self) -> None:
        """See the contract."""
        self._idle.stop()
        if self._runtime is not None:
            if not self._loss_reason:
                await self._steps.settled()
            self._runtime.close()
        self._runtime = None
        self._state = ExecutorState.SHUTDOWN
        self._group.close()

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """See the contract. Raises DeviceLost if this process has lost its device."""
        if self._loss_reason:
            raise DeviceLost(
                f"{self._loss_reason}; a process that has lost its device cannot use it again: with --executor-mode process the "
                "executor is started anew in another one",
                "device",
            )
        await self._steps.settled()
        unified = self._ready().unified
        unified.states.clear()
        adopted = np.empty(0, np.int32) if unified.seals is None else unified.seals.begin(adopt)
        self._epoch = epoch
        self._step_failed = False
        self._state = ExecutorState.READY
        return adopted

    async def adopt_blocks(self, sealed: SealedBlocks) -> Int32Array:
        """See the contract. Raises Unsupported where blocks do not lie in memory of the server."""
        seals = self._ready().unified.seals
        if seals is None:
            raise Unsupported("blocks lie in this process's own memory: none can be adopted while it runs")
        await self._steps.settled()
        return seals.adopt(sealed)

    def _ready(self) -> ExecutorRuntime:
        if self._runtime is None:
            raise NotReady(f"the executor is {self._state}: call warmup first")
        return self._runtime

    @contextlib.contextmanager
    def _computing(self, batch_size: int) -> Iterator[None]:
        """Mark the executor busy and translate torch's exceptions into those of the contract. Raises ExecutorDied, now and later,
        where the device is lost."""
        if self._loss_reason:
            raise ExecutorDied(self._loss_reason, "device")
        self._state, self._calls = ExecutorState.BUSY, self._calls + 1
        self._stats.current_batch_size = batch_size
        try:
            yield
        except ExecutorError as error:
            self._stats.failed += not isinstance(error, Skipped)
            self._loss_reason = self._loss_reason or _loss(error)
            raise
        except Exception as error:
            self._stats.failed += 1
            fault = step_fault(error)
            self._loss_reason = self._loss_reason or _loss(fault)
            raise fault from error
        finally:
            self._calls -= 1
            if not self._calls:
                self._stats.current_batch_size = 0
                self._state = ExecutorState.ERROR if self._loss_reason else ExecutorState.READY

    def _capture_next(self) -> bool:
        """Capture one more graph while nothing is computed; report where the device is lost, which no step notices then."""
        try:
            return self._ready().unified.capture_next()
        except Exception as error:
            fault = step_fault(error)
            if not isinstance(fault, ExecutorDied):
                raise
            self._loss_reason, self._state = str(fault), ExecutorState.ERROR
            self._report_death(fault)
            return False

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
                allowed = None if loaded.pace is None else partial(patience, loaded.pace, batch)
                output, seconds = await self._steps.run(launch, self._check_epoch, allowed)
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
        await asyncio.to_thread(self._ready().unified.states.grammars.compiler.compile, grammar)

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
            self._runtime.unified.states.release(cache_id)

    def truncate_kv(self, handle: KvCacheHandle, new_len: int) -> int:
        """See the contract. KV past the computed length is never read, so this only checks the arguments."""
        self.truncate_kv_for_cache_id(handle.cache_id, new_len)
        return self.kv_layout().kept(handle.num_tokens, new_len)

    def truncate_kv_for_cache_id(self, cache_id: int, new_len: int) -> None:
        """Do the same as `truncate_kv`, given the id alone. Raises InvalidInput for a negative length; an unknown id is
        ignored."""
        if new_len < 0:
            raise InvalidInput(f"sequence {cache_id}: cannot truncate to {new_len} tokens")

    def release_memory(self, group: int, block_ids: Int32Array) -> None:
        """See the contract."""
        if self._runtime is not None:
            self._runtime.release_memory(group, block_ids)


class LlmLoraExecutor(LlmExecutor):
    """The same with LoRA adapters: a `LoraExecutor`."""

    _loading: asyncio.Lock
    """Held from the reading of an adapter until it is loaded, so that no other one is prepared in between."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loading = asyncio.Lock()

    async def load_adapter(self, name: str, path: str, digest: str) -> None:
        """See the contract. `path`: a file of `executors.lora`. An adapter is loaded on all ranks or on none."""
        fault: ExecutorError | None = None
        try:
            async with self._loading:
                await self.prepare_adapter(name, path, digest)
                await self._steps.settled()
                self._table.load(name, digest)
        except Exception as error:
            if not self._group.ranks:
                raise
            fault = step_fault(error)
        try:
            self._group.agree(fault)
        except ExecutorError:
            if fault is None:
                await self.unload_adapter(name)
            raise

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
    def _table(self) -> LoraTable:
        table = self._ready().unified.states.adapters
        assert table is not None, "the factory makes this class for configurations with adapters"
        return table


def _loss(error: ExecutorError) -> str:
    return str(error) if isinstance(error, ExecutorDied) else ""


def _check_head(info: ModelInfo, inputs: Sequence[PrefillInput | DecodeInput]) -> None:
    """Raise Unsupported if a request needs logits and the model has no lm_head."""
    needs_head = any(one.sampling is not None or one.logits is not LogitsMode.NONE for one in inputs)
    if needs_head and not info.generates:
        raise Unsupported(_NO_HEAD)


def _count_sampled(outputs: Sequence[PrefillOutput | DecodeOutput]) -> int:
    return sum(output.sampled is not None for output in outputs)


def _ms_since(began: float) -> float:
    return 1e3 * (time.perf_counter() - began)
