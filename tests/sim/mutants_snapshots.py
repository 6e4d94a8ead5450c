"""Mistakes with snapshots of states that outlive the executor, which the simulation must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from engine.kv.seals import GroupSeals, SealTable
from engine.kv.state_pool import StatePool
from executors.contract import Int32Array, SealedBlocks
from executors.testing.fakes.paged import PagedFakeExecutor
from executors.testing.fakes.sealing import SealingFake

Mutate = Callable[[pytest.MonkeyPatch], None]


def _snapshot_sealed_before_its_step_is_committed(patch: pytest.MonkeyPatch) -> None:
    """A snapshot counts as sealed when its step is put together, as the slot is then."""
    fakes: list[SealingFake] = []
    reset, request = SealingFake._reset, SealTable.request_snapshot

    def recorded(self: SealingFake) -> None:
        fakes[:] = [self]
        reset(self)

    def early(self: SealTable, slot: int) -> None:
        request(self, slot)
        if self.active:
            place = np.array([slot], np.int32)
            group = np.full(1, self._state_group, np.int32)
            self._groups[-1].checksums[slot] = int(fakes[0].checksums(group, place)[0])

    patch.setattr(SealingFake, "_reset", recorded)
    patch.setattr(SealTable, "request_snapshot", early)


class _Kept(GroupSeals):
    """Seals that are never dropped."""

    def drop(self, blocks: Iterable[int]) -> None:
        pass


def _snapshots_seal_survives_a_write(patch: pytest.MonkeyPatch) -> None:
    """A slot stays sealed when its snapshot is found no more and a sequence writes to it."""
    init = StatePool.__init__

    def kept(self: StatePool, *arguments: Any) -> None:
        init(self, *arguments)
        self.seals = _Kept()

    patch.setattr(StatePool, "__init__", kept)
    # The books would tell before the executor's memory does.
    patch.setattr(StatePool, "check_integrity", lambda self, sequences: None)


def _another_lifes_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A life adopts what one with another fingerprint has sealed. Blocks of both are alike, states are not."""
    allocate = PagedFakeExecutor._allocate

    def alike(self: PagedFakeExecutor) -> None:
        with pytest.MonkeyPatch.context() as during:
            during.setattr(SealingFake, "mask", np.uint64(0))
            allocate(self)

    def verified(self: SealingFake, adopt: SealedBlocks) -> Int32Array:
        same = self.checksums(adopt.groups, adopt.blocks) == adopt.checksums
        return np.flatnonzero(same).astype(np.int32)

    patch.setattr(PagedFakeExecutor, "_allocate", alike)
    patch.setattr(SealingFake, "_verified", verified)


def _snapshots_checksum_never_compared(patch: pytest.MonkeyPatch) -> None:
    """Slots are adopted whatever they hold."""
    verify = SealingFake._verified

    def verified(self: SealingFake, adopt: SealedBlocks) -> Int32Array:
        adopted = verify(self, adopt)
        if adopt.fingerprint != self.fingerprint:
            return adopted
        slots = np.flatnonzero(adopt.groups == len(self.memories))
        return np.union1d(adopted, slots).astype(np.int32)

    patch.setattr(SealingFake, "_verified", verified)


def _snapshots_stay_that_were_not_adopted(patch: pytest.MonkeyPatch) -> None:
    """Snapshots that were not sealed, or not adopted, can be found in the next life."""
    patch.setattr(StatePool, "keep", lambda self, slots: None)
    patch.setattr(StatePool, "keep_sealed", lambda self, is_found: 0)


def _snapshot_of_an_adopted_slot_is_lost(patch: pytest.MonkeyPatch) -> None:
    """The next life finds blocks, and no snapshot behind them."""
    keep = StatePool.keep
    patch.setattr(StatePool, "keep", lambda self, slots: keep(self, ()))


SNAPSHOT_MUTANTS: dict[str, Mutate] = {
    mutate.__name__.strip("_"): mutate
    for mutate in (
        _snapshot_sealed_before_its_step_is_committed,
        _snapshots_seal_survives_a_write,
        _another_lifes_snapshot,
        _snapshots_checksum_never_compared,
        _snapshots_stay_that_were_not_adopted,
        _snapshot_of_an_adopted_slot_is_lost,
    )
}
