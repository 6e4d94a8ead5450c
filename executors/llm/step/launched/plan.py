"""`DevicePlan`: the form of a step between the engine's batch and the packed array that the device reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from executors.kernels.lora_tiles import in_tiles, most_tiles, tile_rows
from executors.llm.attention.key_pieces import with_idle
from executors.llm.attention.tile_pieces import num_places
from executors.llm.step.launched.graphs import StepFacts
from executors.llm.step.launched.inputs import StepShape
from executors.llm.step.sampled_rows import SampledRows
from executors.llm.step_arrays import StepArrays

_NO_TILES = np.empty(0, np.int32), np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A step prepared for packing.

    `tiles` int32 [m, 2]; `decodes` int64: items of one token, those with most keys first, so that none of them starts when
    all others have ended; `pieces` int32 [k, WORDS] of their keys, whose rows are places in `decodes`; `tile_pieces` int32
    [k, WORDS] of the tiles' keys, whose rows are places in `tiles`, empty if no tile's keys are ever cut; `sampled` bool [n];
    `needed`: columns of the block tables; `places` int32 [n] of the items' LoRA adapters, -1 for none, or None if no item has
    one; `verified`: the sampled rows, if an item has drafts, so that it has several.
    """

    step: StepArrays
    tiles: np.ndarray
    decodes: np.ndarray
    pieces: np.ndarray
    tile_pieces: np.ndarray
    sampled: np.ndarray
    needed: int
    facts: StepFacts
    places: np.ndarray | None = None
    verified: SampledRows | None = None

    @property
    def samplers(self) -> np.ndarray:
        """int64 [samples]: the item of each sampled row, rows in the order of items."""
        return np.flatnonzero(self.sampled) if self.verified is None else self.verified.item

    @property
    def ends(self) -> np.ndarray:
        """int64 [samples]: the position of the token of each sampled row."""
        if self.verified is not None:
            return self.verified.positions
        return (self.step.pos_offsets + self.step.q_lens)[self.sampled]

    def first_samples(self, items: np.ndarray) -> np.ndarray:
        """int64 [k]: where the first token of each of these `items` is among all that the step samples."""
        if self.verified is not None:
            return self.verified.starts[items]
        return (np.cumsum(self.sampled) - 1)[items]

    @property
    def order(self) -> np.ndarray:
        """int64 [n]: the item of each row, if items are one token each and not listed."""
        return self.decodes if len(self.decodes) else np.arange(self.facts.items)

    @property
    def shape(self) -> StepShape:
        """The step's own shape, without padding. Where no tile's keys are cut, no pieces of tiles are sent."""
        facts = self.facts
        listed = bool(facts.tiles) or facts.decodes < facts.items or facts.samples < facts.items
        return StepShape(
            facts.tokens, facts.items, facts.samples, facts.tiles, facts.decodes, listed, facts.pieces,
            0 if self.places is None else most_tiles(facts.tokens, len(np.unique(self.places[self.places >= 0]))),
            facts.groups, len(self.tile_pieces) if num_places(self.tile_pieces) else 0,
        )  # fmt: skip

    def lora_tiles_of(self, shape: StepShape) -> tuple[np.ndarray, np.ndarray]:
        """int32: rows and owners of the tiles of LoRA adapters in a shape that has room for them; empty if no item has one."""
        if self.places is None:
            return _NO_TILES
        of_row = self.places[self.step.item_of_row] if shape.listed else self.places[self.order]
        return in_tiles(of_row, tile_rows(shape.tokens))

    def pieces_of(self, shape: StepShape) -> np.ndarray:
        """int32 [k, WORDS]: pieces for a shape that has more rows; each additional row has length 0. The rest of the shape's
        pieces is padding."""
        return with_idle(self.pieces, len(self.decodes), shape.decodes if shape.pieces else 0)
