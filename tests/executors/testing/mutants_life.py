"""Broken fakes: life, refusals, failures and declared facts go wrong. Each is named with the cases that must catch it."""

from dataclasses import replace

import numpy as np

from executors.contract.batch import ItemOutput, UnifiedOutput
from executors.contract.errors import InvalidInput, StepFailed
from executors.testing.fakes.echo import EchoExecutor
from executors.testing.fakes.paged import PagedFakeExecutor
from tests.executors.testing.conformance_subjects import caught_by


@caught_by("cancel_leaves_nothing", "released_slots_are_clean")
class LeaksSlots(EchoExecutor):
    def release_cache(self, cache_id):
        self.released[cache_id] += 1


@caught_by("tokens_do_not_depend_on_logprobs", "released_slots_are_clean")
class KeepsTheOldParameters(EchoExecutor):
    _seen = frozenset()

    def _admit(self, starts):
        held = {s.slot: s for s in self._seen}
        super()._admit(
            tuple(replace(s, sampling=held[s.slot].sampling) if s.slot in held else s for s in starts)
        )
        self._seen = (*self._seen, *starts)

    def _reset(self):
        super()._reset()
        self._seen = ()


@caught_by("release_of_unknown_ids_is_harmless")
class ReleasesSlotZeroForUnknownIds(EchoExecutor):
    def release_cache(self, cache_id):
        if self.table.slot_of(cache_id) is None and self._guests.get(cache_id) is None:
            self._lengths[0] = 0
        super().release_cache(cache_id)


@caught_by("release_of_unknown_ids_is_harmless")
class RaisesForUnknownIds(EchoExecutor):
    def release_cache(self, cache_id):
        if self.table.slot_of(cache_id) is None:
            raise KeyError(cache_id)
        super().release_cache(cache_id)


@caught_by("refused_batches_leave_nothing")
class AcceptsAnyToken(EchoExecutor):
    def _check(self, batch):
        super()._check(replace(batch, token_ids=batch.token_ids % self.vocab_size))

    def _forward(self, work):
        work.tokens = work.tokens % self.vocab_size
        return super()._forward(work)


@caught_by("refused_batches_leave_nothing")
class ComputesBeforeItRefuses(EchoExecutor):
    async def unified_decode(self, batch):
        try:
            return await super().unified_decode(batch)
        except InvalidInput:
            self._digest[batch.slots[0]] += np.uint64(1)
            raise


@caught_by("failed_steps_are_skipped_until_a_new_epoch")
class GoesOnAfterAFailure(EchoExecutor):
    def _require_running(self):
        self._stopped = None
        super()._require_running()


@caught_by("nan_is_isolated")
class NanFailsTheStep(EchoExecutor):
    def _ruin(self, output, ruined):
        if ruined:
            raise StepFailed("NaN")
        return output


@caught_by("nan_is_isolated")
class NanHitsTheNeighbours(EchoExecutor):
    def _ruin(self, output, ruined):
        if not ruined:
            return output
        return UnifiedOutput.from_items([ItemOutput(error="NaN") for _ in range(len(output))])


@caught_by("begin_epoch_forgets")
class RemembersAcrossEpochs(EchoExecutor):
    async def begin_epoch(self, epoch, adopt=None):
        self.epoch = epoch
        self._stopped = None
        return np.empty(0, np.int32)


@caught_by("largest_batch_works")
class PromisesTooLargeABatch(EchoExecutor):
    def capabilities(self):
        return replace(super().capabilities(), max_batch_size=self.num_slots + 1)


@caught_by("longest_sequence_works")
class PromisesTooLongASequence(EchoExecutor):
    def kv_capacity(self):
        return 100

    def capabilities(self):
        return replace(super().capabilities(), max_sequence_length=self.max_model_len)

    def _read(self, work):
        if len(work.pos) and int(work.ends.max()) > 90:
            raise InvalidInput("too long after all")
        return super()._read(work)


@caught_by("longest_sequence_works")
class ComputesPastTheEnd(EchoExecutor):
    def __init__(self, config):
        super().__init__(config)
        self.max_model_len += 8

    def capabilities(self):
        return replace(super().capabilities(), max_sequence_length=self.max_model_len - 8)


@caught_by("declared_facts_agree")
class DeclaresPagedWithoutBlocks(PagedFakeExecutor):
    def kv_layout(self):
        layout = super().kv_layout()
        return replace(layout, groups=(replace(layout.groups[0], bytes_per_block=0),))


@caught_by("declared_facts_agree")
class RunsInAnUndeclaredDtype(EchoExecutor):
    def info(self):
        return replace(super().info(), dtype="float16")


@caught_by("snapshots_are_plain")
class SnapshotsHoldObjects(EchoExecutor):
    def cache_metrics_snapshot(self):
        return {"lengths": self._lengths}


@caught_by("snapshots_are_plain")
class CountsNoSteps(EchoExecutor):
    def metrics(self):
        return replace(super().metrics(), total_steps=0)


@caught_by("life_is_idempotent")
class WarmupStartsOver(EchoExecutor):
    async def warmup(self):
        await super().warmup()
        self._reset()


@caught_by("life_is_idempotent")
class WorksAfterShutdown(EchoExecutor):
    def _require_warm(self):
        pass
