"""Mistakes that the simulation must notice, each put into the engine for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.core import scheduler as scheduling
from engine.core.journal import Journal
from engine.core.model_drafts import ModelDrafts
from engine.core.results import StepResults
from engine.core.scheduler import Scheduler
from engine.core.sequences import Sequences
from engine.core.step_budget import StepBudget
from engine.core.steps import StepQueue
from engine.kv import kv_cache_manager as managing
from engine.kv.block_group import BlockGroup
from engine.kv.block_pool import BlockPool
from engine.kv.kv_cache_manager import KvCacheManager
from engine.kv.prefix_cache import PrefixCache, block_key
from engine.kv.table_changes import TableChanges
from engine.request import FinishReason
from engine.sequence import Sequence, SequenceStatus
from engine.waiting.fair import Fair
from engine.waiting.queue import WaitingQueue
from executors.contract import Int32Array, UnifiedBatch

Mutate = Callable[[pytest.MonkeyPatch], None]


def _share_without_reference(patch: pytest.MonkeyPatch) -> None:
    """A shared block has one reference too few."""

    def share(self: BlockPool, blocks: Any) -> None:
        for block in blocks:
            if not self._references[block]:
                self.num_kept -= self._free.pop(block)
                self._references[block] += 1

    patch.setattr(BlockPool, "share", share)


def _reuse_latest_first(patch: pytest.MonkeyPatch) -> None:
    """What was given back last is reused first."""

    def take(self: BlockPool) -> int:
        if self._unused and len(self._free) == self.num_kept:
            block, kept = self._unused.pop(), False
            self._has_memory[block] = True
        else:
            block, kept = self._free.popitem(last=True)
        self.num_kept -= kept
        self._references[block] = 1
        return block

    patch.setattr(BlockPool, "take", take)


def _unchained_keys(patch: pytest.MonkeyPatch) -> None:
    """A block is named by its own tokens alone."""
    patch.setattr(managing, "block_key", lambda before, tokens: block_key(b"", tokens))


def _chunk_boundary(patch: pytest.MonkeyPatch) -> None:
    """A later chunk begins one position too far."""
    pack = Scheduler._pack

    def shifted(self: Scheduler, plan: Any) -> UnifiedBatch:
        batch = pack(self, plan)
        batch.pos_offsets[(batch.num_q_tokens > 1) & (batch.pos_offsets > 0)] += 1
        return batch

    patch.setattr(Scheduler, "_pack", shifted)


def _partial_block_named(patch: pytest.MonkeyPatch) -> None:
    """The last block of a chunk counts as full when one token is missing."""
    register = KvCacheManager.register

    def early(self: KvCacheManager, seq: Sequence, num_computed: int) -> None:
        register(self, seq, min(num_computed + 1, seq.num_known_tokens))

    patch.setattr(KvCacheManager, "register", early)


def _abort_in_flight_lets_go(patch: pytest.MonkeyPatch) -> None:
    """A sequence that ends during a step gives everything back at once, and once more when the step is in."""

    def finish(self: Sequences, seq: Sequence, reason: FinishReason) -> None:
        if seq.finished:
            return
        if seq.status is SequenceStatus.RUNNING:
            del self.running[seq]
        else:
            self.waiting.remove(seq)
        seq.status, seq.finish_reason = SequenceStatus.FINISHED, reason
        self.suspects.pop(seq, None)
        self.waiting.end(seq)
        released = seq.started_epoch == self.journal.epoch
        self.let_go(seq)
        seq.started_epoch = self.journal.epoch if released and seq.in_flight else None

    patch.setattr(Sequences, "finish", finish)


def _abort_in_flight_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A sequence that ends during a step is never let go."""
    let_go = Sequences.let_go

    def forget(self: Sequences, seq: Sequence) -> None:
        if not any(seq in seqs for seqs in self.by_step.values()):
            let_go(self, seq)

    patch.setattr(Sequences, "let_go", forget)


def _failed_epoch_keeps_keys(patch: pytest.MonkeyPatch) -> None:
    """Blocks of a failed life can still be found."""

    def reset(self: KvCacheManager) -> None:
        self.changes.clear()

    patch.setattr(KvCacheManager, "reset", reset)


def _failed_item_keeps_keys(patch: pytest.MonkeyPatch) -> None:
    """What a failed sequence wrote can still be found, and who finds it gets no second try."""
    patch.setattr(PrefixCache, "withdraw", lambda self, keys: [])
    patch.setattr(Sequences, "preempt", _no_second_try(Sequences.preempt))


def _no_second_try(preempt: Callable[..., None]) -> Callable[..., None]:
    def refuse(self: Sequences, seq: Sequence, *why: Any) -> None:
        if seq.alone:
            seq.alone = False
        preempt(self, seq, *why)

    return refuse


def _old_epoch_counts(patch: pytest.MonkeyPatch) -> None:
    """Results of an older life are taken in."""
    patch.setattr(Journal, "accepts", lambda self, epoch: True)


def _read_in_the_same_step(patch: pytest.MonkeyPatch) -> None:
    """What this very step computes counts as there."""
    patch.setattr(PrefixCache, "add", _stale_add)


def _stale_add(self: PrefixCache, key: bytes, block: int) -> None:
    if key not in self._block_of:
        self._block_of[key] = block
        self.blocks[block] = key


def _copies_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The partial block of a fork is not copied."""
    take = KvCacheManager.take_copies

    def none(self: KvCacheManager) -> Any:
        return take(self)[:0]

    patch.setattr(KvCacheManager, "take_copies", none)


def _rejected_drafts_count(patch: pytest.MonkeyPatch) -> None:
    """KV of rejected drafts counts as computed."""

    def settle(self: Sequence, num_computed: int) -> None:
        self.drafting = False

    patch.setattr(Sequence, "settle", settle)


def _drafts_without_room(patch: pytest.MonkeyPatch) -> None:
    """Drafts are asked for, and no blocks for them are taken."""
    want = ModelDrafts.request

    def rash(self: ModelDrafts, plan: Any) -> None:
        kv = self._kv
        grow, kv.grow = kv.grow, lambda seq, end: True  # type: ignore[method-assign]
        try:
            want(self, plan)
        finally:
            kv.grow = grow  # type: ignore[method-assign]

    patch.setattr(ModelDrafts, "request", rash)


def _drafts_taken_as_tokens(patch: pytest.MonkeyPatch) -> None:
    """The draft model's guesses are committed without a check."""
    receive = ModelDrafts.receive

    def believed(self: ModelDrafts, seqs: Any, drafts: Any) -> None:
        receive(self, seqs, drafts)
        for i, token_ids in drafts.by_item().items():
            if seqs[i].status is SequenceStatus.RUNNING and len(token_ids) < seqs[i].num_to_generate:
                seqs[i].commit(token_ids)

    patch.setattr(ModelDrafts, "receive", believed)


def _void_results_count(patch: pytest.MonkeyPatch) -> None:
    """Tokens sampled behind a failed one are taken in."""
    fail = StepResults._fail

    def keep(self: StepResults, seq: Sequence, *failure: Any) -> Any:
        failed = fail(self, seq, *failure)
        seq.num_void_results = 0
        return failed

    patch.setattr(StepResults, "_fail", keep)


def _stop_found_late(patch: pytest.MonkeyPatch) -> None:
    """The surplus token of a step in flight reaches the client."""
    append = StepResults._append

    def late(self: StepResults, seq: Sequence, tokens: Any) -> Any:
        delta = append(self, seq, tokens)
        if delta.finish_reason is FinishReason.STOP and seq.in_flight:
            delta.tokens.append(delta.tokens[-1])
        return delta

    patch.setattr(StepResults, "_append", late)


def _budget_ignored(patch: pytest.MonkeyPatch) -> None:
    """A step computes more tokens than it may."""
    plan = scheduling.StepPlan

    def larger(budget: int) -> Any:
        return plan(budget + 1)

    patch.setattr(scheduling, "StepPlan", larger)


def _blamed_for_want_of_memory(patch: pytest.MonkeyPatch) -> None:
    """A step that was too large for the memory is tried again as it was, and counts against who is in it."""
    patch.setattr(StepBudget, "shrink", lambda self, num_tokens: False)


def _skipped_forever(patch: pytest.MonkeyPatch) -> None:
    """Who waits for a block of this step waits for good."""
    patch.setattr(KvCacheManager, "begin_step", lambda self: None)


def _prompt_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    """Who wants something of every position of the prompt takes a part of it from the prefix cache."""
    patch.setattr(
        Sequence,
        "needs_whole_prompt",
        property(lambda self: self.request.prompt_logprobs is not None and self.num_tokens < 9),
    )


def _prompt_told_twice(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is computed again is described again."""

    def commit(self: Journal, seq: Sequence, position: int, found: Any) -> None:
        seq.prompt_logprobs.extend(found)

    patch.setattr(Journal, "commit_prompt", commit)


def _embedding_leaves_late(patch: pytest.MonkeyPatch) -> None:
    """An embedding request stays after its vector has come."""
    finish = Sequences.finish

    def stay(self: Sequences, seq: Sequence, reason: FinishReason) -> None:
        if seq.request.pooling is None or reason is not FinishReason.STOP:
            finish(self, seq, reason)

    patch.setattr(Sequences, "finish", stay)


def _slots_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """A tenant that has all the slots it may have gets none of them back to run in, where its sequences were preempted."""
    candidates = Fair.candidates

    def without_holders(self: Fair, num_slots: int) -> Iterator[Sequence]:
        if not self._several():
            return candidates(self, num_slots)
        most = num_slots - min(num_slots - 1, max(1, num_slots // 8))
        limits = {tenant: max(0, most - len(holding)) for tenant, holding in self._holding.items()}
        return self._in_turn(limits, most)

    patch.setattr(Fair, "candidates", without_holders)


def _removed_from_the_wrong_place(patch: pytest.MonkeyPatch) -> None:
    """A tenant's first sequence leaves the fair queue, whichever was meant."""
    remove = Fair.remove

    def first(self: Fair, seq: Sequence) -> None:
        entries = self._waiting.get(seq.context.tenant)
        remove(self, entries[0][1] if entries else seq)

    patch.setattr(Fair, "remove", first)


def _aborted_ones_still_wait(patch: pytest.MonkeyPatch) -> None:
    """A sequence that ends before it was started counts as waiting for ever."""
    end = WaitingQueue.end

    def started_only(self: WaitingQueue, seq: Sequence) -> None:
        if seq in self._fresh:
            self.policy.gone(seq)
        else:
            end(self, seq)

    patch.setattr(WaitingQueue, "end", started_only)


def _given_back_and_found(patch: pytest.MonkeyPatch) -> None:
    """A prefix is found in blocks whose memory was given back."""

    def take_spare(self: BlockGroup, keep: int, min_age: int, most_spans: int) -> Int32Array:
        return self.pool.take_spare(keep, min_age, most_spans)

    patch.setattr(BlockGroup, "take_spare", take_spare)


def _given_back_in_use(patch: pytest.MonkeyPatch) -> None:
    """The executor is told to give back memory that a running sequence reads."""
    take_spare = BlockGroup.take_spare

    def too_much(self: BlockGroup, keep: int, min_age: int, most_spans: int) -> Int32Array:
        blocks = take_spare(self, keep, min_age, most_spans)
        used = [block for block, count in enumerate(self.pool._references) if count]
        return np.array(sorted({*blocks.tolist(), *used[:1]}), np.int32)

    patch.setattr(BlockGroup, "take_spare", too_much)


def _never_given_back(patch: pytest.MonkeyPatch) -> None:
    """What a burst took stays."""
    patch.setattr(BlockPool, "_spare_spans", lambda self, min_age: [])


def _window_freed_early(patch: pytest.MonkeyPatch) -> None:
    """A block is freed while its last token is still within the window."""
    slide = BlockGroup.slide

    def early(self: BlockGroup, seq: Sequence, position: int) -> None:
        lowest, end = self.lowest, seq.block_tables[self.index].end
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "lowest", lambda position: min(end, lowest(position + self._block_size)))
            slide(self, seq, position)

    patch.setattr(BlockGroup, "slide", early)


def _window_a_token_short(patch: pytest.MonkeyPatch) -> None:
    """The first token of the window is not taken to be read."""
    lowest = BlockGroup.lowest

    def short(self: BlockGroup, position: int) -> int:
        return min(lowest(self, position + 1), position // self._block_size)

    patch.setattr(BlockGroup, "lowest", short)


def _hit_without_its_window(patch: pytest.MonkeyPatch) -> None:
    """A sequence begins where the full groups have the prefix, whatever the windows have."""
    patch.setattr(BlockGroup, "holds_before", lambda self, keys, num_blocks: num_blocks)


def _hit_with_half_its_window(patch: pytest.MonkeyPatch) -> None:
    """Of the window before a hit the last block alone is looked for."""
    holds_before = BlockGroup.holds_before

    def careless(self: BlockGroup, keys: Any, num_blocks: int) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self, "lowest", lambda position: max(0, position // self._block_size - 1))
            return holds_before(self, keys, num_blocks)

    patch.setattr(BlockGroup, "holds_before", careless)


def _fork_behind_the_window(patch: pytest.MonkeyPatch) -> None:
    """A choice begins with the blocks of another one that has gone on: with those that its windows have left."""
    fork = KvCacheManager._fork

    def late(self: KvCacheManager, other: Sequence, num_shared: int) -> Any:
        firsts = [table.first for table in other.block_tables]
        full = num_shared // self.layout.block_size
        if max(firsts) > full:
            return None
        with pytest.MonkeyPatch.context() as inner:
            for group, first in zip(self.groups, firsts, strict=True):
                lowest = group.lowest
                inner.setattr(
                    group, "lowest", lambda position, low=lowest, first=first: max(first, low(position))
                )
            return fork(self, other, num_shared)

    patch.setattr(KvCacheManager, "_fork", late)


def _tables_swapped(patch: pytest.MonkeyPatch) -> None:
    """Blocks of one group are written into the table of another."""
    take = TableChanges.take_updates

    def swapped(self: TableChanges) -> Any:
        updates = take(self)
        return replace(updates, groups=updates.groups.max(initial=0) - updates.groups)

    patch.setattr(TableChanges, "take_updates", swapped)


def _one_group_grows(patch: pytest.MonkeyPatch) -> None:
    """If one group has no block left, the others grow without it."""
    grow = KvCacheManager.grow

    def partly(self: KvCacheManager, seq: Sequence, num_tokens: int) -> bool:
        if grow(self, seq, num_tokens):
            return True
        end = self.blocks_for(num_tokens)
        roomy = [
            group for group in self.groups if end - seq.block_tables[group.index].end <= group.pool.num_free
        ]
        seq.cover(end)
        for group in roomy:
            begin = seq.block_tables[group.index].end
            self._append(seq, group, begin, group.allocate(max(0, end - begin)) or [])
        return bool(roomy)

    patch.setattr(KvCacheManager, "grow", partly)


def _stride_outlives_a_slide(patch: pytest.MonkeyPatch) -> None:
    """A table goes on as if its window had not left blocks since that was looked up."""
    slide_table = Sequence.slide_table

    def same_stride(self: Sequence, group: int, first: int) -> list[int]:
        stride = self.stride
        blocks = slide_table(self, group, first)
        self.stride = stride
        return blocks

    patch.setattr(Sequence, "slide_table", same_stride)


def _stride_whatever_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A table goes on in its stride although more of it may be lost than when that was looked up."""
    step_on = KvCacheManager._step_on

    def careless(self: KvCacheManager, seq: Sequence, begin: int) -> bool:
        if seq.stride is not None:
            seq.stride.lag = begin - seq.settled // self.layout.block_size
        return step_on(self, seq, begin)

    patch.setattr(KvCacheManager, "_step_on", careless)


def _prompt_turned(patch: pytest.MonkeyPatch) -> None:
    """A window writes anew to a block of the prompt that others may have found."""
    way_on = BlockGroup.way_on

    def rash(self: BlockGroup, seq: Sequence, settled: int, latest: int) -> Any:
        way = way_on(self, seq, settled, latest)
        return way and (way[0]._replace(drop_end=0), way[1])

    patch.setattr(BlockGroup, "way_on", rash)


def _shared_block_turned(patch: pytest.MonkeyPatch) -> None:
    """A window writes anew to a block that it shares."""
    way_on = BlockGroup.way_on

    def rash(self: BlockGroup, seq: Sequence, settled: int, latest: int) -> Any:
        shared, seq.num_shared_blocks = seq.num_shared_blocks, 0
        try:
            way = way_on(self, seq, settled, latest)
        finally:
            seq.num_shared_blocks = shared
        return way and (way[0]._replace(drop_end=0), way[1])

    patch.setattr(BlockGroup, "way_on", rash)


def _third_step_behind_a_prompt(patch: pytest.MonkeyPatch) -> None:
    """A device gets a third step whatever those that are out compute."""

    def room(self: StepQueue) -> bool:
        return len(self.out) < self.depth.most

    patch.setattr(StepQueue, "room", property(room))


MUTANTS: dict[str, Mutate] = {
    mutate.__name__.strip("_"): mutate
    for mutate in (
        _share_without_reference,
        _reuse_latest_first,
        _unchained_keys,
        _chunk_boundary,
        _partial_block_named,
        _abort_in_flight_lets_go,
        _abort_in_flight_forgotten,
        _failed_epoch_keeps_keys,
        _failed_item_keeps_keys,
        _old_epoch_counts,
        _read_in_the_same_step,
        _copies_forgotten,
        _rejected_drafts_count,
        _drafts_without_room,
        _drafts_taken_as_tokens,
        _void_results_count,
        _stop_found_late,
        _budget_ignored,
        _blamed_for_want_of_memory,
        _skipped_forever,
        _prompt_from_the_cache,
        _prompt_told_twice,
        _embedding_leaves_late,
        _slots_for_nobody,
        _removed_from_the_wrong_place,
        _aborted_ones_still_wait,
        _given_back_and_found,
        _given_back_in_use,
        _never_given_back,
        _window_freed_early,
        _window_a_token_short,
        _hit_without_its_window,
        _hit_with_half_its_window,
        _fork_behind_the_window,
        _tables_swapped,
        _one_group_grows,
        _stride_outlives_a_slide,
        _stride_whatever_is_in_flight,
        _prompt_turned,
        _shared_block_turned,
        _third_step_behind_a_prompt,
    )
}
