"""Broken fakes: states of layers go wrong. Each is named with the cases that must catch it."""

import numpy as np

from executors.testing.fakes.state import StateFakeExecutor
from tests.executors.testing.conformance_subjects import caught_by


@caught_by("a_snapshot_equals_the_state_there")
class KeepsASnapshotOneTokenLate(StateFakeExecutor):
    def _write(self, work, computed):
        super()._write(work, computed)
        for item, position, slot in work.snapshots if work.snapshots is not None else ():
            self.states[slot] = computed.prefix[work.starts[item] + position - work.pos[item]]


@caught_by("a_snapshot_equals_the_state_there")
class KeepsTheStateOfTheChunksEnd(StateFakeExecutor):
    def _write(self, work, computed):
        super()._write(work, computed)
        for item, _, slot in work.snapshots if work.snapshots is not None else ():
            self.states[slot] = computed.prefix[work.starts[item + 1] - 1]


@caught_by("a_state_goes_on_in_any_slot")
class WritesWhereItReads(StateFakeExecutor):
    """The state goes on in the source's slot as well."""

    def _write(self, work, computed):
        super()._write(work, computed)
        source, _ = self._places(work)
        some = source >= 0
        self.states[source[some]] = computed.prefix[work.starts[1:] - 1][some]


@caught_by("a_state_goes_on_in_any_slot")
class ReadsItsDestination(StateFakeExecutor):
    def _places(self, work):
        source, own = super()._places(work)
        return np.where(source < 0, source, own), own


@caught_by("a_used_slot_begins_with_zeros")
class BeginsWithWhatTheSlotHeld(StateFakeExecutor):
    def _places(self, work):
        source, own = super()._places(work)
        return np.where(source < 0, own, source), own


@caught_by("a_batch_with_wrong_states_is_refused")
class ChecksNoStates(StateFakeExecutor):
    def _check(self, batch):
        states = batch.state_src, batch.state_dst, batch.snapshots
        n = len(batch)
        batch.state_src, batch.state_dst = np.full(n, -1, np.int32), np.arange(n, dtype=np.int32)
        batch.snapshots = np.empty((0, 3), np.int32)
        try:
            super()._check(batch)
        finally:
            batch.state_src, batch.state_dst, batch.snapshots = states
