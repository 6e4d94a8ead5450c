"""`LaunchedSteps`: the host packs and launches steps and does not wait for them.

A step whose tokens can be chosen without the host is packed, copied once, computed by a graph or the same calls one by one,
and its results are copied back once. The device also applies penalties, biases and bans (`shaped_slots.py`) and computes
logprobs after the step (`device_logprobs.py`). Grammars, typical-p, bad words of several tokens, drafts, prompt logprobs and
pooling need the host within the step: the host's stages compute such a step, after those launched before it, because the device
executes them in order.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from executors.contract import ProgressCallback
from executors.contract.batch import SequenceStart, UnifiedBatch
from executors.contract.checks import check_blocks
from executors.contract.faults import no_device_memory, no_memory
from executors.kernels.lora_tiles import most_tiles
from executors.llm.attention.packed import PackedAttention
from executors.llm.device.base import DeviceMemory, Graph, StepDevice
from executors.llm.lora.device import DeviceWeights
from executors.llm.lora.table import LoraTable
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.device_logprobs import LogprobRows
from executors.llm.sampling.device_sampler import DeviceSampler
from executors.llm.sampling.shaped_slots import TABLE_BYTES, Recording, ShapedSlots
from executors.llm.step.launched.graphs import (
    AT_START,
    StepGraphs,
    adapted_shapes,
    decode_shapes,
    mixed_shapes,
)
from executors.llm.step.launched.inputs import (
    BufferRing,
    DeviceStep,
    DeviceTables,
    HostStep,
    StepBuffer,
    StepShape,
    Tail,
    num_words,
    result_words,
)
from executors.llm.step.launched.packing import StepPacker
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.launched.plan import DevicePlan
from executors.llm.step.launched.program import DeviceProgram
from executors.llm.step.launched.repeat import RepeatedStep
from executors.llm.step.pending_steps import PendingStep
from executors.llm.step.runner import ModelRunner
from executors.llm.step.states import SequenceStates

_log = logging.getLogger(__name__)

RING = 3
"""Number of steps with buffers of their own: two in flight, and one being written."""
_CHANGES = 1 << 12
"""Number of changes of block tables for which the input memory has room; a step with more gets memory of its own."""


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """Sizes for which memory is taken. `max_batch_size` and `max_tokens` of a step; `eager`: no graphs; `shaping_bytes`: largest
    size of the table of shaped slots; `max_adapters`: most LoRA adapters of a step."""

    max_batch_size: int
    max_tokens: int
    eager: bool = False
    shaping_bytes: int = TABLE_BYTES
    max_adapters: int = 0


class LaunchedSteps:
    """A `Launch`. Used by the thread that computes the steps."""

    max_in_flight = 2
    queueing: Callable[[], contextlib.AbstractContextManager[None]] = staticmethod(contextlib.nullcontext)
    """Context entered around the queueing of a step's work, from copy to copy, so that a caller can measure when the device
    executes it."""

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
        self._memory = memory
        self._report = report
        self._max_batch_size, max_tokens = limits.max_batch_size, limits.max_tokens
        max_adapters, num_slots = limits.max_adapters, states.slots.num_slots
        self._device = device
        self._max_tokens = max_tokens
        self._graph_adapters = max_adapters
        """Most LoRA adapters of a step with a graph."""
        self._slow = np.zeros(num_slots, np.bool_)
        """Marks slots whose tokens need the host to choose them."""
        self._tables = DeviceTables(self._states.slots.block_tables[0], runner.device)
        self.shaped = ShapedSlots(
            num_slots, self._max_batch_size, states.max_model_len, states.logits_width, runner.device,
            lambda: self._ring.drain(), limits.shaping_bytes,
        )  # fmt: skip
        self.program = DeviceProgram(
            runner, sampler, self._tables, states.pool.view(-1), states.logits_width, num_slots * states.pool.shape[1],
            self.shaped.table,
        )  # fmt: skip
        self._packer = StepPacker(
            states,
            self.program.packed,
            self.shaped.row_of,
            self._tables.padding_slot,
            self.program.padding_dest,
        )
        self.graphs = self._make_graphs(limits.eager)
        shapes, rows = list(self.graphs.shapes) if self.graphs else [], self._max_batch_size
        shapes.append(
            StepShape(
                max_tokens, rows, rows, max_tokens, rows, True, self._most_pieces(rows),
                most_tiles(max_tokens, max_adapters),
            )
        )  # fmt: skip
        self._words = max(num_words(shape) for shape in shapes) + 3 * _CHANGES
        samples = max(shape.samples for shape in shapes)
        self.program.reserve(self._words, samples, max(shape.pieces for shape in shapes))
        self._blocks = self._states.slots.block_tables[0].reshape(-1)
        self._last: RepeatedStep | None = None
        """Step launched last; None if it cannot be repeated or one of its sequences was released."""
        self._ring = BufferRing(
            [
                StepBuffer(self._words, result_words(samples), device.pinned, device.event())
                for _ in range(RING)
            ]
        )

    def _make_graphs(self, eager: bool) -> StepGraphs | None:
        packed = self.program.packed
        if eager or packed is None or not self._device.captures:
            return None
        return StepGraphs(self._device, self._padded_shapes(packed), self.program.captured)

    def _padded_shapes(self, packed: PackedAttention) -> list[StepShape]:
        rows, pieces = self._max_batch_size, self._most_pieces
        mixed = mixed_shapes(rows, self._max_tokens, packed.queries_per_tile, pieces)
        shapes = [*decode_shapes(rows, pieces), *mixed]
        return [*shapes, *adapted_shapes(shapes, self._graph_adapters)]

    def _most_pieces(self, rows: int) -> int:
        packed = self.program.packed
        return 0 if packed is None else packed.most_pieces(rows, self._states.max_model_len)

    # -- graphs --------------------------------------------------------------------------------------------------------

    def reserve(self, num_bytes: int) -> None:
        """Reserve memory for graphs. If that memory is unavailable, the start fails; if the device cannot capture, there are
        no graphs."""
        if self.graphs is not None:
            try:
                self._device.reserve(num_bytes)
            except Exception as error:
                if no_memory(error) is not None:
                    raise
                self._device.check()
                self.graphs.fail("reserve memory for graphs", error)

    def capture_first(self) -> None:
        """See `Launch`. Captures the smallest few graphs and compiles all remaining kernels before the first step."""
        if self._device.compiles:
            self._compile()
        for _ in range(AT_START):
            if not self.capture_wait:
                self.capture_next()

    @torch.inference_mode()
    def _compile(self) -> None:
        """Run padding steps of all padded sizes. Otherwise the first step that launches a kernel compiles it, which takes
        seconds for several kernels."""
        packed = self.program.packed
        if packed is None:
            return
        pieces = min(1, self._most_pieces(1))
        alone = [StepShape(1, 1, 1, decodes=1, pieces=pieces), StepShape(4, 3, 1, 1, 1, True, pieces)]
        alone += [replace(one, lora_tiles=1) for one in alone if self._graph_adapters]
        shapes = [*alone, *self._padded_shapes(packed)]
        for number, shape in enumerate(shapes):
            self._report("kernels", number, len(shapes))
            try:
                self.program.captured(shape)()
            except Exception as error:
                why = no_device_memory(error)
                if why is None:
                    raise
                # Steps are made smaller, too, until they fit.
                _log.warning("kernels for steps of %d tokens are not compiled yet: %s", shape.tokens, why)
                break
        self._report("kernels", len(shapes), len(shapes))

    def capture_next(self) -> bool:
        """See `Launch`. Captures the smallest missing graph."""
        shape = self.graphs.missing if self.graphs is not None else None
        if shape is not None:
            self._capture(shape)
        return shape is not None

    @property
    def capture_wait(self) -> float:
        """See `Launch`."""
        return 0.0 if self.graphs is None else self.graphs.wait

    @property
    def can_capture(self) -> bool:
        """See `Launch`."""
        return self.graphs is not None and self.graphs.missing is not None

    def _capture(self, shape: StepShape) -> None:
        assert self.graphs is not None
        self._ring.drain()
        stage = f"CUDA graph for {shape.tokens} {'mixed tokens' if shape.listed else 'sequences'}"
        self._report(stage, 0, 1)
        self.graphs.capture(shape)
        self._report(stage, 1, 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`."""
        graphs = "graphs: none" if self.graphs is None else self.graphs.note
        return graphs, f"sampling: on the device, {self.program.sampler.name}"

    # -- state ---------------------------------------------------------------------------------------------------------

    def use_adapters(self, table: LoraTable) -> None:
        """See `Launch`."""
        assert isinstance(table.weights, DeviceWeights)
        self.program.adapters = table.weights
        if table.weights.by_torch:
            # Each such graph would hold launches for all places, hundreds a layer.
            self._graph_adapters = 0
            if self.graphs is not None:
                self.graphs.shapes = [shape for shape in self.graphs.shapes if not shape.lora_tiles]

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
        slow = sampling is not None and (sampling.typical_p < 1.0 or start.grammar is not None)
        if sampling is not None and sampling.edits_logits and not slow and start.pooling is None:
            slow = not self.shaped.begin(start)
        self._slow[slot] = slow
        return bool(self.shaped.row_of[slot] < 0)

    def drop(self, slot: int) -> None:
        """See `SlotPart`."""
        self._last = None
        self.shaped.drop(slot)

    def clear(self) -> None:
        """See `SlotPart`."""
        self._last = None
        self.shaped.clear()

    def _take_in_tables(self, batch: UnifiedBatch) -> None:
        """Take in the changes of block tables of a step that repeats the one before it."""
        tables = batch.tables
        if len(tables.slots) or len(tables.block_ids) or len(batch.block_copies):
            check_blocks(batch, self.runner.cache.num_blocks)
            self._states.slots.update(tables)
            self._tables.changed(tables.slots, tables.starts, tables.counts)
        capacity = self._states.slots.num_blocks[0, batch.slots] * self.runner.cache.block_size
        if (capacity <= batch.pos_offsets).any():
            self._states.blocks_needed(batch)  # which says what is missing

    # -- a step --------------------------------------------------------------------------------------------------------

    def again(self, batch: UnifiedBatch) -> PendingStep | None:
        """See `Launch`."""
        last = self._last
        if last is not None and last.repeats(batch, self._states.logits_width, self._states.max_model_len):
            return self._launch_again(batch, last)
        self._last = None
        return None

    def start(self, batch: UnifiedBatch) -> PendingStep | None:
        """See `Launch`."""
        self._tables.changed(batch.tables.slots, batch.tables.starts, batch.tables.counts)
        sampled = batch.is_final_chunk & self._states.samples[batch.slots]
        if self._needs_host(batch, sampled):
            for slot, history in self.shaped.histories(batch, sampled).items():
                self._states.shapers.follow(slot, history)
            return None
        plan = self._packer.plan(batch, sampled)
        self.shaped.prepare(batch, plan.step, sampled)
        graphs = self.graphs
        if graphs is None:
            return self._put(batch, plan, None)
        for overdue in graphs.overdue(plan.facts):
            if graphs.failure or graphs.wait:
                break
            self._capture(overdue)
        return self._put(batch, plan, graphs.find(plan.facts))

    def _launch_again(self, batch: UnifiedBatch, last: RepeatedStep) -> PendingStep:
        """Launch a step that repeats the one before it, by the same graph."""
        self._take_in_tables(batch)
        if last.shaped:
            self._prepare_again(batch, last)
        last.move(batch, self._blocks, self.runner.cache.block_size)
        buffer = self._send(batch, last.shape, last.logprobs, last.write, last.graph)
        record = None
        if last.shaped:
            items = last.following(self.shaped)
            record = self._recorder(self.shaped.recording_of(items, batch.pos_offsets[items.places] + 1))
        return PendingDeviceStep(buffer, last.shape.samples, last.sampled, last.places, record, last.logprobs)

    def _prepare_again(self, batch: UnifiedBatch, last: RepeatedStep) -> None:
        """Prepare shaped rows for a step that repeats the one before it."""
        items = last.following(self.shaped)
        if not (last.all_pending and self.shaped.advance(items, batch.pos_offsets[items.places])):
            step = self._packer.arrays(batch, np.empty((len(batch), 0), np.int32))
            self.shaped.prepare(batch, step, last.sampled)

    def _needs_host(self, batch: UnifiedBatch, sampled: np.ndarray) -> bool:
        return bool(
            self._states.special[batch.slots].any()
            or self._slow[batch.slots[sampled]].any()
            or batch.num_draft_tokens.any()
        )

    def _put(
        self, batch: UnifiedBatch, plan: DevicePlan, captured: tuple[StepShape, Graph] | None
    ) -> PendingDeviceStep:
        """Pack a step and launch it."""
        shape, places = captured[0] if captured else plan.shape, np.arange(plan.facts.samples)
        if not shape.listed:
            places = np.argsort(plan.order)[plan.sampled]
        logprobs = LogprobRows.of(
            self._states.sampling.logprobs[batch.slots[plan.sampled]], places, self._states.logits_width
        )

        def write(words: np.ndarray) -> None:
            self._packer.write(HostStep(words, shape), shape, batch, plan)

        def compute(words: torch.Tensor) -> None:
            self._launch_calls(words, shape, plan)

        buffer = self._send(batch, shape, logprobs, write, captured[1] if captured else compute)
        if captured and self._can_repeat(shape, plan):
            order, shaped = plan.order, bool((self.shaped.row_of[batch.slots] >= 0).any())
            self._last = RepeatedStep(
                batch, order, lambda: self._packer.rows(batch.slots[order]), lambda lengths: self._packer.pieces(lengths, shape),
                self._packer.pieces_last,
                buffer.words, captured, places, logprobs, shaped,
            )  # fmt: skip
        ends = (plan.step.pos_offsets + plan.step.q_lens)[plan.sampled]
        record = self._recorder_for(batch.slots[plan.sampled], ends)
        return PendingDeviceStep(buffer, shape.samples, plan.sampled, places, record, logprobs)

    def _can_repeat(self, shape: StepShape, plan: DevicePlan) -> bool:
        """Return whether a step with a graph consists of decodes only, so that the next steps may repeat it."""
        assert self.graphs is not None
        facts = plan.facts
        alike = not shape.listed and facts.samples == facts.decodes == facts.items
        return alike and self.graphs.settled(facts)

    def _send(
        self, batch: UnifiedBatch, shape: StepShape, logprobs: LogprobRows | None, write: Callable[[np.ndarray], None],
        compute: Graph | Callable[[torch.Tensor], None],
    ) -> StepBuffer:  # fmt: skip
        """Write a step to host memory and launch it. `compute`: the graph to replay, or the function that launches calls over
        the packed step."""
        changes = [(one.tensor, *one.unsent()) for one in (self._tables, self.shaped.sending)]
        tail = Tail(num_words(shape), changes, None if logprobs is None else logprobs.rows)
        buffer = self._ring.take()
        buffer.fit(tail.end)
        write(buffer.words)
        tail.write(buffer.words)
        if self.graphs is not None:
            self.graphs.in_step = True
        try:
            with self.queueing():
                self._queue(batch, shape, logprobs, compute, tail, buffer)
        except BaseException:
            # Where it failed half-way its copy may be queued: the old mark would say that the buffer is free.
            with contextlib.suppress(RuntimeError):  # on a device that is lost nothing can be recorded
                buffer.event.record()
            raise
        finally:
            if self.graphs is not None:
                self.graphs.in_step = False
        buffer.event.record()
        return buffer

    def _queue(
        self, batch: UnifiedBatch, shape: StepShape, logprobs: LogprobRows | None,
        compute: Graph | Callable[[torch.Tensor], None], tail: Tail, buffer: StepBuffer,
    ) -> None:  # fmt: skip
        """Queue all of a step's work on the device, from copy to copy."""
        static, begin, end = self.program.inputs, num_words(shape), tail.end
        inputs = static if end <= len(static) else retried(self._memory, lambda: self._room(end))
        with self.runner.ranges("copy in"):
            inputs[:end].copy_(buffer.tensor[:end], non_blocking=True)
        if inputs is not static and not callable(compute):
            static[:begin].copy_(inputs[:begin])
        self.shaped.sending.clean()
        tail.apply(inputs)
        self._tables.sent()
        self.shaped.sending.sent()
        self.runner.cache.copy_blocks(batch.block_copies)
        if callable(compute):
            compute(inputs[:begin])
        else:
            self.runner.forwards += 1
            with self.runner.ranges("replay"):
                compute.replay()
        results = result_words(shape.samples)
        with self.runner.ranges("copy out"):
            buffer.result[:results].copy_(self.program.result[:results], non_blocking=True)
        if logprobs is not None:
            rows = tail.rows(inputs)
            more = retried(self._memory, lambda: self.program.described(shape, rows, logprobs.most))
            buffer.fit_more(logprobs.words).copy_(more.view(-1), non_blocking=True)

    def _room(self, words: int) -> torch.Tensor:
        """Return memory on the device for a step with a longer tail than `program.inputs` has room for."""
        return torch.empty(words, dtype=torch.int32, device=self.runner.device)

    def _recorder_for(self, slots: np.ndarray, positions: np.ndarray) -> Callable[[np.ndarray], None] | None:
        """Return the function that receives the tokens sampled for `slots` at `positions` int64; None if they are not
        needed."""
        return self._recorder(self.shaped.recording(slots, positions))

    def _recorder(self, recording: Recording | None) -> Callable[[np.ndarray], None] | None:
        return None if recording is None else lambda tokens: self.shaped.record(recording, tokens)

    def _launch_calls(self, words: torch.Tensor, shape: StepShape, plan: DevicePlan) -> None:
        packed, runner = self.program.packed, self.runner
        attend = runner.attention.begin(plan.step, runner.cache) if packed is None else None
        device_step = DeviceStep(words, shape)
        retried(self._memory, lambda: self.program.run(device_step, attend, plan.needed))
