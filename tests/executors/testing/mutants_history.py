"""Broken fakes: history goes wrong. Each is named with the cases that must catch it."""

from dataclasses import replace

import numpy as np

from executors.testing.fakes.echo import EchoExecutor
from executors.testing.fakes.paged import PagedFakeExecutor
from executors.testing.fakes.work import compute
from tests.executors.testing.conformance_subjects import caught_by


@caught_by("chunked_equals_whole", "preempted_equals_uninterrupted")
class LaterChunksAreMisplaced(EchoExecutor):
    def _forward(self, work):
        work.positions = work.positions + ((work.pos > 0) & (work.counts > 1))[work.item_of]
        computed = compute(work, *self._read(work))
        work.positions = work.positions - ((work.pos > 0) & (work.counts > 1))[work.item_of]
        self._write(work, computed)
        return computed


@caught_by("chunked_equals_whole")
class BlockBordersAreMisread(PagedFakeExecutor):
    def _read(self, work):
        prefix, digest = super()._read(work)
        at_border = (work.pos % self.block_size == 0) & (work.pos > 0)
        return prefix, np.where(at_border, digest + np.uint64(1), digest)


@caught_by("memory_given_back_is_nobody_elses")
class GivesBackTheBlocksBetween(PagedFakeExecutor):
    def release_memory(self, group, block_ids):
        first, last = (int(block_ids[0]), int(block_ids[-1])) if len(block_ids) else (0, -1)
        super().release_memory(group, np.arange(first, last + 1, dtype=np.int32))


@caught_by("intermediate_chunks_give_none")
class SamplesEveryChunk(EchoExecutor):
    def _native_step(self, batch, *failing):
        return super()._native_step(
            replace(batch, is_final_chunk=np.ones_like(batch.is_final_chunk)), *failing
        )


@caught_by("tokens_do_not_depend_on_logprobs", "batched_equals_alone", "seeded_sampling_is_reproducible")
class SharesSamplingBetweenSlots(EchoExecutor):
    def _plain_output(self, batch, work, computed):
        params = self._sampling
        try:
            self._sampling = params.take(np.full(len(params.seed), work.rows[0]))
            return super()._plain_output(batch, work, computed)
        finally:
            self._sampling = params


@caught_by("batched_equals_alone")
class MixesUpLongBatches(EchoExecutor):
    def _forward(self, work):
        computed = super()._forward(work)
        if len(work.rows) > 3:
            computed.digest = computed.digest[::-1]
        return computed


@caught_by("interleaved_equals_alone")
class RemembersOneHistoryOnly(EchoExecutor):
    """Decodes from whatever was computed last."""

    _last = None

    def _forward(self, work):
        if self._last is not None and len(work.rows) == 1 and work.counts[0] == 1 and work.pos[0] > 0:
            computed = compute(work, *self._last)
            self._write(work, computed)
        else:
            computed = super()._forward(work)
        self._last = computed.prefix[-1:], computed.digest[-1:]
        return computed


@caught_by(
    "tokens_do_not_depend_on_logprobs", "resumed_equals_uninterrupted", "preempted_equals_uninterrupted"
)
class NoiseCountsSteps(EchoExecutor):
    def _plain_output(self, batch, work, computed):
        moved = replace(batch)
        work.pos = work.pos + 0
        work.counts = work.counts + (self.steps % 7)  # only sampling reads the ends from here on
        return super()._plain_output(moved, work, computed)


@caught_by("truncate_equals_never_decoded", "preempted_equals_uninterrupted")
class IgnoresTruncate(EchoExecutor):
    """And trusts its own length more than the position given."""

    def truncate_kv(self, handle, new_len):
        return new_len

    def _read(self, work):
        held = self._lengths[work.rows]
        return self._prefix[work.rows, held], self._digest[work.rows, held]


@caught_by("pending_inputs")
class TakesPendingFromTheWrongPosition(EchoExecutor):
    def _gather_pending(self, work, pending):
        tokens = super()._gather_pending(work, pending)
        return np.where(pending, np.roll(tokens, 1) if len(tokens) > 1 else tokens, tokens)


@caught_by("cached_prefix_equals_cold", "block_copies_come_first")
class ReadsOnlyItsOwnWrites(PagedFakeExecutor):
    def _read(self, work):
        prefix, digest = super()._read(work)
        fresh = np.isin(work.rows, [start.slot for start in self._fresh])
        return prefix, np.where(fresh & (work.pos > 0), np.uint64(0), digest)

    def _native_step(self, batch, *failing):
        self._fresh = batch.starts
        return super()._native_step(batch, *failing)


@caught_by("block_permutation_changes_nothing")
class TakesBlocksForConsecutive(PagedFakeExecutor):
    def _cells_of(self, work, item, position, group=0):
        cell = work.tables[group, item, 0].astype(np.int64) * self.block_size + position
        return np.minimum(cell, self.num_blocks * self.block_size - 1)


@caught_by("block_copies_come_first")
class IgnoresBlockCopies(PagedFakeExecutor):
    def copy_blocks(self, copies):
        pass


@caught_by("block_copies_come_first")
class CopiesBlocksAfterTheForward(PagedFakeExecutor):
    def copy_blocks(self, copies):
        self._later = copies

    def _native_step(self, batch, *failing):
        output = super()._native_step(batch, *failing)
        super().copy_blocks(self._later)
        return output


@caught_by("single_members_equal_unified")
class ReversesBatchDecode(EchoExecutor):
    async def batch_decode(self, inputs):
        return (await super().batch_decode(inputs))[::-1]


@caught_by("single_members_equal_unified")
class PrefillForgetsTheHandle(EchoExecutor):
    async def batch_prefill(self, inputs):
        return [
            replace(out, kv_cache=one.kv_cache)
            for one, out in zip(inputs, await super().batch_prefill(inputs), strict=True)
        ]


@caught_by("a_second_text_counts_or_is_refused")
class IgnoresSecondTexts(EchoExecutor):
    def _check(self, batch):
        super()._check(
            replace(batch, starts=tuple(replace(one, second_segment=None) for one in batch.starts))
        )


@caught_by("a_second_text_counts_or_is_refused")
class TakesAnyPlaceForASecondText(EchoExecutor):
    def __init__(self, config):
        super().__init__(replace(config, options=config.options | {"token_types": 2}))

    def _check(self, batch):
        within = [
            start if start.second_segment is None else replace(start, second_segment=1)
            for start in batch.starts
        ]
        super()._check(replace(batch, starts=tuple(within)))


@caught_by("a_second_text_counts_or_is_refused")
class GivesAllPairsTheFirstOnesTypes(EchoExecutor):
    def __init__(self, config):
        super().__init__(replace(config, options=config.options | {"token_types": 2}))

    def _admit(self, starts):
        super()._admit(tuple(replace(one, second_segment=starts[0].second_segment) for one in starts))


@caught_by("pooling_is_consistent")
class PoolsTheLastChunk(EchoExecutor):
    def _digests(self, work, item, length):
        return self._digest[work.rows[item], work.pos[item] + 1 : length + 1]
