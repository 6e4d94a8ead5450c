"""`SpareMemory`: KV memory that a burst took goes back to the system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.core.inbox import Inbox
from engine.kv.block_group import BlockGroup
from engine.kv.kv_cache_manager import KvCacheManager
from executors.contract import ModelExecutor

ROUNDS = 30
"""Looks while there is something to compute, in the time after which unused memory is given back."""
LEAST_KEPT_BYTES = 256 << 20
"""Free KV keeps as much memory as the weights take, and at least so much: short pauses lose no prefix, and the next request
writes to memory that is there."""
_PIECE_BYTES = 32 << 20
"""Given back by one notice, one span at least. Milliseconds of the executor's time: a request that comes meanwhile waits no
longer than that."""
_BETWEEN_S = 0.02
_LOOK_EVERY = 1.0
"""Seconds between two looks whether blocks without a use are still to be written to disk."""


@dataclass(frozen=True, slots=True)
class _Share:
    """How much of the memory of a group stays, and how much is given back by one notice."""

    group: BlockGroup
    keep: int
    """Free blocks that keep their memory."""
    piece: int
    """In spans."""

    @staticmethod
    def of(group: BlockGroup, keep_bytes: int) -> _Share:
        bytes_per_block = max(1, group.bytes_per_block)
        piece = max(1, _PIECE_BYTES // (bytes_per_block * group.pool.blocks_per_span))
        return _Share(group, keep_bytes // bytes_per_block, piece)


class SpareMemory:
    """Tells the executor which free blocks, and slots of states, need no memory. Used by the loop task only.

    Does nothing where the executor does not give memory back (`KvGroup.blocks_per_span` 0).
    """

    def __init__(
        self,
        executor: ModelExecutor,
        kv: KvCacheManager,
        config: EngineConfig,
        clock: Callable[[], float],
        is_copied_from: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_copied_from`: whether free blocks are being written to disk; meanwhile none is given back."""
        layout, needs = kv.layout, executor.capabilities().memory
        self._config = config
        self._executor = executor
        self._clock = clock
        self._is_copied_from = is_copied_from
        self._round = config.give_back_unused_after / ROUNDS
        self._active = layout.on_demand
        keep_bytes = config.kept_kv_bytes
        if keep_bytes is None:
            keep_bytes = max(LEAST_KEPT_BYTES, needs.parameter_memory)
        self._states = kv.states
        whole = max(1, layout.block_bytes if kv.states is None else layout.num_bytes)
        self._groups = [
            _Share.of(group, keep_bytes * group.num_bytes // whole)
            for group in kv.groups
            if group.pool.blocks_per_span
        ]
        self._state_group = layout.state_group
        slot_bytes = max(1, layout.state.slot_bytes if layout.state is not None else 0)
        self._kept_slots = keep_bytes * layout.state_bytes // whole // slot_bytes
        self._slots_at_once = max(1, _PIECE_BYTES // slot_bytes)
        self._due = clock() + self._round

    def look(self) -> None:
        """Between two steps, before the next is submitted: give back a piece of what has been unused for long."""
        if self._active and self._clock() >= self._due:
            self._due = self._clock() + self._round
            for share in self._groups:
                share.group.pool.now += 1
            if self._states is not None:
                self._states.grow_older()
            if not self._is_copied_from():
                self._give_back(ROUNDS)

    async def at_rest(self, inbox: Inbox) -> None:
        """No step is out and there is nothing to compute: wait, then give back all that is spare, until a command comes."""
        if not self._active:
            return
        if not await _command_within(inbox, self._config.give_back_after):
            while self._is_copied_from():
                if await _command_within(inbox, _LOOK_EVERY):
                    return
            while self._give_back(0) and not await _command_within(inbox, _BETWEEN_S):
                pass

    def _give_back(self, min_age: int) -> bool:
        """False: there is nothing that can be given back."""
        num_released = 0
        for share in self._groups:
            blocks = share.group.take_spare(share.keep, min_age, share.piece)
            if len(blocks):
                self._executor.release_memory(share.group.index, blocks)
                num_released += len(blocks)
        if self._states is not None:
            # After the blocks: a snapshot is forgotten, and its slot is free, once its block has gone.
            slots = self._states.take_spare(self._kept_slots, min_age, self._slots_at_once)
            if len(slots):
                self._executor.release_memory(self._state_group, slots)
                num_released += len(slots)
        return num_released > 0


async def _command_within(inbox: Inbox, seconds: float) -> bool:
    """A command came within that time."""
    try:
        async with asyncio.timeout(seconds):
            await inbox.news()
    except TimeoutError:
        return inbox.has_news
    return True
