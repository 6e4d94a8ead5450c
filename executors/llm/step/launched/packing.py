"""`StepPacker`: brings a batch into the form that a device reads, from the states that the host keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from executors.contract import noise
from executors.contract.batch import UnifiedBatch
from executors.llm.attention.key_pieces import WORDS, with_idle
from executors.llm.attention.packed import PackedAttention
from executors.llm.lora.table import LoraTable
from executors.llm.sampling.columns import MIN_TEMPERATURE, PADDING
from executors.llm.sampling.sampler import SamplingTable
from executors.llm.step.launched.graphs import StepFacts
from executors.llm.step.launched.inputs import HostStep, StepShape, cells_of
from executors.llm.step.launched.plan import DevicePlan
from executors.llm.step.launched.repeat import Rows
from executors.llm.step.sampled_rows import SampledRows
from executors.llm.step_arrays import StepArrays

_NOT_GUESSED = np.empty(0, np.int32)
"""Of a step without drafts."""
_NO_PIECES = np.empty((0, WORDS), np.int32)


class PackedSlots(Protocol):
    """What a packer reads of a `SlotTable`."""

    @property
    def block_tables(self) -> Sequence[np.ndarray]:
        """int32 [slots, blocks] of each group."""


class PackedStates(Protocol):
    """What a packer reads of `SequenceStates`. A draft model has its own view of them."""

    @property
    def slots(self) -> PackedSlots:
        """The block tables."""

    @property
    def sampling(self) -> SamplingTable:
        """Settings of the slots."""

    @property
    def pool(self) -> torch.Tensor:
        """The token pool, a row for each slot."""

    @property
    def adapters(self) -> LoraTable | None:
        """LoRA adapters, if there are any."""

    @property
    def block_size(self) -> int:
        """Tokens of a block."""

    @property
    def logits_width(self) -> int:
        """Width of the vocabulary."""

    def tables_of(self, batch: UnifiedBatch, needed: int) -> tuple[np.ndarray, ...]:
        """Block tables int32 [n, needed] of a step's items, of each group."""

    def blocks_needed(self, batch: UnifiedBatch) -> int:
        """Return the number of blocks of the longest item. Raises InvalidInput for a table that is too short."""


class StepPacker:
    """Reads the states and changes none.

    `packed`: the attention if it reads packed inputs. `row_of` int [num_slots]: rows of shaped slots, see `ShapedSlots`.
    `has_grammar` bool [num_slots]: see `GrammarRows`.
    `padding_slot`, `padding_token`: the slot and the place in the token pool that padding uses.
    """

    def __init__(
        self, states: PackedStates, packed: PackedAttention | None, row_of: np.ndarray, has_grammar: np.ndarray,
        padding_slot: int, padding_token: int,
    ) -> None:  # fmt: skip
        self._states = states
        self._packed = packed
        self._row_of = row_of
        self._has_grammar = has_grammar
        self._padding_slot = padding_slot
        self._padding_token = padding_token

    @staticmethod
    def arrays(batch: UnifiedBatch, tables: Sequence[np.ndarray]) -> StepArrays:
        lens, offsets = batch.num_q_tokens.astype(np.int64), batch.pos_offsets.astype(np.int64)
        return StepArrays(batch.token_ids, lens, offsets, tables[0], more_tables=tuple(tables[1:]))

    def plan(self, batch: UnifiedBatch, sampled: np.ndarray) -> DevicePlan:
        needed = self._states.blocks_needed(batch)
        packed = self._packed
        tables = (
            (np.empty((len(batch), 0), np.int32),)
            if packed is not None
            else self._states.tables_of(batch, needed)
        )
        step = self.arrays(batch, tables)
        chunks, decodes = np.flatnonzero(step.q_lens > 1), np.flatnonzero(step.q_lens == 1)
        tiles, pieces, tile_pieces = np.empty((0, 2), np.int32), _NO_PIECES, _NO_PIECES
        if packed is None:
            decodes = decodes[:0]
        else:
            decodes = decodes[np.argsort(-step.pos_offsets[decodes], kind="stable")]
            pieces = packed.pieces(step.pos_offsets[decodes] + 1)
            if len(chunks):
                tiles = packed.tiles(step.q_lens, step.pos_offsets, chunks)
                tile_pieces = packed.tile_pieces(tiles, step.q_lens, step.pos_offsets)
        places = None if self._states.adapters is None else self._states.adapters.places(batch.slots)
        if places is not None and (places < 0).all():
            places = None
        verified = SampledRows.of(batch, step, sampled) if batch.num_draft_tokens.any() else None
        samples = int(np.count_nonzero(sampled)) if verified is None else len(verified.item)
        facts = StepFacts(
            len(step.token_ids), len(batch), len(tiles), len(decodes), samples, len(pieces), places is not None,
            len(self._states.slots.block_tables), len(tile_pieces),
        )  # fmt: skip
        return DevicePlan(step, tiles, decodes, pieces, tile_pieces, sampled, needed, facts, places, verified)

    def pieces(self, lengths: np.ndarray, shape: StepShape) -> np.ndarray:
        """int32 [k, WORDS]: pieces of rows of these lengths, and of the additional rows of the shape."""
        packed = self._packed
        assert packed is not None
        return with_idle(packed.pieces(lengths), len(lengths), shape.decodes if shape.pieces else 0)

    def pieces_last(self, lengths: np.ndarray) -> int:
        """Number of tokens by which rows may grow before their pieces must be cut again."""
        packed = self._packed
        assert packed is not None
        return packed.pieces_last(lengths)

    def rows(self, slots: np.ndarray) -> Rows:
        """Return the data of rows for sequences in these `slots`."""
        slots, settings = slots.astype(np.int64), self._states.sampling
        keys = noise.keys(settings.seed[slots], settings.choice[slots])
        width = self._states.slots.block_tables[0].shape[1]
        return Rows(slots * self._states.pool.shape[1], slots * width, keys)

    def write(self, host: HostStep, shape: StepShape, batch: UnifiedBatch, plan: DevicePlan) -> None:
        """Write everything except the changes of block tables, padding included."""
        step, size, row = plan.step, self._states.block_size, self._states.pool.shape[1]
        positions = step.positions
        slots = batch.slots.astype(np.int64)
        slot_of_row = slots[step.item_of_row]
        lengths = step.pos_offsets + step.q_lens
        order = slice(None) if shape.listed else plan.order
        host.put("token_ids", batch.token_ids[order])
        source = np.full(len(positions), -1, np.int64)
        if batch.pending is not None:
            source = np.where(batch.pending, slot_of_row * row + positions, source)
        host.put("source", source[order], -1)
        host.put("positions", positions[order])
        for group, tables in enumerate(self._states.slots.block_tables):
            blocks = tables[slot_of_row, positions // size].astype(np.int64)
            host.put(cells_of(group), (blocks * size + positions % size)[order], -1)
        host.put("slots", batch.slots[order], self._padding_slot)
        host.put("lengths", lengths[order])
        host.put("pieces", plan.pieces_of(shape).ravel(), -1)
        for name, values in zip(("lora_rows", "lora_owners"), plan.lora_tiles_of(shape), strict=True):
            host.put(name, values, -1)
        if shape.listed:
            host.put("q_starts", step.q_starts)
            host.put("q_lens", step.q_lens)
            host.put("pos_offsets", step.pos_offsets)
            host.put_pairs("tiles", plan.tiles, (shape.items - 1, 0))
            if shape.tile_pieces:
                host.put("tile_pieces", plan.tile_pieces.ravel(), -1)
            rows = np.stack((plan.decodes, step.q_starts[plan.decodes]), 1)
            host.put_pairs("decodes", rows, (shape.items - 1, shape.tokens - 1))
            items, ends, verified = plan.samplers, plan.ends, plan.verified
            of_items = (step.q_starts + step.q_lens - 1)[items] if verified is None else verified.rows
            host.put("rows", of_items, shape.tokens - 1)
            host.put("dest", slots[items] * row + ends, self._padding_token)
        else:
            items = plan.order
            ends = lengths[items]
            dest = np.where(plan.sampled, slots * row + lengths, self._padding_token)
            host.put("dest", dest[items], self._padding_token)
        shaped = np.where(plan.sampled[items], self._row_of[slots[items]], -1)
        host.put("shaped", shaped, -1)
        guessed = _NOT_GUESSED
        if plan.verified is not None:
            behind = (plan.verified.place > 0) & (shaped >= 0)
            guessed = np.where(behind, np.cumsum(behind), 0)
        host.put("guessed", guessed)
        self._write_settings(host, slots[items], ends, plan.sampled[items])

    def _write_settings(
        self, host: HostStep, slots: np.ndarray, positions: np.ndarray, sampled: np.ndarray
    ) -> None:
        table = self._states.sampling
        masked = sampled & self._has_grammar[slots]
        host.put("masked", np.where(masked, np.cumsum(masked) - 1, -1), -1)
        host.put("ends", positions)
        temperature = table.temperature[slots]
        drawn = np.maximum(temperature, MIN_TEMPERATURE)  # which float32 still tells from 0
        host.put("temperature", np.where(temperature > 0, drawn, 0.0), PADDING)
        host.put("top_k", np.minimum(table.top_k[slots], self._states.logits_width))
        host.put("top_p", table.top_p[slots], 1.0)
        host.put("min_p", table.min_p[slots])
        host.put("u", noise.uniform(table.seed[slots], table.choice[slots], positions.astype(np.uint64)))
