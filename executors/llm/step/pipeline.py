"""`StepPipeline`: turns a `UnifiedBatch` into a `UnifiedOutput` by stages.

    take in    check the step, store what lasts of its sequences      `HostIntake`      `parallel.stages.AgreedIntake`
    forward    hidden states, KV                                      `HostForward`
    sample     tokens of the sampled rows                             `HostSampling`    `parallel.stages.RankSampling`
    pack       prompt logprobs, pooled outputs, drafts                `HostPacking`
    guard      around forward, sample and pack                        none              `parallel.stages.ending`
    seal       checksums of the blocks that the step has filled       `BlockSeals`

    launch     forward, sample and pack as work of a device that is answered later, where the step allows it: `launched.steps`

`assembly.parts` chooses the stages for a device and its ranks. All of them write the same `SequenceStates`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch, UnifiedOutput
from executors.llm.lora.device import DeviceWeights
from executors.llm.lora.table import LoraTable
from executors.llm.memory.seals import BlockSeals
from executors.llm.step.pending_steps import ComputedStep, PendingStep
from executors.llm.step.runner import ModelRunner
from executors.llm.step.sampled_rows import SampledRows
from executors.llm.step.states import SequenceStates, SlotPart
from executors.llm.step_arrays import StateSlots, StepArrays

Compute = Callable[[UnifiedBatch], UnifiedOutput]


class TakeIn(Protocol):
    """The first stage."""

    def __call__(self, batch: UnifiedBatch) -> None:
        """Check a step, and store the state of its sequences. Raises InvalidInput."""


class Forward(Protocol):
    """The second stage."""

    def __call__(self, batch: UnifiedBatch, step: StepArrays) -> torch.Tensor:
        """Compute hidden states [T, hidden], and write KV."""


class Sample(Protocol):
    """The third stage."""

    def rows(self, batch: UnifiedBatch, step: StepArrays) -> SampledRows:
        """Find the sampled rows; called before the forward."""

    def __call__(
        self, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, where: SampledRows
    ) -> UnifiedOutput:
        """Sample, and keep of each item the tokens that verification accepts."""


class Pack(Protocol):
    """The last stage."""

    def __call__(
        self, output: UnifiedOutput, batch: UnifiedBatch, step: StepArrays, hidden: torch.Tensor, special: np.ndarray
    ) -> None:  # fmt: skip
        """Complete the output. `special` int64: items whose slots are marked so."""


class Launch(SlotPart, Protocol):
    """In place of forward, sample and pack: work that is launched and answered later."""

    max_in_flight: int
    """Number of steps that may be in flight at once."""

    @property
    def max_step_drafts(self) -> int | None:
        """Most drafts of a step that needs no host for them; None: none are expected."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`."""

    def again(self, batch: UnifiedBatch) -> PendingStep | None:
        """Launch a step that repeats the one before it, without taking it in; None if it does not."""

    def start(self, batch: UnifiedBatch) -> PendingStep | None:
        """Launch a step that was taken in; None if the host is needed within it."""

    def use_adapters(self, table: LoraTable) -> None:
        """Use LoRA adapters. Called once, before the first step."""

    def trial(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for steps that are tried out before the executor serves."""

    def forget_trials(self) -> None:
        """Forget what was learned from steps that were tried out: they say nothing of those that will come."""

    @property
    def can_capture(self) -> bool:
        """Whether `capture_next` has something left to capture."""

    def capture_first(self, compiled: bool = False) -> bool:
        """Capture the graphs that the first requests need, and compile kernels, unless an earlier process has `compiled` them:
        then each is loaded at its first launch. Return whether all are compiled."""

    def capture_next(self) -> bool:
        """Capture one more graph; return False if none is left."""

    @property
    def capture_wait(self) -> float:
        """Seconds to wait before the next call of `capture_next`, after memory was too short for a graph."""


class Follower(Protocol):
    """Drafts behind launched steps: `spec.device_companion.DeviceDraftCompanion`."""

    def note(self, batch: UnifiedBatch) -> None:
        """Take in which blocks change hands and which are copied. A step that the host computes calls it by itself."""

    def follow(self, batch: UnifiedBatch, step: PendingStep) -> PendingStep:
        """Return the step with drafts in its output."""

    def trial(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which want of memory for drafts is an error, as in steps that tell how much memory they need."""


@dataclass(slots=True)
class Stages:
    """See the module."""

    take_in: TakeIn
    forward: Forward
    sample: Sample
    pack: Pack
    guard: Callable[[Compute], Compute] | None = None


class StepPipeline:
    """See the module."""

    def __init__(
        self, states: SequenceStates, runner: ModelRunner, stages: Stages, launched: Launch | None = None
    ) -> None:  # fmt: skip
        self.states = states
        self.runner = runner
        self.stages = stages
        self.launched = launched
        self.seals: BlockSeals | None = None
        """Makes the checksums that steps ask for; None if no block outlives this process."""
        self.follower: Follower | None = None
        """Drafts behind steps, where steps are launched and there is a draft model."""
        states.part = launched

    @property
    def max_in_flight(self) -> int:
        """Number of steps that may be in flight at once; more than one on devices that compute asynchronously."""
        return 1 if self.launched is None else self.launched.max_in_flight

    @property
    def max_step_drafts(self) -> int | None:
        """See `ExecutorCapabilities`."""
        return None if self.launched is None else self.launched.max_step_drafts

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`."""
        notes = () if self.launched is None else self.launched.notes
        weights = None if self.states.adapters is None else self.states.adapters.weights
        return (*notes, weights.note) if isinstance(weights, DeviceWeights) else notes

    def use_adapters(self, table: LoraTable) -> None:
        """Use LoRA adapters. Called once, before the first step."""
        self.states.adapters = table
        if self.launched is not None:
            self.launched.use_adapters(table)

    # -- a step --------------------------------------------------------------------------------------------------------

    def run(self, batch: UnifiedBatch) -> UnifiedOutput:
        """Compute a step. Raises InvalidInput before any computation starts."""
        return self.launch(batch).result()

    def launch(self, batch: UnifiedBatch) -> PendingStep:
        """Launch a step after those launched before; without `Launch` it is computed now. Raises as `run`."""
        if not len(batch):
            return ComputedStep(UnifiedOutput(np.empty(0, np.int32), np.empty(0, np.int32)))
        if self.launched is not None:
            return self._launch(self.launched, batch)
        self.stages.take_in(batch)
        return ComputedStep(self._compute(batch))

    @torch.inference_mode()
    def _launch(self, launched: Launch, batch: UnifiedBatch) -> PendingStep:
        step = launched.again(batch)
        if step is None:
            self.stages.take_in(batch)
            step = launched.start(batch)
        follower = self.follower
        if step is None:
            step = ComputedStep(self._compute(batch))
        elif follower is not None:
            follower.note(batch)
        return step if follower is None else follower.follow(batch, step)

    def _compute(self, batch: UnifiedBatch) -> UnifiedOutput:
        guard = (
            self.stages.guard
        )  # not kept around the method: that would be a circle, which keeps KV until it is collected
        output = self._by_stages(batch) if guard is None else guard(self._by_stages)(batch)
        if self.seals is not None and len(batch.seals):
            output.checksums = self.seals.checksums(batch.seals)
        return output

    @torch.inference_mode()
    def _by_stages(self, batch: UnifiedBatch) -> UnifiedOutput:
        stages = self.stages
        step = self._arrays(batch)
        sampled = stages.sample.rows(batch, step)
        special = np.flatnonzero(self.states.special[batch.slots])
        companion = self.states.companion
        all_rows = len(special) > 0 or (companion is not None and companion.reads_hidden)
        if not all_rows and len(sampled.rows) < len(step.token_ids):
            step.used_rows = sampled.rows
        hidden = stages.forward(batch, step)
        output = stages.sample(batch, step, hidden, sampled)
        stages.pack(output, batch, step, hidden, special)
        return output

    def _arrays(self, batch: UnifiedBatch) -> StepArrays:
        """Pack the batch's items with the block tables of their slots. Raises InvalidInput for a table that is too short."""
        states = self.states
        tables, *more_tables = states.tables_of(batch, states.blocks_needed(batch))
        q_lens, pos_offsets = batch.num_q_tokens.astype(np.int64), batch.pos_offsets.astype(np.int64)
        adapters = None
        if states.adapters is not None:
            adapters = states.adapters.rows_of_slots(batch.slots, q_lens)
        return StepArrays(
            batch.token_ids.astype(np.int64), q_lens, pos_offsets, tables, adapters=adapters,
            states=_state_slots(batch),
            more_tables=tuple(more_tables),
        )  # fmt: skip

    # -- before the executor serves, and between steps -------------------------------------------------------------------

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Return a context for steps that are tried out before the executor serves."""
        with contextlib.ExitStack() as parts:
            if self.launched is not None:
                parts.enter_context(self.launched.trial())
            elif self.runner.states is not None:
                parts.enter_context(self.runner.states.trusting())
            if self.follower is not None:
                parts.enter_context(self.follower.trial())
            yield

    def forget_trials(self) -> None:
        """Forget what was learned from steps that were tried out."""
        if self.launched is not None:
            self.launched.forget_trials()

    @property
    def can_capture(self) -> bool:
        """Whether `capture_next` has something left to capture."""
        return self.launched is not None and self.launched.can_capture

    def capture_first(self, compiled: bool = False) -> bool:
        """Capture the graphs that the first requests need. See `Launch`."""
        return self.launched is not None and self.launched.capture_first(compiled)

    def capture_next(self) -> bool:
        """Capture one more graph; return False if none is left."""
        return self.launched is not None and self.launched.capture_next()

    @property
    def capture_wait(self) -> float:
        """Seconds to wait before the next call of `capture_next`."""
        return 0.0 if self.launched is None else self.launched.capture_wait


def _state_slots(batch: UnifiedBatch) -> StateSlots | None:
    """Return the slots of states that a batch names, None if it names none."""
    if batch.state_src is None or batch.state_dst is None:
        return None
    return StateSlots(
        batch.state_src.astype(np.int64), batch.state_dst.astype(np.int64), batch.snapshots.astype(np.int64)
    )
