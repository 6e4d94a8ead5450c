"""`PagedCompanion`: what a draft model and an MTP head have in common: KV in the model's blocks, and the choice of a draft.

Their keys and values lie in tensors of their own, under the block ids and block tables of the model's layers that keep all
tokens. So a block that is shared, copied or found again by its prefix has their KV, too, as far as it was computed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from executors.contract.batch import Drafts, UnifiedBatch
from executors.contract.slots import SlotTable
from executors.llm.memory.paged_kv import copied_pairs
from executors.llm.sampling.sampler import SamplingTable, sample
from executors.llm.step.runner import ModelRunner
from executors.llm.step_arrays import StepArrays


@dataclass(frozen=True, slots=True)
class ModelSide:
    """What a companion reads of the model whose tokens it guesses; others write it."""

    slots: SlotTable
    group: int
    """The group of blocks in which the companion's KV lies."""
    sampling: SamplingTable
    history: np.ndarray
    """int32 [slots, positions]: the tokens of each slot, up to the last one sampled."""
    width: int
    """Of the model's logits: a draft must be below."""


class PagedCompanion:
    """See the module. `runner` computes its forwards; `max_model_len` bounds the positions that it computes."""

    def __init__(self, runner: ModelRunner, model: ModelSide, max_model_len: int) -> None:
        self.runner = runner
        self.max_model_len = max_model_len
        self._slots = model.slots
        self._group = model.group
        self._sampling = model.sampling
        self._history = model.history
        self._width = model.width
        self._block_size = runner.cache.block_size
        self._caches = [runner.cache.of_group(own) for own in range(len(runner.cache.caches))]
        self._num_blocks = self._caches[0].num_blocks

    @property
    def kv_bytes(self) -> int:
        """Bytes of its KV."""
        return self.runner.cache.num_bytes

    @property
    def _tables(self) -> np.ndarray:
        return self._slots.block_tables[self._group]

    def give_back(self, group: int, block_ids: np.ndarray) -> None:
        """Return the memory of these blocks of a group."""
        if group == self._group:
            for cache in self._caches:
                cache.give_back(block_ids)

    # -- blocks --------------------------------------------------------------------------------------------------------

    def _table_updates(self, batch: UnifiedBatch) -> Iterator[tuple[int, int, np.ndarray, int]]:
        """Yield what each table of the companion's group gets in a step: its slot, the index of the first new block, the ids of
        the new blocks, and how many of the sequence's tokens are computed before this step. Cells behind those tokens hold
        what the block's last owner had there."""
        computed = dict(zip(batch.slots.tolist(), batch.pos_offsets.tolist(), strict=True))
        tables, at = batch.tables, 0
        updates = (tables.slots, tables.groups, tables.starts, tables.counts)
        for slot, group, first, count in zip(*(part.tolist() for part in updates), strict=True):
            blocks, at = tables.block_ids[at : at + count], at + count
            if group == self._group:
                yield slot, first, blocks, computed.get(slot, 0)

    def _new_blocks(self, first: int, blocks: np.ndarray, computed: int) -> np.ndarray:
        """Return the blocks, of those from index `first` on, that hold none of the computed tokens: the others are shared."""
        return blocks[max(0, -(-computed // self._block_size) - first) :]

    def _copy_blocks(self, batch: UnifiedBatch) -> np.ndarray:
        """Copy the companion's KV where the step copies blocks. Returns the group's pairs [m, 2] of source and destination."""
        pairs = copied_pairs(batch.block_copies, self._group)
        for cache in self._caches:
            cache.copy_blocks(pairs)
        return pairs

    # -- a step --------------------------------------------------------------------------------------------------------

    def _step(
        self, token_ids: np.ndarray, q_lens: np.ndarray, pos_offsets: np.ndarray, tables: np.ndarray
    ) -> StepArrays:
        """Return a step whose tables are those of each group of its KV."""
        more_tables = (tables,) * (len(self._caches) - 1)
        return StepArrays(token_ids, q_lens, pos_offsets, tables, more_tables=more_tables)

    def _tables_until(self, end: int, slots: np.ndarray) -> np.ndarray:
        """The tables of these slots, int32 [n, blocks], as far as positions below `end` lie in them."""
        return self._tables[:, : -(-end // self._block_size)][slots]

    def _choose(
        self, hidden: torch.Tensor, rows: np.ndarray, slots: np.ndarray, positions: np.ndarray
    ) -> list[int | None]:
        """Return the draft of each of the `rows` of hidden states, chosen with the settings and the noise of the token that the
        slot's sequence has at its position; None if there is none below the model's width."""
        logits, maxima = self.runner.logits_for_sampling(hidden, rows)
        settings = self._sampling.rows(slots, positions)
        settings.logprobs[:] = -1
        sampled = sample(logits, settings, None, maxima)
        return [
            None if bad or token >= self._width else token
            for token, bad in zip(sampled.tokens.tolist(), sampled.bad.tolist(), strict=True)
        ]

    def time_forward(self, count: int, past: int) -> float:
        """Seconds of a forward of one token for each of `count` sequences of `past` tokens, with the choice of a draft;
        overwrites the first blocks."""
        blocks, rows = -(-(past + 1) // self._block_size), np.arange(count)
        tables = np.tile(np.arange(blocks, dtype=np.int32) % self._num_blocks, (count, 1))
        step = self._step(
            np.zeros(count, np.int64), np.ones(count, np.int64), np.full(count, past, np.int64), tables
        )
        hidden = self._blank_hidden(count)
        began = time.perf_counter()
        with torch.inference_mode():
            logits, maxima = self.runner.logits_for_sampling(self.runner.forward(step, hidden=hidden), rows)
            sample(logits, SamplingTable(count).rows(rows, np.full(count, past + 1)), None, maxima)
        return time.perf_counter() - began

    def _blank_hidden(self, count: int) -> torch.Tensor | None:
        """Hidden states of the model to time a forward of `count` rows with; None if forwards begin with tokens alone."""
        return None


def drafts_of(num_items: int, drafts: dict[int, list[int]], rounds: int, seconds: float) -> Drafts:
    """Return the drafts of a step's items, given by item."""
    counts = np.zeros(num_items, np.int32)
    for item, tokens in drafts.items():
        counts[item] = len(tokens)
    ids = [token for item in sorted(drafts) for token in drafts[item]]
    return Drafts(counts, np.array(ids, np.int32), rounds, seconds)
