"""`StateFakeExecutor`: the paged fake, whose layers have a state beside KV. Same oracle as echo.

The state is the running prefix: a hash of all tokens so far with their positions. What the fake writes as a token's KV depends on
it, so a state of another sequence or position, one that has seen a token twice, and one that was overwritten change the tokens
from there on, as on a real device. Nothing else tells which position a state belongs to.

    slot       one state: prefix after the tokens so far, and whether a failed item has written it
    a step     reads the source (-1: zeros), writes the destination, and the snapshots on its way
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from executors.contract import (
    ConfigError,
    ExecutorConfig,
    Int32Array,
    InvalidInput,
    KvLayout,
    SealedBlocks,
    StateLayout,
    Unsupported,
)
from executors.testing.fakes import oracle
from executors.testing.fakes.oracle import expected_tokens
from executors.testing.fakes.paged import PagedFakeExecutor, PagedFakeFactory
from executors.testing.fakes.work import Computed, Work

__all__ = ["StateFakeExecutor", "StateFakeFactory", "expected_tokens"]

SLOT_BYTES = 8
NUM_SNAPSHOTS = 8
"""Slots beside those of sequences, by default."""


class StateFakeExecutor(PagedFakeExecutor):
    """See the module. Options as paged_fake's, but for `native`; `num_states` (slots of states, else 8 more than sequences),
    `state_interval` (tokens between two places for a snapshot, else the block size).

    - `states` uint64 [num_states + rows]: the prefix in each slot, then that of each sequence that `prefill` meets without one,
      xored with `mask`.
    - `filled` bool, of the same length: a step of this life has written the slot, or it was adopted.
    - `spoiled` bool, of the same length: a failed item has written the slot.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        super().__init__(config)
        self.num_states = int(config.options.get("num_states", self.num_slots + NUM_SNAPSHOTS))
        self.interval = int(config.options.get("state_interval", self.block_size))
        self.num_released_slots = 0
        """Slots of states whose memory was given back so far."""

    def kv_layout(self) -> KvLayout:
        return replace(super().kv_layout(), state=StateLayout(SLOT_BYTES, self.num_states, self.interval))

    def _allocate(self) -> None:
        super()._allocate()
        # What a slot held in another life is not zeros.
        places = np.arange(self.num_states + 2 * self.num_slots, dtype=np.uint64)
        self.states = oracle.mix(places + np.uint64(self.epoch or 0))
        self.spoiled = np.zeros(len(places), np.bool_)
        self.filled = np.zeros(len(places), np.bool_)

    def _places(self, work: Work) -> tuple[Int32Array, Int32Array]:
        """Where each item's state is read (-1: zeros) and written. A sequence without a slot has a place of its own. Raises
        Unsupported for one that steps have computed."""
        if work.state_src is not None and work.state_dst is not None:
            return work.state_src, work.state_dst
        if ((work.rows < self.num_slots) & (work.pos > 0)).any():
            raise Unsupported("a handle does not say which slot has the sequence's state: use unified_decode")
        own = (self.num_states + work.rows).astype(np.int32)
        return np.where(work.pos == 0, -1, own).astype(np.int32), own

    def _read(self, work: Work) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        _, digest = super()._read(work)
        source, _ = self._places(work)
        if not self.filled[source[source >= 0]].all():
            raise InvalidInput("a step reads the slot of a state that no step has written")
        return np.where(source < 0, np.uint64(0), self.states[source] ^ self.mask), digest

    def _write(self, work: Work, computed: Computed) -> None:
        super()._write(work, computed)
        self._put(self._places(work)[1], computed.prefix[work.starts[1:] - 1])
        if work.snapshots is not None and len(work.snapshots):
            items, positions, slots = work.snapshots.T
            self._put(slots, computed.prefix[work.starts[items] + positions - work.pos[items] - 1])

    def _put(self, slots: Int32Array, prefix: NDArray[np.uint64]) -> None:
        self.states[slots] = prefix ^ self.mask
        self.filled[slots] = True

    # -- seals -----------------------------------------------------------------------------------------------------------

    def _state_checksums(self, slots: Int32Array) -> NDArray[np.uint64]:
        return oracle.mix(self.states[slots] + self.spoiled[slots])

    def _is_whole(self, group: int, block: int) -> bool:
        if group == len(self.memories):
            return bool(self.filled[block])
        return super()._is_whole(group, block)

    def block_arrays(self, group: int) -> tuple[NDArray[np.generic], ...]:
        if group < len(self.memories):
            return super().block_arrays(group)
        return self.states[: self.num_states], self.spoiled[: self.num_states], self.filled[: self.num_states]

    def release_memory(self, group: int, block_ids: NDArray[np.int32]) -> None:
        """Poison the blocks, or slots of states: a step that reads them is refused. Raises InvalidInput for one that does not
        exist."""
        if group != len(self.memories):
            super().release_memory(group, block_ids)
            return
        if len(block_ids) and not 0 <= block_ids.min() <= block_ids.max() < self.num_states:
            raise InvalidInput(f"release_memory names a slot outside 0..{self.num_states - 1}")
        self.states[block_ids] = oracle.mix(self.states[block_ids])
        self.filled[block_ids] = self.spoiled[block_ids] = False
        self.num_released_slots += len(block_ids)

    def scribble(self, group: int, blocks: Iterable[int]) -> None:
        if group < len(self.memories):
            super().scribble(group, blocks)
            return
        for slot in blocks:
            self.states[slot] ^= np.uint64(1)

    async def begin_epoch(self, epoch: int, adopt: SealedBlocks | None = None) -> Int32Array:
        """See the contract. Raises InvalidInput for blocks or slots that do not exist."""
        before = getattr(self, "states", None), getattr(self, "spoiled", None)
        adopted = await super().begin_epoch(epoch, adopt)
        if adopt is not None and before[0] is not None and before[1] is not None:
            slots = adopt.blocks_of(len(self.memories), adopted)
            self.states[slots], self.spoiled[slots] = before[0][slots], before[1][slots]
            self.filled[slots] = True
        return adopted

    def _tainted(self, work: Work) -> set[int]:
        source, _ = self._places(work)
        return super()._tainted(work) | set(np.flatnonzero((source >= 0) & self.spoiled[source]).tolist())

    def _taint(self, work: Work, items: set[int]) -> None:
        super()._taint(work, items)
        self.spoiled[self._places(work)[1]] = np.isin(np.arange(len(work.rows)), list(items))
        if work.snapshots is not None and len(work.snapshots):
            self.spoiled[work.snapshots[:, 2]] = np.isin(work.snapshots[:, 0], list(items))


class StateFakeFactory(PagedFakeFactory):
    """Makes `StateFakeExecutor`s."""

    def create_executor(self, config: ExecutorConfig) -> StateFakeExecutor:
        self.validate_config(config)
        return StateFakeExecutor(config)

    def validate_config(self, config: ExecutorConfig) -> None:
        options = dict(config.options)
        num_states = options.pop("num_states", config.max_num_seqs)
        interval = options.pop("state_interval", config.attention.block_size)
        super().validate_config(replace(config, options=options))
        if "native" in options:
            raise ConfigError(f"options.native: {config.executor} has states, and takes no such option")
        if not isinstance(num_states, int) or num_states < config.max_num_seqs:
            raise ConfigError(f"options.num_states: at least max_num_seqs, {config.max_num_seqs}")
        if not isinstance(interval, int) or interval < 1 or interval % config.attention.block_size:
            raise ConfigError(
                f"options.state_interval: a multiple of {config.attention.block_size}, the block size"
            )
