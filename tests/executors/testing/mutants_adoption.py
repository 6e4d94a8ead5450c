"""Fakes that are wrong about blocks that outlive their process."""

import numpy as np

from executors.testing.fakes.paged import PagedFakeExecutor
from executors.testing.fakes.state import StateFakeExecutor
from tests.executors.testing.conformance_subjects import caught_by


class _Outliving(PagedFakeExecutor):
    _fingerprint = "mutant"


@caught_by("adopted_blocks_are_hits")
class NamesBlocksThatItEmptied(_Outliving):
    async def begin_epoch(self, epoch, adopt=None):
        adopted = await super().begin_epoch(epoch, adopt)
        for memory in self.memories:
            memory.written[:] = False
        return adopted


@caught_by("written_blocks_are_not_adopted")
class AdoptsWithoutALook(_Outliving):
    def _verified(self, adopt):
        same = adopt.fingerprint == self.fingerprint
        return np.arange(len(adopt) if same else 0, dtype=np.int32)


@caught_by("written_blocks_are_not_adopted")
class AdoptsAllOrNothing(_Outliving):
    def _verified(self, adopt):
        adopted = super()._verified(adopt)
        return adopted if len(adopted) == len(adopt) else adopted[:0]


@caught_by("another_fingerprint_adopts_nothing")
class AdoptsFromAnyProgram(_Outliving):
    def _verified(self, adopt):
        same = self.checksums(adopt.groups, adopt.blocks) == adopt.checksums
        return np.flatnonzero(same).astype(np.int32)


@caught_by("what_was_not_adopted_is_gone")
class KeepsWhatWasNotOffered(_Outliving):
    async def begin_epoch(self, epoch, adopt=None):
        before = self.memories
        adopted = await super().begin_epoch(epoch, adopt)
        if adopt is None:
            self.memories = before
        return adopted


class _StatesOutliving(StateFakeExecutor):
    _fingerprint = "mutant"


@caught_by("adopted_blocks_are_hits")
class NamesSlotsThatItEmptied(_StatesOutliving):
    async def begin_epoch(self, epoch, adopt=None):
        adopted = await super().begin_epoch(epoch, adopt)
        self.states[:] = 0
        return adopted


@caught_by("written_blocks_are_not_adopted", "written_snapshots_are_not_adopted")
class AdoptsSnapshotsWithoutALook(_StatesOutliving):
    def _verified(self, adopt):
        adopted = super()._verified(adopt)
        slots = np.flatnonzero(adopt.groups == len(self.memories))
        return np.union1d(adopted, slots).astype(np.int32)


@caught_by("written_snapshots_are_not_adopted")
class AdoptsAllSnapshotsOrNone(_StatesOutliving):
    def _verified(self, adopt):
        adopted = super()._verified(adopt)
        whole = len(adopted) == len(adopt)
        return adopted if whole else adopted[adopt.groups[adopted] < len(self.memories)]


@caught_by("another_fingerprint_adopts_nothing")
class AdoptsSnapshotsFromAnyProgram(_StatesOutliving):
    def _verified(self, adopt):
        same = self.checksums(adopt.groups, adopt.blocks) == adopt.checksums
        return np.flatnonzero(same & (adopt.groups == len(self.memories))).astype(np.int32)


@caught_by("what_was_not_adopted_is_gone")
class KeepsSnapshotsThatWereNotOffered(_StatesOutliving):
    async def begin_epoch(self, epoch, adopt=None):
        before = self.states
        adopted = await super().begin_epoch(epoch, adopt)
        if adopt is None:
            self.states = before
            self.filled[:] = True
        return adopted
