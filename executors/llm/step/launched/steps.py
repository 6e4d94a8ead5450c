"""`DeviceUnifiedRunner`: the host packs and launches steps and does not wait for them.

A step whose tokens can be chosen without the host is packed, copied once, computed by a graph or the same calls one by one,
and its results are copied back once. The device also applies penalties, biases and bans (`shaped_slots.py`) and computes
logprobs after the step (`device_logprobs.py`). Grammars, typical-p, bad words of several tokens, drafts, prompt logprobs and
pooling need the host within the step: such a step runs as in `UnifiedRunner`, after those launched before it, because the
device executes them in order.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from executors.contract import noise
from executors.contract.batch import SequenceStart, UnifiedBatch, UnifiedOutput
from executors.contract.checks import check_blocks
from executors.contract.faults import no_device_memory, no_memory
from executors.kernels.lora_tiles import most_tiles
from executors.llm.attention.key_pieces import WORDS, with_idle
from executors.llm.attention.packed import PackedAttention
from executors.llm.lora.device import DeviceWeights
from executors.llm.lora.table import AdapterTable
from executors.llm.memory.device_memory import retried
from executors.llm.sampling.columns import MIN_TEMPERATURE, PADDING
from executors.llm.sampling.device_logprobs import Wanted
from executors.llm.sampling.device_sampler import DeviceSampler
from executors.llm.sampling.grammar import GrammarCompiler
from executors.llm.sampling.shaped_slots import TABLE_BYTES, Hearing, ShapedSlots
from executors.llm.step.launched.graphs import (
    AT_START,
    Graph,
    StepDevice,
    StepFacts,
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
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.launched.plan import DevicePlan
from executors.llm.step.launched.program import DeviceProgram
from executors.llm.step.launched.repeat import RepeatedStep, Rows
from executors.llm.step.pending_steps import ComputedStep, PendingStep
from executors.llm.step.pipeline import UnifiedRunner
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays

_log = logging.getLogger(__name__)

RING = 3
"""Number of steps with buffers of their own: two in flight, and one being written."""
_NO_PIECES = np.empty((0, WORDS), np.int32)
_CHANGES = 1 << 12
"""Number of changes of block tables for which the input memory has room; a step with more gets memory of its own."""


class DeviceUnifiedRunner(UnifiedRunner):
    """See the module."""

    max_in_flight = 2
    queueing: Callable[[], contextlib.AbstractContextManager[None]] = staticmethod(contextlib.nullcontext)
    """Context entered around the queueing of a step's work, from copy to copy, so that a caller can measure when the device
    executes it."""

    def __init__(
        self, runner: ModelRunner, num_slots: int, max_batch_size: int, max_model_len: int, compiler: GrammarCompiler,
        device: StepDevice, sampler: DeviceSampler, *, max_tokens: int, eager: bool = False, shaping: int = TABLE_BYTES,
        max_adapters: int = 0,
    ) -> None:  # fmt: skip
        """`max_tokens`: of a step; `eager`: no graphs; `shaping`: largest size of the table of shaped slots in bytes;
        `max_adapters`: most LoRA adapters of a step."""
        super().__init__(runner, num_slots, max_batch_size, max_model_len, compiler)
        self._device = device
        self._max_tokens = max_tokens
        self._graph_adapters = max_adapters
        """Most LoRA adapters of a step with a graph."""
        self._slow = np.zeros(num_slots, np.bool_)
        """Marks slots whose tokens need the host to choose them."""
        self._tables = DeviceTables(self.slots.block_tables[0], runner.device)
        self.shaped = ShapedSlots(
            num_slots, max_batch_size, max_model_len, compiler.width, runner.device, lambda: self._ring.drain(), shaping
        )  # fmt: skip
        self.program = DeviceProgram(
            runner, sampler, self._tables, self.pool.view(-1), compiler.width, num_slots * self.pool.shape[1],
            self.shaped.table,
        )  # fmt: skip
        self.graphs = self._make_graphs(eager)
        shapes = list(self.graphs.shapes) if self.graphs else []
        shapes.append(
            StepShape(
                max_tokens, max_batch_size, max_batch_size, max_tokens, max_batch_size, True,
                self._most_pieces(max_batch_size), most_tiles(max_tokens, max_adapters),
            )
        )  # fmt: skip
        self._words = max(num_words(shape) for shape in shapes) + 3 * _CHANGES
        samples = max(shape.samples for shape in shapes)
        self.program.reserve(self._words, samples, max(shape.pieces for shape in shapes))
        self._blocks = self.slots.block_tables[0].reshape(-1)
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
        rows, pieces = self.max_batch_size, self._most_pieces
        mixed = mixed_shapes(rows, self._max_tokens, packed.queries_per_tile, pieces)
        shapes = [*decode_shapes(rows, pieces), *mixed]
        return [*shapes, *adapted_shapes(shapes, self._graph_adapters)]

    def _most_pieces(self, rows: int) -> int:
        packed = self.program.packed
        return 0 if packed is None else packed.most_pieces(rows, self.max_model_len)

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
                self.graphs.fail("reserve memory for graphs", error)

    def capture_first(self) -> None:
        """See `UnifiedRunner`. Captures the smallest few graphs and compiles all remaining kernels before the first step."""
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
        wanted = [*alone, *self._padded_shapes(packed)]
        for number, shape in enumerate(wanted):
            self.report("kernels", number, len(wanted))
            try:
                self.program.captured(shape)()
            except Exception as error:
                why = no_device_memory(error)
                if why is None:
                    raise
                # Steps are made smaller, too, until they fit.
                _log.warning("kernels for steps of %d tokens are not compiled yet: %s", shape.tokens, why)
                break
        self.report("kernels", len(wanted), len(wanted))

    def capture_next(self) -> bool:
        """See `UnifiedRunner`. Captures the smallest missing graph."""
        shape = self.graphs.missing if self.graphs is not None else None
        if shape is not None:
            self._capture(shape)
        return shape is not None

    @property
    def capture_wait(self) -> float:
        """See `UnifiedRunner`."""
        return 0.0 if self.graphs is None else self.graphs.wait

    @property
    def can_capture(self) -> bool:
        """See `UnifiedRunner`."""
        return self.graphs is not None and self.graphs.missing is not None

    def _capture(self, shape: StepShape) -> None:
        assert self.graphs is not None
        self._ring.drain()
        stage = f"CUDA graph for {shape.tokens} {'mixed tokens' if shape.listed else 'sequences'}"
        self.report(stage, 0, 1)
        self.graphs.capture(shape)
        self.report(stage, 1, 1)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for `status()`."""
        graphs = "graphs: none" if self.graphs is None else self.graphs.note
        return (graphs, f"sampling: on the device, {self.program.sampler.name}", *super().notes)

    # -- state ---------------------------------------------------------------------------------------------------------

    def use_adapters(self, table: AdapterTable) -> None:
        """See `UnifiedRunner`."""
        super().use_adapters(table)
        assert isinstance(table.weights, DeviceWeights)
        self.program.adapters = table.weights
        if table.weights.by_torch:
            # Each such graph would hold launches for all places, hundreds a layer.
            self._graph_adapters = 0
            if self.graphs is not None:
                self.graphs.shapes = [shape for shape in self.graphs.shapes if not shape.lora_tiles]

    def trial(self) -> contextlib.AbstractContextManager[None]:
        """See `UnifiedRunner`."""
        if self.adapters is None or self.program.adapters is None:
            return super().trial()
        return self.adapters.blanks(self.program.adapters.blank)

    def forget_trials(self) -> None:
        """See `UnifiedRunner`. Their shapes are not frequent."""
        if self.graphs is not None:
            self.graphs.forget_misses()

    def _begin(self, start: SequenceStart) -> None:
        slot, asked = start.slot, start.sampling
        self.shaped.drop(slot)
        slow = asked is not None and (asked.typical_p < 1.0 or start.grammar is not None)
        if asked is not None and asked.edits_logits and not slow and start.pooling is None:
            slow = not self.shaped.begin(start)
        self._slow[slot] = slow
        super()._begin(start)

    def _follows(self, start: SequenceStart) -> bool:
        return self.shaped.row_of[start.slot] < 0

    def _drop(self, slot: int) -> None:
        self._last = None
        self.shaped.drop(slot)
        super()._drop(slot)

    def clear(self) -> None:
        """See `UnifiedRunner`."""
        self._last = None
        self.shaped.clear()
        super().clear()

    def _take_in(self, batch: UnifiedBatch) -> None:
        super()._take_in(batch)
        self._tables.changed(batch.tables.slots, batch.tables.starts, batch.tables.counts)

    def _take_in_tables(self, batch: UnifiedBatch) -> None:
        """Do the same as `_take_in` for a step that repeats the one before it."""
        tables = batch.tables
        if len(tables.slots) or len(tables.block_ids) or len(batch.block_copies):
            check_blocks(batch, self.runner.cache.num_blocks)
            self.slots.update(tables)
            self._tables.changed(tables.slots, tables.starts, tables.counts)
        held = self.slots.num_blocks[0, batch.slots] * self.runner.cache.block_size
        if (held <= batch.pos_offsets).any():
            self._blocks_needed(batch)  # which says what is missing

    # -- a step --------------------------------------------------------------------------------------------------------

    def run(self, batch: UnifiedBatch) -> UnifiedOutput:
        """See `UnifiedRunner`."""
        return self.launch(batch).result()

    @torch.inference_mode()
    def launch(self, batch: UnifiedBatch) -> PendingStep:
        """See `UnifiedRunner`."""
        if not len(batch):
            return ComputedStep(UnifiedOutput(np.empty(0, np.int32), np.empty(0, np.int32)))
        last = self._last
        if last is not None and last.repeats(batch, self.logits_width, self.max_model_len):
            return self._launch_again(batch, last)
        self._last = None
        self._take_in(batch)
        sampled = batch.is_final_chunk & self._samples[batch.slots]
        if self._needs_host(batch, sampled):
            for slot, history in self.shaped.histories(batch, sampled).items():
                self.shapers.follow(slot, history)
            return ComputedStep(self._compute(batch))
        plan = self._plan(batch, sampled)
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
        buffer = self._send(batch, last.shape, last.wanted, last.write, last.graph)
        hear = None
        if last.shaped:
            items = last.following(self.shaped)
            hear = self._heard_by(self.shaped.hearing_of(items, batch.pos_offsets[items.places] + 1))
        return PendingDeviceStep(buffer, last.shape.samples, last.sampled, last.places, hear, last.wanted)

    def _prepare_again(self, batch: UnifiedBatch, last: RepeatedStep) -> None:
        """Prepare shaped rows for a step that repeats the one before it."""
        items = last.following(self.shaped)
        if not (last.all_pending and self.shaped.advance(items, batch.pos_offsets[items.places])):
            step = self._arrays(batch, np.empty((len(batch), 0), np.int32))
            self.shaped.prepare(batch, step, last.sampled)

    def _needs_host(self, batch: UnifiedBatch, sampled: np.ndarray) -> bool:
        return bool(
            self._special[batch.slots].any()
            or self._slow[batch.slots[sampled]].any()
            or batch.num_draft_tokens.any()
        )

    @staticmethod
    def _arrays(batch: UnifiedBatch, tables: np.ndarray) -> StepArrays:
        lens, offsets = batch.num_q_tokens.astype(np.int64), batch.pos_offsets.astype(np.int64)
        return StepArrays(batch.token_ids, lens, offsets, tables)

    def _plan(self, batch: UnifiedBatch, sampled: np.ndarray) -> DevicePlan:
        needed = self._blocks_needed(batch)
        packed = self.program.packed
        tables = np.empty((len(batch), 0), np.int32) if packed is not None else self._tables_of(batch, needed)
        step = self._arrays(batch, tables)
        chunks, decodes = np.flatnonzero(step.q_lens > 1), np.flatnonzero(step.q_lens == 1)
        tiles, pieces = np.empty((0, 2), np.int32), _NO_PIECES
        if packed is None:
            decodes = decodes[:0]
        else:
            decodes = decodes[np.argsort(-step.pos_offsets[decodes], kind="stable")]
            pieces = packed.pieces(step.pos_offsets[decodes] + 1)
            if len(chunks):
                tiles = packed.tiles(step.q_lens, step.pos_offsets, chunks)
        places = None if self.adapters is None else self.adapters.places(batch.slots)
        if places is not None and (places < 0).all():
            places = None
        facts = StepFacts(
            len(step.token_ids), len(batch), len(tiles), len(decodes), int(np.count_nonzero(sampled)), len(pieces),
            places is not None,
        )  # fmt: skip
        return DevicePlan(step, tiles, decodes, pieces, sampled, needed, facts, places)

    def _put(
        self, batch: UnifiedBatch, plan: DevicePlan, found: tuple[StepShape, Graph] | None
    ) -> PendingDeviceStep:
        """Pack a step and launch it."""
        shape, places = found[0] if found else plan.shape, np.arange(plan.facts.samples)
        if not shape.listed:
            places = np.argsort(plan.order)[plan.sampled]
        wanted = Wanted.of(self.sampling.logprobs[batch.slots[plan.sampled]], places, self.logits_width)

        def write(words: np.ndarray) -> None:
            self._write(HostStep(words, shape), shape, batch, plan)

        def compute(words: torch.Tensor) -> None:
            self._launch_calls(words, shape, plan)

        buffer = self._send(batch, shape, wanted, write, found[1] if found else compute)
        if found and self._can_repeat(shape, plan):
            order, shaped = plan.order, bool((self.shaped.row_of[batch.slots] >= 0).any())
            self._last = RepeatedStep(
                batch, order, lambda: self._rows(batch.slots[order]), lambda lengths: self._pieces(lengths, shape),
                self._pieces_last,
                buffer.words, found, places, wanted, shaped,
            )  # fmt: skip
        ends = (plan.step.pos_offsets + plan.step.q_lens)[plan.sampled]
        hear = self._hearing(batch.slots[plan.sampled], ends)
        return PendingDeviceStep(buffer, shape.samples, plan.sampled, places, hear, wanted)

    def _pieces(self, lengths: np.ndarray, shape: StepShape) -> np.ndarray:
        """int32 [k, WORDS]: pieces of rows of these lengths, and of the additional rows of the shape."""
        packed = self.program.packed
        assert packed is not None
        return with_idle(packed.pieces(lengths), len(lengths), shape.decodes if shape.pieces else 0)

    def _pieces_last(self, lengths: np.ndarray) -> int:
        """Number of tokens by which rows may grow before their pieces must be cut again."""
        packed = self.program.packed
        assert packed is not None
        return packed.pieces_last(lengths)

    def _can_repeat(self, shape: StepShape, plan: DevicePlan) -> bool:
        """Return whether a step with a graph consists of decodes only, so that the next steps may repeat it."""
        assert self.graphs is not None
        facts = plan.facts
        alike = not shape.listed and facts.samples == facts.decodes == facts.items
        return alike and self.graphs.settled(facts)

    def _rows(self, slots: np.ndarray) -> Rows:
        """Return the data of rows for sequences in these `slots`."""
        slots, settings = slots.astype(np.int64), self.sampling
        keys = noise.keys(settings.seed[slots], settings.choice[slots])
        width = self.slots.block_tables[0].shape[1]
        return Rows(slots * self.pool.shape[1], slots * width, keys)

    def _send(
        self, batch: UnifiedBatch, shape: StepShape, wanted: Wanted | None, write: Callable[[np.ndarray], None],
        compute: Graph | Callable[[torch.Tensor], None],
    ) -> StepBuffer:  # fmt: skip
        """Write a step to host memory and launch it. `compute`: the graph to replay, or the function that launches calls over
        the packed step."""
        changes = [(one.tensor, *one.unsent()) for one in (self._tables, self.shaped.sending)]
        tail = Tail(num_words(shape), changes, None if wanted is None else wanted.rows)
        buffer = self._ring.take()
        buffer.fit(tail.end)
        write(buffer.words)
        tail.write(buffer.words)
        if self.graphs is not None:
            self.graphs.in_step = True
        try:
            with self.queueing():
                self._queue(batch, shape, wanted, compute, tail, buffer)
        finally:
            if self.graphs is not None:
                self.graphs.in_step = False
        buffer.event.record()
        return buffer

    def _queue(
        self, batch: UnifiedBatch, shape: StepShape, wanted: Wanted | None,
        compute: Graph | Callable[[torch.Tensor], None], tail: Tail, buffer: StepBuffer,
    ) -> None:  # fmt: skip
        """Queue all of a step's work on the device, from copy to copy."""
        static, begin, end = self.program.inputs, num_words(shape), tail.end
        inputs = static if end <= len(static) else torch.empty(end, dtype=torch.int32, device=static.device)
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
            compute.replay()
        results = result_words(shape.samples)
        buffer.result[:results].copy_(self.program.result[:results], non_blocking=True)
        if wanted is not None:
            rows = tail.rows(inputs)
            more = retried(self.memory, lambda: self.program.described(shape, rows, wanted.most))
            buffer.fit_more(wanted.words).copy_(more.view(-1), non_blocking=True)

    def _hearing(self, slots: np.ndarray, positions: np.ndarray) -> Callable[[np.ndarray], None] | None:
        """Return the function that receives the tokens sampled for `slots` at `positions` int64; None if they are not
        needed."""
        return self._heard_by(self.shaped.hearing(slots, positions))

    def _heard_by(self, hearing: Hearing | None) -> Callable[[np.ndarray], None] | None:
        return None if hearing is None else lambda tokens: self.shaped.heard(hearing, tokens)

    def _launch_calls(self, words: torch.Tensor, shape: StepShape, plan: DevicePlan) -> None:
        packed, runner = self.program.packed, self.runner
        attend = runner.attention.begin(plan.step, runner.cache) if packed is None else None
        device_step = DeviceStep(words, shape)
        retried(self.memory, lambda: self.program.run(device_step, attend, plan.needed))

    def _write(self, host: HostStep, shape: StepShape, batch: UnifiedBatch, plan: DevicePlan) -> None:
        """Write everything except the changes of block tables, padding included."""
        step, size, row = plan.step, self.runner.cache.block_size, self.pool.shape[1]
        positions = step.positions
        slots = batch.slots.astype(np.int64)
        slot_of_row = slots[step.item_of_row]
        blocks = self.slots.block_tables[0][slot_of_row, positions // size].astype(np.int64)
        lengths = step.pos_offsets + step.q_lens
        order = slice(None) if shape.listed else plan.order
        host.put("token_ids", batch.token_ids[order])
        source = np.full(len(positions), -1, np.int64)
        if batch.pending is not None:
            source = np.where(batch.pending, slot_of_row * row + positions, source)
        host.put("source", source[order], -1)
        host.put("positions", positions[order])
        host.put("cells", (blocks * size + positions % size)[order], -1)
        host.put("slots", batch.slots[order], self._tables.padding_slot)
        host.put("lengths", lengths[order])
        host.put("pieces", plan.pieces_of(shape).ravel(), -1)
        for name, values in zip(("lora_rows", "lora_owners"), plan.lora_tiles_of(shape), strict=True):
            host.put(name, values, -1)
        if shape.listed:
            host.put("q_starts", step.q_starts)
            host.put("q_lens", step.q_lens)
            host.put("pos_offsets", step.pos_offsets)
            host.put_pairs("tiles", plan.tiles, (shape.items - 1, 0))
            named = np.stack((plan.decodes, step.q_starts[plan.decodes]), 1)
            host.put_pairs("decodes", named, (shape.items - 1, shape.tokens - 1))
            items = np.flatnonzero(plan.sampled)
            host.put("rows", (step.q_starts + step.q_lens - 1)[items], shape.tokens - 1)
            host.put("dest", slots[items] * row + lengths[items], self.program.padding_dest)
        else:
            items = plan.order
            dest = np.where(plan.sampled, slots * row + lengths, self.program.padding_dest)
            host.put("dest", dest[items], self.program.padding_dest)
        self._write_settings(host, slots[items], lengths[items], plan.sampled[items])

    def _write_settings(
        self, host: HostStep, slots: np.ndarray, positions: np.ndarray, sampled: np.ndarray
    ) -> None:
        table = self.sampling
        host.put("shaped", np.where(sampled, self.shaped.row_of[slots], -1), -1)
        host.put("ends", positions)
        temperature = table.temperature[slots]
        drawn = np.maximum(temperature, MIN_TEMPERATURE)  # which float32 still tells from 0
        host.put("temperature", np.where(temperature > 0, drawn, 0.0), PADDING)
        host.put("top_k", np.minimum(table.top_k[slots], self.logits_width))
        host.put("top_p", table.top_p[slots], 1.0)
        host.put("min_p", table.min_p[slots])
        host.put("u", noise.uniform(table.seed[slots], table.choice[slots], positions.astype(np.uint64)))
