"""`DraftForwards`: forwards of a draft model on a device, packed, launched and replayed as the model's own steps are.

    tables    the model's block tables on the device, of the group in whose blocks the draft model's KV lies
    pool      the model's token pool: a draft goes to the place of its position, where the next forward reads it
    graphs    forward and sampler in one, for few rows and for short chunks; other forwards are launched call by call

A forward asks for no value of the one before it, so all forwards of a drafting are queued at once. The step that samples the
token of a position writes its place in the pool before any step reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from executors.contract.batch import UnifiedBatch
from executors.contract.interface import ProgressCallback
from executors.contract.slots import SlotTable
from executors.llm.attention.packed import PackedAttention
from executors.llm.device.base import DeviceMemory, StepDevice
from executors.llm.sampling.device_sampler import DeviceSampler
from executors.llm.sampling.sampler import SamplingTable
from executors.llm.step.launched.captures import StepCaptures
from executors.llm.step.launched.graphs import CLOSE_TO, LaunchLimits, Phases
from executors.llm.step.launched.inputs import HostStep, StepShape
from executors.llm.step.launched.packing import StepPacker
from executors.llm.step.launched.pending_step import PendingDeviceStep
from executors.llm.step.launched.program import DeviceProgram
from executors.llm.step.launched.queueing import StepQueue
from executors.llm.step.launched.steps import LaunchedSteps, StepCalls
from executors.llm.step.runner import ModelRunner
from executors.llm.step.states import SequenceStates

_SPARE_BUFFERS = 2
"""Buffers beside those of one drafting: the forwards of prompts, which are queued with their steps."""


@dataclass(frozen=True, slots=True)
class _Tables:
    """The block tables of one group of the model, once for each group of the draft model's KV."""

    slots: SlotTable
    group: int
    count: int

    @property
    def block_tables(self) -> Sequence[np.ndarray]:
        """See `PackedSlots`."""
        return (self.slots.block_tables[self.group],) * self.count


@dataclass(frozen=True, slots=True)
class DraftStates:
    """The model's states as a draft model's packer reads them: the tables of one group, no adapters. A `PackedStates`."""

    slots: _Tables
    sampling: SamplingTable
    pool: torch.Tensor
    block_size: int
    logits_width: int
    adapters: None = None

    @staticmethod
    def of(states: SequenceStates, group: int, count: int) -> DraftStates:
        """Return the view of `states` for KV of `count` groups in the blocks of a `group`."""
        tables = _Tables(states.slots, group, count)
        return DraftStates(tables, states.sampling, states.pool, states.block_size, states.logits_width)

    def blocks_needed(self, batch: UnifiedBatch) -> int:
        """See `PackedStates`. Who asks for drafts has blocks for them."""
        ends = batch.num_q_tokens.astype(np.int64) + batch.pos_offsets
        return int(-(-ends.max() // self.block_size))

    def tables_of(self, batch: UnifiedBatch, needed: int) -> tuple[np.ndarray, ...]:
        """See `PackedStates`."""
        return tuple(tables[:, :needed][batch.slots] for tables in self.slots.block_tables)


class _DraftProgram(DeviceProgram):
    """Forward and sampler are one piece of work, and no row has a mask."""

    def reserve(self, words: int, samples: int, pieces: int, tile_pieces: int) -> None:
        """See `DeviceProgram`."""
        super().reserve(words, samples, pieces, tile_pieces)
        self.masks = self.masks[:1].clone()

    def captured(self, shape: StepShape) -> Phases:
        """See `DeviceProgram`."""
        return Phases(super().captured(shape).run, None)


class _DraftCaptures(StepCaptures):
    """No row but an item's last one is sampled."""

    def _padded_shapes(self, packed: PackedAttention) -> list[StepShape]:
        shapes = super()._padded_shapes(packed)
        return [replace(shape, samples=min(shape.samples, self._max_batch_size)) for shape in shapes]


class DraftForwards:
    """See the module. Used by the thread that computes the steps."""

    def __init__(
        self, runner: ModelRunner, sampler: DeviceSampler, states: SequenceStates, group: int, launched: LaunchedSteps,
        device: StepDevice, limits: LaunchLimits, max_model_len: int, memory: DeviceMemory | None, report: ProgressCallback,
    ) -> None:  # fmt: skip
        """`runner` of the draft model; `group` of the model's blocks; `limits` of a forward: `max_drafts` are those of a
        sequence, which are queued at once; `memory`: see `retried`; `report` receives the progress of captures."""
        self.runner = runner
        self._memory = memory
        count, model, slots = len(runner.cache.caches), launched.program, states.slots.num_slots
        tables = (launched.tables[group],) * count
        self.program = _DraftProgram(
            runner, sampler, tables, states.pool.view(-1), states.logits_width, model.padding_dest, model.shaping,
            launched.shaped.results,
        )  # fmt: skip
        self._packer = StepPacker(
            DraftStates.of(states, group, count), self.program.packed, np.full(slots, -1, np.int64),
            np.zeros(slots, np.bool_), tables[0].padding_slot, model.padding_dest,
        )  # fmt: skip
        rows, tokens = limits.max_batch_size, limits.max_tokens

        def drain() -> None:
            launched.queue.ring.drain()
            self.queue.ring.drain()

        # Each item may be a chunk: the last draft and the token behind it, where all were accepted.
        few = LaunchLimits(rows, draft_tokens(rows, tokens), limits.eager, max_drafts=1)
        self.captures = _DraftCaptures(self.program, device, few, max_model_len, _named(report), drain)
        graphs = self.captures.graphs
        most_pieces, tile_pieces = self.captures.most_pieces(rows), self.captures.most_tile_pieces(tokens)
        shapes = [*(graphs.shapes if graphs else ())]
        shapes.append(
            StepShape(
                tokens, rows, rows, tokens, rows, True, most_pieces, groups=count, tile_pieces=tile_pieces
            )
        )
        self.queue = StepQueue(
            self.program, None, lambda: self.captures.graphs, device, memory, shapes, max(1, limits.max_drafts) + _SPARE_BUFFERS,
        )  # fmt: skip

    def send(
        self, slots: np.ndarray, q_lens: np.ndarray, offsets: np.ndarray, token_ids: np.ndarray, sampled: np.ndarray,
        pending: bool = False,
    ) -> PendingDeviceStep:  # fmt: skip
        """Queue a forward of `q_lens` tokens at `offsets` of the sequences in these `slots`, int [n]. `token_ids` int: the items'
        tokens, one after the other, which lie in the pool if they are `pending`. Items that are `sampled`, bool [n], give a
        draft, which goes to the pool. The result of the step has the drafts."""
        batch = UnifiedBatch(
            epoch=0, step_id=0, seq_ids=slots.astype(np.int64), slots=slots.astype(np.int32),
            num_q_tokens=q_lens.astype(np.int32), pos_offsets=offsets.astype(np.int32), is_final_chunk=sampled,
            num_draft_tokens=np.zeros(len(slots), np.int32), token_ids=token_ids.astype(np.int32),
            pending=np.ones(len(token_ids), np.bool_) if pending else None,
        )  # fmt: skip
        plan = self._packer.plan(batch, sampled)
        graphs, captured = self.captures.graphs, None
        if graphs is not None:
            for overdue in graphs.overdue(plan.facts):
                if graphs.failure or graphs.wait:
                    break
                self.captures.capture(overdue)
            captured = graphs.find(plan.facts)
        shape, places = captured[0] if captured else plan.shape, np.arange(plan.facts.samples)
        if not shape.listed:
            places = np.argsort(plan.order)[plan.sampled]

        def write(words: np.ndarray) -> None:
            self._packer.write(HostStep(words, shape), shape, batch, plan)

        work = captured[1] if captured else StepCalls(self.program, self._memory, shape, plan)
        queued = self.queue.send(batch, shape, None, write, work)
        return PendingDeviceStep(queued.buffer, shape.samples, sampled, places)


def draft_tokens(max_batch_size: int, max_tokens: int) -> int:
    """Return the most tokens of a draft model's forward that gets a graph: two of each sequence, and short prompts."""
    return min(max_tokens, max(CLOSE_TO, 2 * max_batch_size))


def _named(report: ProgressCallback) -> Callable[[str, int, int], None]:
    return lambda stage, done, total: report(f"draft model: {stage}", done, total)
