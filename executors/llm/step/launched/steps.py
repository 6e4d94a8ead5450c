"""`LaunchedSteps`: the host packs and launches steps and does not wait for them.

A step whose tokens can be chosen without the host is packed, copied once, computed by a graph or the same calls one by one,
and its results are copied back once. The device also applies penalties, biases and bans (`shaped_slots.py`) and computes
logprobs after the step (`device_logprobs.py`), and reads the masks of grammars, which the host makes while the forward runs
(`grammar_rows.py`). Drafts are verified in it: each has a sampled row, and which tokens count is decided where the results are
read (`sampled_rows.py`). What needs the host within the step is in one table (`host_steps.py`): the host's stages compute such a
step, after those launched before it, because the device executes them in order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import torch

from executors.contract import ProgressCallback
from executors.contract.batch import SequenceStart, UnifiedBatch
from executors.contract.checks import check_blocks
from executors.kernels.lora_tiles import most_tiles
from executors.llm.attention import groups
from executors.llm.device.base import DeviceMemory, StepDevice
from executors.llm.lora.device import DeviceWeights
from executors.llm.lora.table import LoraTable
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.sampling.device_sampler import DeviceSampler
from executors.llm.sampling.shaped_slots import Recording, ShapedSlots
from executors.llm.step.launched.captures import StepCaptures
from executors.llm.step.launched.grammar_rows import GrammarRows
from executors.llm.step.launched.graphs import LaunchLimits, StepGraph, StepGraphs
from executors.llm.step.launched.host_steps import HostSteps
from executors.llm.step.launched.inputs import DeviceStep, DeviceTables, HostStep, StepShape
from executors.llm.step.launched.packing import StepPacker
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.launched.plan import DevicePlan
from executors.llm.step.launched.program import DeviceProgram
from executors.llm.step.launched.queueing import RING, StepQueue
from executors.llm.step.launched.repeat import RepeatedStep
from executors.llm.step.pending_steps import PendingStep
from executors.llm.step.runner import ModelRunner
from executors.llm.step.states import SequenceStates


class StepCalls:
    """A `StepWork` that is launched call by call, for a step without a graph. `memory`: see `retried`."""

    captured = False

    def __init__(
        self, program: DeviceProgram, memory: DeviceMemory | None, shape: StepShape, plan: DevicePlan
    ) -> None:  # fmt: skip
        self._program = program
        self._memory = memory
        self._shape = shape
        self._plan = plan

    def forward(self, words: torch.Tensor) -> None:
        """See `StepWork`."""
        program, plan = self._program, self._plan
        runner, step = program.runner, DeviceStep(words, self._shape)
        attend = groups.begin(runner.attention, plan.step, runner.cache) if program.packed is None else None
        retried(self._memory, lambda: program.forward(step, attend, plan.needed))

    def sample(self, words: torch.Tensor) -> None:
        """See `StepWork`."""
        step = DeviceStep(words, self._shape)
        retried(self._memory, lambda: self._program.sample(step))


class LaunchedSteps:
    """A `Launch`. Used by the thread that computes the steps."""

    max_in_flight = 3
    """Where a step is shorter than the host's way from its result to the next launch, two would leave the device idle."""

    def __init__(
        self, states: SequenceStates, runner: ModelRunner, device: StepDevice, sampler: DeviceSampler, limits: LaunchLimits,
        memory: DeviceMemory | None, report: ProgressCallback,
    ) -> None:  # fmt: skip
        """`memory`: see `retried`; `report` receives the progress of captures, which take longer than steps."""
        if self.max_in_flight >= RING:
            raise ValueError(
                f"{self.max_in_flight} steps in flight and one being written need more than {RING} buffers"
            )
        self._states = states
        self.runner = runner
        self.device = device
        self._memory = memory
        rows, max_tokens, num_slots = limits.max_batch_size, limits.max_tokens, states.slots.num_slots
        self._tables = DeviceTables.of(self._states.slots, runner.device)
        self.shaped = ShapedSlots(
            num_slots, rows, states.max_model_len, states.logits_width, runner.device,
            lambda: self.queue.ring.drain(), limits.shaping_bytes, limits.draft_rows,
        )  # fmt: skip
        self.grammars = GrammarRows(states.grammars, num_slots)
        self.host_steps = HostSteps(states, self.shaped, limits.max_samples)
        self.program = DeviceProgram(
            runner, sampler, self._tables, states.pool.view(-1), states.logits_width, num_slots * states.pool.shape[1],
            self.shaped.table, self.shaped.results,
        )  # fmt: skip
        self._packer = StepPacker(
            states,
            self.program.packed,
            self.shaped.row_of,
            self.grammars.has,
            self._tables[0].padding_slot,
            self.program.padding_dest,
        )
        self.captures = StepCaptures(
            self.program, device, limits, states.max_model_len, report, lambda: self.queue.ring.drain()
        )
        shapes = list(self.graphs.shapes) if self.graphs else []
        shapes.append(
            StepShape(
                max_tokens, rows, limits.max_samples, max_tokens, rows, True, self.captures.most_pieces(rows),
                most_tiles(max_tokens, limits.max_adapters), len(self._tables), self.captures.most_tile_pieces(max_tokens),
            )
        )  # fmt: skip
        self.queue = StepQueue(self.program, self.shaped, lambda: self.graphs, device, memory, shapes)
        self._all_captures = [self.captures]
        self.max_step_drafts = self._max_step_drafts(limits)
        self._blocks = [tables.reshape(-1) for tables in self._states.slots.block_tables]
        self._last: RepeatedStep | None = None
        """Step launched last; None if it cannot be repeated or one of its sequences was released."""

    def _max_step_drafts(self, limits: LaunchLimits) -> int | None:
        """See `Launch`. Any of them may be shaped, if the device shapes any."""
        if not limits.max_drafts:
            return None
        shapes = len(self.shaped.table) > 1
        return min(limits.draft_rows, self.shaped.max_drafts) if shapes else limits.draft_rows

    # -- graphs --------------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> StepGraphs | None:
        """Graphs of steps, if any are captured."""
        return self.captures.graphs

    def capture_first(self, compiled: bool = False) -> bool:
        """See `Launch`."""
        # Of each model, whatever the others' come to.
        done = [captures.first(compiled) for captures in self._all_captures]
        return all(done)

    def capture_next(self) -> bool:
        """See `Launch`. Small graphs come first, of whichever model."""
        missing = [captures for captures in self._all_captures if captures.has_more]
        able = [captures for captures in missing if not captures.wait] or missing
        return bool(able) and min(able, key=lambda captures: captures.next_tokens).next()

    @property
    def capture_wait(self) -> float:
        """See `Launch`."""
        return min((captures.wait for captures in self._all_captures if captures.has_more), default=0.0)

    @property
    def can_capture(self) -> bool:
        """See `Launch`."""
        return any(captures.has_more for captures in self._all_captures)

    def capture_beside(self, captures: StepCaptures) -> None:
        """Capture the graphs of a draft model, too."""
        self._all_captures.append(captures)

    @property
    def tables(self) -> tuple[DeviceTables, ...]:
        """Block tables of each group on the device."""
        return self._tables

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`."""
        graphs = "graphs: none" if self.graphs is None else self.graphs.note
        beside = [
            f"draft model: {captures.graphs.note}" for captures in self._all_captures[1:] if captures.graphs
        ]
        sampling = f"sampling: on the device, {self.program.sampler.name}"
        return graphs, *beside, sampling, *self.host_steps.notes

    # -- state ---------------------------------------------------------------------------------------------------------

    def use_adapters(self, table: LoraTable) -> None:
        """See `Launch`."""
        assert isinstance(table.weights, DeviceWeights)
        self.program.adapters = table.weights
        if table.weights.by_torch:
            # Each such graph would hold launches for all places, hundreds a layer.
            self.captures.without_adapters()

    def trial(self) -> contextlib.AbstractContextManager[None]:
        """See `Launch`."""
        if self._states.adapters is None or self.program.adapters is None:
            return contextlib.nullcontext()
        return self._states.adapters.blanks(self.program.adapters.blank)

    def forget_trials(self) -> None:
        """See `Launch`. Their shapes are not frequent."""
        if self.graphs is not None:
            self.graphs.forget_misses()

    def begin(self, start: SequenceStart) -> bool:
        """See `SlotPart`."""
        slot, sampling = start.slot, start.sampling
        self.shaped.drop(slot)
        self.grammars.begin(start)
        slow = sampling is not None and sampling.typical_p < 1.0
        if sampling is not None and sampling.edits_logits and not slow and start.pooling is None:
            slow = not self.shaped.begin(start)
        self.host_steps.slow[slot] = slow
        return bool(self.shaped.row_of[slot] < 0)

    def drop(self, slot: int) -> None:
        """See `SlotPart`."""
        self._last = None
        self.shaped.drop(slot)
        self.grammars.drop(slot)

    def clear(self) -> None:
        """See `SlotPart`."""
        self._last = None
        self.shaped.clear()
        self.grammars.clear()

    def _take_in_tables(self, batch: UnifiedBatch) -> None:
        """Take in the changes of block tables of a step that repeats the one before it."""
        tables = batch.tables
        if len(tables.slots) or len(tables.block_ids) or len(batch.block_copies):
            check_blocks(batch, self.runner.cache.num_blocks)
            self._states.slots.update(tables)
            DeviceTables.take_in(self._tables, tables)
        capacity = self._states.slots.num_blocks[:, batch.slots] * self.runner.cache.block_size
        if (capacity <= batch.pos_offsets).any():
            self._states.blocks_needed(batch)  # which says what is missing

    # -- a step --------------------------------------------------------------------------------------------------------

    def again(self, batch: UnifiedBatch) -> PendingStep | None:
        """See `Launch`."""
        self.grammars.settle()
        last = self._last
        if last is not None and last.repeats(batch, self._states.logits_width, self._states.max_model_len):
            return self._launch_again(batch, last)
        self._last = None
        return None

    def start(self, batch: UnifiedBatch) -> PendingStep | None:
        """See `Launch`."""
        DeviceTables.take_in(self._tables, batch.tables)
        sampled = batch.is_final_chunk & self._states.samples[batch.slots]
        if self.host_steps.reason(batch, sampled) is not None:
            for slot, history in self.shaped.histories(batch, sampled).items():
                self._states.shapers.follow(slot, history)
            self.grammars.settle_host(batch.slots, self.queue.ring)
            return None
        plan = self._packer.plan(batch, sampled)
        self.shaped.prepare(batch, plan.step, sampled)
        graphs = self.graphs
        if graphs is None:
            return self._put(batch, plan, None)
        for overdue in graphs.overdue(plan.facts):
            if graphs.failure or graphs.wait:
                break
            self.captures.capture(overdue)
        return self._put(batch, plan, graphs.find(plan.facts))

    def _launch_again(self, batch: UnifiedBatch, last: RepeatedStep) -> PendingStep:
        """Launch a step that repeats the one before it, by the same graph."""
        self._take_in_tables(batch)
        if last.shaped:
            self._prepare_again(batch, last)
        last.move(batch, self._blocks, self.runner.cache.block_size)
        constrained = len(last.grammar_items) > 0
        queued = self.queue.send(batch, last.shape, last.logprobs, last.write, last.graph, constrained)
        record = None
        if last.shaped:
            items = last.following(self.shaped)
            record = self._recorder(self.shaped.recording_of(items, batch.pos_offsets[items.places] + 1))
        step = PendingDeviceStep(
            queued.buffer, last.shape.samples, last.sampled, last.places, record, last.logprobs
        )
        if constrained:
            self.grammars.hold(step, self.queue, queued, batch, last.grammar_items, last.grammar_items)
        return step

    def _prepare_again(self, batch: UnifiedBatch, last: RepeatedStep) -> None:
        """Prepare shaped rows for a step that repeats the one before it."""
        items = last.following(self.shaped)
        if not (last.all_pending and self.shaped.advance(items, batch.pos_offsets[items.places])):
            step = self._packer.arrays(batch, (np.empty((len(batch), 0), np.int32),))
            self.shaped.prepare(batch, step, last.sampled)

    def _put(
        self, batch: UnifiedBatch, plan: DevicePlan, captured: tuple[StepShape, StepGraph] | None
    ) -> PendingDeviceStep:
        """Pack a step and launch it."""
        shape, places = captured[0] if captured else plan.shape, np.arange(plan.facts.samples)
        if not shape.listed:
            places = np.argsort(plan.order)[plan.sampled]
        slots = batch.slots[plan.samplers]
        logprobs = LogprobRows.of(self._states.sampling.logprobs[slots], places, self._states.logits_width)

        def write(words: np.ndarray) -> None:
            self._packer.write(HostStep(words, shape), shape, batch, plan)

        work = captured[1] if captured else StepCalls(self.program, self._memory, shape, plan)
        rows = np.flatnonzero(plan.sampled) if shape.listed else plan.order
        constrained = self.grammars.items(batch.slots, plan.sampled, rows)
        queued = self.queue.send(batch, shape, logprobs, write, work, len(constrained) > 0)
        buffer = queued.buffer
        if captured and self._can_repeat(shape, plan):
            order, shaped = plan.order, bool((self.shaped.row_of[batch.slots] >= 0).any())
            self._last = RepeatedStep(
                batch, order, lambda: self._packer.rows(batch.slots[order]), lambda lengths: self._packer.pieces(lengths, shape),
                self._packer.pieces_last,
                buffer.words, captured, places, logprobs, shaped, constrained,
            )  # fmt: skip
        record = self._recorder_for(slots, plan.ends)
        step = PendingDeviceStep(buffer, shape.samples, plan.sampled, places, record, logprobs, plan.verified)
        if len(constrained):
            self.grammars.hold(step, self.queue, queued, batch, constrained, plan.first_samples(constrained))
        return step

    def _can_repeat(self, shape: StepShape, plan: DevicePlan) -> bool:
        """Return whether a step with a graph consists of decodes only, so that the next steps may repeat it."""
        assert self.graphs is not None
        facts = plan.facts
        alike = not shape.listed and facts.samples == facts.decodes == facts.items
        return alike and self.graphs.settled(facts)

    def _recorder_for(self, slots: np.ndarray, positions: np.ndarray) -> Callable[[np.ndarray], None] | None:
        """Return the function that receives the tokens sampled for `slots` at `positions` int64; None if they are not
        needed."""
        return self._recorder(self.shaped.recording(slots, positions))

    def _recorder(self, recording: Recording | None) -> Callable[[np.ndarray], None] | None:
        return None if recording is None else lambda tokens: self.shaped.record(recording, tokens)
