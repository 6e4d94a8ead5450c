"""Puts the parts of an executor together: which attention, stages and sampler a model gets on its device and rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from executors.contract.config import ExecutorConfig
from executors.contract.errors import ConfigError
from executors.contract.interface import ProgressCallback
from executors.contract.status import KvLayout, ModelInfo
from executors.kernels import triton_build
from executors.kernels.compiler import KernelUnavailable
from executors.kernels.cpu import CpuKernels, cpu_kernels
from executors.llm.assembly.device_sizing import graph_bytes
from executors.llm.device.base import Device, DeviceMemory, StepDevice
from executors.llm.device.ranges import PROFILE_RANGES
from executors.llm.device.table import device_of
from executors.llm.kernel_support.kernel_choice import (
    AttentionWish,
    choose_adapters,
    choose_attention,
    fuse,
    rehearse,
)
from executors.llm.kernel_support.passed_checks import PassedChecks, name_of
from executors.llm.kernel_support.rehearsals import Rehearsals, Rehearsed
from executors.llm.lora.table import LoraTable
from executors.llm.memory import sizing
from executors.llm.memory.arena import KvArena
from executors.llm.memory.fingerprint import content_digest, kv_fingerprint
from executors.llm.memory.kv_groups import draft_group, draft_layout
from executors.llm.memory.kv_plan import KvPlan, free_bytes, plan_kv
from executors.llm.memory.paged_kv import PagedKv
from executors.llm.memory.seals import BlockSeals
from executors.llm.model.api import DecoderOnlyLLM, LoadedModel, PreparedModel
from executors.llm.model.caches import kv_group, state_group
from executors.llm.model.decoder import Decoder
from executors.llm.model.mtp_head import MtpHead
from executors.llm.parallel.group import RankGroup
from executors.llm.runtime import ExecutorRuntime
from executors.llm.sampling.device_sampler import DeviceSampler, TorchDeviceSampler
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.sampling.shaped_slots import TABLE_BYTES
from executors.llm.spec.base import ModelSide
from executors.llm.spec.companion import DraftCompanion
from executors.llm.spec.device_companion import DeviceDraftCompanion
from executors.llm.spec.device_forwards import DraftForwards
from executors.llm.spec.mtp import MtpCompanion
from executors.llm.step.direct import DirectRunner
from executors.llm.step.intake import HostIntake
from executors.llm.step.launched.captures import StepCaptures
from executors.llm.step.launched.graphs import MIXED_TOKENS, LaunchLimits, affordable
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.launched.steps import LaunchedSteps
from executors.llm.step.pipeline import StepPipeline
from executors.llm.step.runner import ModelRunner
from executors.llm.step.states import Companion, SequenceStates

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Assembly:
    """Makes the parts of one executor. `report` receives the progress of what takes long."""

    config: ExecutorConfig
    source: LoadedModel
    device: Device
    group: RankGroup
    report: ProgressCallback
    arena: KvArena | None = None
    """Memory for KV that outlives this process, if the server has offered some."""
    checks: PassedChecks = field(default_factory=PassedChecks)
    """Those that have passed before."""
    rehearsals: Rehearsals | None = None
    """Compiles kernels ahead of their first launches; None: each is compiled there."""
    draft: LoadedModel | None = None
    """The draft model or the MTP head, if there is one."""

    @property
    def memory(self) -> DeviceMemory | None:
        """The device's own memory, if steps may be tried again when it runs out."""
        return self.device.memory if self.group.retries else None

    def planned(self) -> KvPlan:
        """Plan KV in the machine's memory, or in a device's after what a step is estimated to take."""
        spec, config = kv_group(self.source.model), self.config
        claims, beside = sizing.claims(config, self.source), sizing.kv_bytes_beside(self.draft)
        states = state_group(self.source.model)

        def planned(config: ExecutorConfig) -> KvPlan:
            return plan_kv(spec, config, self.source.info.max_model_len, claims, beside=beside, states=states)

        return self.group.plan(planned(config), lambda length: planned(replace(config, max_model_len=length)))

    def runtime(self, plan: KvPlan) -> ExecutorRuntime:
        """Build every part that computes, with KV of the given plan. On a device this happens more than once, see
        `DeviceSizing`."""
        config, source = self.config, self.source
        info = replace(source.info, max_model_len=plan.max_model_len)
        if isinstance(source.model, PreparedModel):
            source.model.prepare(plan.max_model_len)
        sizing.check_slots(config, info.max_model_len, len(plan.layout.groups))
        arena = self.arena
        runner = self._runner(source.model, plan.layout, arena)
        pipeline = self._pipeline(runner, info.max_model_len, plan.layout, arena)
        if arena is not None and self.group.all_have(runner.cache.by_block and arena.fault is None):
            pipeline.seals = self._seals(runner, info, plan.layout, arena)
            plan = replace(
                plan, layout=self._placed(runner, plan.layout, info, arena, pipeline.seals.fingerprint)
            )
        pipeline.states.label_width = info.label_width
        direct = DirectRunner(runner, info.max_model_len, source.info.logits_width, self.group.direct_guard)
        if (adapters := self._adapters(runner, pipeline)) is not None:
            pipeline.use_adapters(adapters)
            direct.adapters = adapters
        # Before the largest steps, which are the first to launch them.
        launched = pipeline.launched
        if self.rehearsals is not None and isinstance(launched, LaunchedSteps) and _rehearsed(source.model):
            self.rehearsals.compile("steps", launched.captures.rehearse)
        runtime = ExecutorRuntime(source, info, plan, runner, pipeline, direct, self.device)
        if self.draft is not None:
            self._add_draft(runtime, self.draft)
        return runtime

    def _add_draft(self, runtime: ExecutorRuntime, draft: LoadedModel) -> None:
        """Make what runs the draft model or the MTP head, with KV in the blocks of the model's, and let steps use it."""
        model, pipeline = draft.model, runtime.unified
        states, launched, layout = pipeline.states, pipeline.launched, runtime.plan.layout
        length = min(draft.info.max_model_len, runtime.info.max_model_len)
        if launched is None and self.device.launches:
            raise ConfigError(
                f"draft_model: models of {type(runtime.source.model).__name__} are not launched on {self.device.name}, "
                "which drafts follow; take drafts from n-grams"
            )
        if isinstance(model, PreparedModel):
            model.prepare(length)
        runner = self._runner(model, draft_layout(layout, kv_group(model)))
        # On a device the host sees the tokens later than the pool.
        states.history = states.pool.numpy() if launched is None else np.zeros(states.pool.shape, np.int32)
        group = draft_group(layout)
        side = ModelSide(states.slots, group, states.sampling, states.history, runtime.info.logits_width)
        companion: Companion
        tokens = self.config.max_num_batched_tokens
        if isinstance(model, MtpHead):
            companion = MtpCompanion(runner, side, length, states.samples, runtime.info.hidden_size)
        elif isinstance(launched, LaunchedSteps):
            forwards = self._draft_forwards(runner, draft, states, group, launched, length)
            companion = pipeline.follower = DeviceDraftCompanion(forwards, side, length, tokens)
        else:
            companion = DraftCompanion(runner, side, length, tokens)
        states.companion = companion
        runtime.draft, runtime.companion = draft, companion

    def _draft_forwards(
        self, runner: ModelRunner, draft: LoadedModel, states: SequenceStates, group: int, launched: LaunchedSteps,
        length: int,
    ) -> DraftForwards:  # fmt: skip
        """Make what launches a draft model's forwards, of sequences of up to `length` tokens. Raises ConfigError for a model
        without a unified forward."""
        if not runner.takes_packed:
            raise ConfigError(
                f"draft_model: models of {type(draft.model).__name__} are not launched on {self.device.name}; take drafts from "
                "n-grams"
            )
        sampler, dtype = launched.program.sampler, kv_group(draft.model).dtype
        if dtype is not kv_group(self.source.model).dtype:
            sampler = device_sampler(
                runner.device, self._most_rows(), states.logits_width, dtype, self.checks
            )
        forwards = DraftForwards(
            runner,
            sampler,
            states,
            group,
            launched,
            launched.device,
            self._limits(),
            length,
            self.memory,
            self.report,
        )
        with torch.inference_mode():
            forwards.program.logits(torch.zeros(1, draft.info.hidden_size, dtype=dtype, device=runner.device))
        if launched.graphs is None:  # the model's would have reserved memory for both
            self._reserve(forwards.captures, draft.model, draft.activation_bytes_per_token)
        launched.capture_beside(forwards.captures)
        if self.rehearsals is not None and _rehearsed(draft.model):
            self.rehearsals.compile("steps of the draft model", forwards.captures.rehearse)
        return forwards

    def _seals(self, runner: ModelRunner, info: ModelInfo, layout: KvLayout, arena: KvArena) -> BlockSeals:
        """Make what seals and verifies blocks."""
        config, combine = self.config, self.group.combine
        digest = kv_fingerprint(config, info, layout, self._computed_by(runner), self.source.files)
        words = combine(np.frombuffer(bytes.fromhex(digest), np.uint64).copy())
        rank = config.parallel.rank
        return BlockSeals(
            words.tobytes().hex(), runner.cache, arena, self._kernels(), torch.get_num_threads, combine, rank, runner.states
        )  # fmt: skip

    def _placed(
        self, runner: ModelRunner, layout: KvLayout, info: ModelInfo, arena: KvArena, fingerprint: str
    ) -> KvLayout:
        """Return the layout with its digests, and with the places of blocks in the memory file."""
        if self.group.ranks is not None:
            return replace(layout, fingerprint=fingerprint)
        groups = tuple(
            group
            if cache is None or cache.blocks is None
            else replace(group, memory_begin=arena.begin_of(cache.blocks))
            for group, cache in zip(layout.groups, runner.cache.caches, strict=True)
        )
        state = layout.state
        if state is not None and runner.states is not None and runner.states.slots is not None:
            state = replace(state, memory_begin=arena.begin_of(runner.states.slots))
        content = content_digest(self.config, info, layout, self._computed_by(runner), self.source.files)
        return replace(layout, groups=groups, state=state, fingerprint=fingerprint, content=content)

    def _computed_by(self, runner: ModelRunner) -> tuple[object, ...]:
        """What determines the bytes of blocks and states, beside settings and weights."""
        states = None if runner.states is None else runner.states.spec
        kernels = self._kernels()
        attention = runner.attention
        return runner.cache.spec, states, attention.note, type(attention).__name__, kernels and kernels.name

    def _kernels(self) -> CpuKernels | None:
        try:
            return cpu_kernels(self.config.optimization.cpu_isa)
        except KernelUnavailable:
            return None

    def _runner(self, model: DecoderOnlyLLM, layout: KvLayout, arena: KvArena | None = None) -> ModelRunner:
        """Make the runner that computes the forwards, and its KV."""
        config = self.config
        self.report("KV cache", 0, 0)
        spec = kv_group(model)
        cache = PagedKv(spec, layout.groups, layout.block_size, _take(arena, spec.device))
        # Kernels of attention and sampler compute a few numbers before they are used.
        self.report("checking kernels", 0, 0)
        if self.rehearsals is not None:
            self.rehearsals.compile("checks", lambda: self._rehearse_checks(model, cache))
            self.report("checking kernels", 0, 0)
        attention = choose_attention(
            cache.spec, config.attention.backend, config.optimization.deterministic, config.optimization.cpu_isa,
            cache.block_size, self.device, self.checks,
        )  # fmt: skip
        fuse(attention, model, self.checks)
        runner = ModelRunner(model, attention, cache)
        if config.options.get(PROFILE_RANGES):
            runner.ranges = self.device.range
            if isinstance(model, Decoder):
                model.ranges = self.device.range
        return runner

    def _rehearse_checks(self, model: DecoderOnlyLLM, cache: PagedKv) -> None:
        """Launch what the checks of this model's kernels launch. The sampler's take longest to compile and come first."""
        config = self.config
        if self.device.launches and self.group.launches:
            width, dtype = self.source.info.logits_width, kv_group(model).dtype
            device_sampler(cache.spec.device, self._most_rows(), width, dtype, Rehearsed())
        wish = AttentionWish(cache.spec, self.device, cache.block_size, config.optimization.cpu_isa)
        rehearse(wish, model, config.attention.backend, config.optimization.deterministic)

    def _pipeline(
        self, runner: ModelRunner, max_model_len: int, layout: KvLayout, arena: KvArena | None
    ) -> StepPipeline:
        """Make what computes steps. Raises ConfigError if the host has no memory for tables of its slots."""
        config, group, cache = self.config, self.group, runner.cache
        directory = config.tokenizer or config.model
        compiler = GrammarCompiler(Path(directory) if directory else None, self.source.info.logits_width)
        steps = self.device.steps() if group.launches and runner.takes_packed else None
        try:
            runner.hold_states(layout.state, _take(arena, runner.device))
            # Before the states: its check takes memory that is free again afterwards.
            sampler = None if steps is None else self._sampler(runner, compiler.width)
            states = SequenceStates(
                sizing.num_slots(config),
                max_model_len,
                cache.block_size,
                compiler,
                runner.device,
                group.leads,
                cache.windows,
            )
            launched = None
            if steps is not None and sampler is not None:
                launched = self._launched(states, runner, steps, sampler)
            intake = HostIntake(states, layout, config.max_num_seqs, runner.states)
            return StepPipeline(states, runner, group.stages(states, runner, intake, self.memory), launched)
        except MemoryError:  # a limit on address space
            raise sizing.slots_do_not_fit(config, max_model_len, len(cache.caches)) from None

    def _sampler(self, runner: ModelRunner, width: int) -> DeviceSampler:
        dtype = kv_group(runner.model).dtype
        return device_sampler(runner.device, self._most_rows(), width, dtype, self.checks)

    def _most_rows(self) -> int:
        return max(self._limits().max_samples, MIXED_TOKENS[0])

    def _launched(
        self, states: SequenceStates, runner: ModelRunner, steps: StepDevice, sampler: DeviceSampler
    ) -> LaunchedSteps:
        """Make what launches steps on a device."""
        launched = LaunchedSteps(states, runner, steps, sampler, self._limits(), self.memory, self.report)
        each = self.source.activation_bytes_per_token
        if self.draft is not None:  # its graphs use the same memory
            each = max(each, self.draft.activation_bytes_per_token)
        self._reserve(launched.captures, runner.model, each)
        return launched

    def _reserve(self, captures: StepCaptures, model: DecoderOnlyLLM, each: int) -> None:
        """Reserve memory for graphs of steps that take `each` bytes a token; those that would take too much are left out."""
        if (graphs := captures.graphs) is None:
            return
        # Logits in float32 beside what a forward takes, unless they go where they stay.
        logits = 0 if getattr(model, "writes_logits", False) else 4 * self.source.info.logits_width

        def num_bytes(shape: StepShape) -> int:
            return shape.tokens * each + shape.samples * logits

        graphs.shapes = affordable(graphs.shapes, num_bytes, _graph_share(self.device.memory))
        # The largest take it all; others are cut from the same memory.
        captures.reserve(max(map(num_bytes, graphs.shapes)))

    def _limits(self) -> LaunchLimits:
        """Sizes for which launched steps take memory."""
        config, settings = self.config, self.config.optimization
        return LaunchLimits(
            config.max_num_seqs, config.max_num_batched_tokens, settings.enforce_eager, _shaping_bytes(self.device.memory),
            settings.max_loras, settings.max_drafts,
        )  # fmt: skip

    def _adapters(self, runner: ModelRunner, pipeline: StepPipeline) -> LoraTable | None:
        """Make room for LoRA adapters, if the configuration asks for it. Raises ConfigError for a model that has no place for
        them."""
        settings, model = self.config.optimization, self.source.model
        if not settings.max_loras:
            return None
        if not isinstance(model, Decoder):
            raise ConfigError("max_loras: this model has no place for LoRA adapters")
        on_device = pipeline.launched is not None
        weights = choose_adapters(
            model, runner.attention, settings.max_loras, settings.max_lora_rank, on_device, self.checks
        )
        return LoraTable(weights, settings.max_loras, pipeline.states.slots.num_slots)


def fitting(
    config: ExecutorConfig,
    source: LoadedModel,
    device: Device,
    group: RankGroup,
    draft: LoadedModel | None = None,
) -> ExecutorConfig:
    """Return the configuration with batch limits that this machine supports, on all ranks. `draft`: what is computed beside the
    model."""
    # Reading memory only when all have loaded their weights: the same memory may be free to all of them.
    group.wait()
    free, _ = free_bytes(device.memory, config)
    if device.launches and group.launches:
        return group.limits(
            sizing.fitting(
                config, source, free, device, lambda at: graph_bytes(at) + sizing.draft_bytes(at, draft)
            )
        )
    return group.limits(sizing.fitting(config, source, free, device))


def _rehearsed(model: DecoderOnlyLLM) -> bool:
    """Return whether steps may be rehearsed: where kernels that write nothing leave no index for torch to use. Layers that torch
    computes, and experts, may take theirs from what a layer before has computed."""
    return isinstance(model, Decoder) and model.fused and model.config.moe is None


def _take(arena: KvArena | None, device: torch.device) -> Callable[[int], NDArray[np.uint8] | None] | None:
    """What gives memory that outlives this process, if there is some."""
    return None if arena is None or device.type != "cpu" else arena.take


def _graph_share(memory: DeviceMemory | None) -> int:
    """Bytes that graphs of many tokens may reserve: 1/32 of the device."""
    return 1 << 62 if memory is None else memory.free_and_total()[1] // 32


def _shaping_bytes(memory: DeviceMemory | None) -> int:
    """Bytes of the table that shapes logits; smaller on a small device."""
    return TABLE_BYTES if memory is None else min(TABLE_BYTES, memory.free_and_total()[1] // 64)


def device_sampler(
    device: torch.device, max_rows: int, width: int, dtype: torch.dtype, checks: PassedChecks | None = None
) -> DeviceSampler:
    """Return Cohort's kernels if Triton is available and they pass their check, else torch calls. `dtype`: that of the
    logits. `checks`: those that have passed before."""
    if device_of(device).compiles:
        try:
            if (lacking := triton_build.missing()) is not None:
                raise ImportError(lacking)
            from executors.llm.kernel_support.kernel_check import sampler_fault
            from executors.llm.sampling.triton_sampler import TritonSampler

            sampler = TritonSampler(max_rows, width, device)
            name = name_of("sampler", max_rows, width, dtype)
            wrong = (checks or PassedChecks()).fault(
                name, lambda: sampler_fault(sampler, max_rows, width, dtype, device)
            )
            if wrong is not None:
                raise ValueError(wrong)
            return sampler
        except (ImportError, ValueError) as error:
            _log.warning("sampling: torch, which is slower than Cohort's Triton kernels: %s", error)
    return TorchDeviceSampler()
