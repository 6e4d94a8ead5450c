"""Mistakes with blocks that outlive the executor, which the simulation must notice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from engine.core import sequences as rewinding
from engine.core.sequences import Sequences
from engine.kv.adoption import Adopted, NewLife
from engine.kv.block_group import BlockGroup
from engine.kv.kv_cache_manager import KvCacheManager
from engine.kv.seals import GroupSeals, SealTable
from engine.sequence import Sequence
from engine.story import Lost
from executors.contract import Int32Array, SealedBlocks
from executors.testing.fakes.sealing import SealingFake


def _sealed_before_its_step_is_committed(patch: pytest.MonkeyPatch) -> None:
    """What a step in flight was to fill counts as sealed, as it lies in memory when the executor is lost."""
    reset, drop_requests = SealingFake._reset, SealTable.drop_requests
    fakes: list[SealingFake] = []

    def recorded(self: SealingFake) -> None:
        fakes[:] = [self]
        reset(self)

    def sealed(self: SealTable) -> None:
        for group, seals in enumerate(self._groups):
            blocks = np.array(list(seals.requests), np.int32)
            checksums = fakes[0].checksums(np.full(len(blocks), group, np.int32), blocks)
            seals.checksums |= dict(zip(blocks.tolist(), checksums.tolist(), strict=True))
        drop_requests(self)

    patch.setattr(SealingFake, "_reset", recorded)
    patch.setattr(SealTable, "drop_requests", sealed)


def _seal_survives_a_write(patch: pytest.MonkeyPatch) -> None:
    """A block that a sequence takes stays sealed."""
    patch.setattr(GroupSeals, "drop", lambda self, blocks: None)


def _another_lifes_fingerprint(patch: pytest.MonkeyPatch) -> None:
    """What a life of another fingerprint sealed counts as sealed by the first one."""
    patch.setattr(SealTable, "begin_life", lambda self, fingerprint: None)


def _fingerprint_never_compared(patch: pytest.MonkeyPatch) -> None:
    """Blocks are adopted whatever wrote them."""

    def verified(self: SealingFake, adopt: SealedBlocks) -> Int32Array:
        same = self.checksums(adopt.groups, adopt.blocks) == adopt.checksums
        return np.flatnonzero(same).astype(np.int32)

    patch.setattr(SealingFake, "_verified", verified)


def _checksum_never_compared(patch: pytest.MonkeyPatch) -> None:
    """Blocks are adopted whatever they hold."""

    def verified(self: SealingFake, adopt: SealedBlocks) -> Int32Array:
        same = adopt.fingerprint == self.fingerprint
        return np.arange(len(adopt) if same else 0, dtype=np.int32)

    patch.setattr(SealingFake, "_verified", verified)


def _keys_in_flight_stay(patch: pytest.MonkeyPatch) -> None:
    """Blocks that the steps in flight were to fill can be found after a failure."""

    def hold_over(kv: KvCacheManager, running: Iterable[Sequence]) -> int:
        kv.seals.drop_requests()
        return sum(len(group.cache.blocks) for group in kv.groups)

    def settle(kv: KvCacheManager, life: NewLife, total: int) -> Adopted:
        offered = life.offered
        if offered is not None:
            refused = np.ones(len(offered), np.bool_)
            refused[life.adopted] = False
            for group in kv.groups:
                group.forget(offered.blocks[refused & (offered.groups == group.index)].tolist(), Lost.RESTART)
        kv.seals.begin_life(life.fingerprint)
        return Adopted(total, 0, total)

    patch.setattr(rewinding, "hold_over", hold_over)
    patch.setattr(rewinding, "settle", settle)


def _newcomers_first(patch: pytest.MonkeyPatch) -> None:
    """Sequences that ran are admitted in their turn, behind more important ones that take their blocks."""
    hold_over = Sequences._hold_over

    def forgetful(self: Sequences, running: list[Sequence]) -> list[Sequence]:
        ordered = hold_over(self, running)
        self.returning = {}
        return ordered

    patch.setattr(Sequences, "_hold_over", forgetful)


def _window_gone_before_the_seals(patch: pytest.MonkeyPatch) -> None:
    """A window leaves blocks that the sequence needs if it goes on behind its last sealed block."""
    patch.setattr(BlockGroup, "sealed_end", lambda self, seq: sys.maxsize)


def _duplicates_have_no_key(patch: pytest.MonkeyPatch) -> None:
    """A running sequence's blocks are not given their keys."""
    patch.setattr("engine.kv.adoption._name_own", lambda kv, group, seq: 0)


ADOPTION_MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    mutate.__name__.strip("_"): mutate
    for mutate in (
        _sealed_before_its_step_is_committed,
        _seal_survives_a_write,
        _another_lifes_fingerprint,
        _fingerprint_never_compared,
        _checksum_never_compared,
        _keys_in_flight_stay,
        _newcomers_first,
        _window_gone_before_the_seals,
        _duplicates_have_no_key,
    )
}
