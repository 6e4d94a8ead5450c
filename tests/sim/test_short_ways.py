"""What most sequences of a step take a short way for (`Scheduler`, `StepResults`, `StepPacker`) comes out as by the long one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.core.plan import StepPacker
from engine.core.results import StepResults
from engine.core.scheduler import Scheduler
from engine.kv.kv_cache_manager import KvCacheManager
from engine.request import TokenDelta
from engine.sequence import Sequence, SequenceStatus
from executors.contract import SampledToken, UnifiedBatch, UnifiedOutput
from tests.sim.scenario import simulate

SEEDS = range(40)


def told(seeds: range = SEEDS) -> list[str]:
    """For each seed a digest of all that was sent to the executor and told to readers, or what went wrong."""
    logging.disable(logging.CRITICAL)
    found = []
    try:
        for seed in seeds:
            digest = hashlib.sha256()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Scheduler, "_pack", _heard(Scheduler._pack, digest.update))
                patch.setattr(StepResults, "commit", _told(StepResults.commit, digest.update))
                try:
                    simulate(seed)
                except Exception as error:
                    digest.update(type(error).__name__.encode())
            found.append(digest.hexdigest())
    finally:
        logging.disable(logging.NOTSET)
    return found


def _heard(pack: Callable[..., UnifiedBatch], hear: Callable[[bytes], None]) -> Callable[..., UnifiedBatch]:
    def packed(self: Scheduler, plan: Any) -> UnifiedBatch:
        batch = pack(self, plan)
        arrays = [
            value for value in (*vars(batch).values(), *_tables(batch)) if isinstance(value, np.ndarray)
        ]
        for array in arrays:
            hear(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        hear(repr([(start.seq_id, start.slot) for start in batch.starts]).encode())
        hear(repr([(seq.num_charged_tokens, seq.last_step) for seq in plan.grants]).encode())
        return batch

    return packed


def _tables(batch: UnifiedBatch) -> tuple[Any, ...]:
    tables = batch.tables
    return tables.slots, tables.groups, tables.starts, tables.counts, tables.block_ids


def _told(commit: Callable[..., Any], hear: Callable[[bytes], None]) -> Callable[..., Any]:
    def committed(self: StepResults, batch: UnifiedBatch, output: UnifiedOutput, now: float) -> Any:
        numbers = {
            (id(seq.mailbox), seq.mailbox_key): seq.seq_id for seq in self._sequences.by_step[batch.step_id]
        }
        gains = commit(self, batch, output, now)
        deltas = [
            (numbers[id(outlet), key], TokenDelta([SampledToken(token_id)], None, None, cached))
            for outlet, key, token_id, cached in gains.tokens
        ]
        deltas += [(seq.seq_id, delta) for seq, delta in gains.deltas]
        hear(repr(sorted(deltas, key=lambda one: one[0])).encode())
        return gains

    return committed


def _grant_by_the_long_way(self: Scheduler, decodes: list[Sequence], plan: Any) -> None:
    for seq in decodes:
        if seq.status is SequenceStatus.RUNNING:
            self._grant(seq, 1, plan)


@pytest.mark.long(extended=True)
def test_short_ways_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    short = told()
    who = StepPacker._who
    monkeypatch.setattr(Scheduler, "_grant_one_each", _grant_by_the_long_way)
    monkeypatch.setattr(Sequence, "take_plain", lambda self, token_id, now: None)
    monkeypatch.setattr(StepPacker, "_who", lambda self, seqs: who(StepPacker(), seqs))
    assert told() == short


def _prepared_too_far(patch: pytest.MonkeyPatch) -> None:
    """A sequence is taken to have a block more than it has."""
    prepared = KvCacheManager._prepared

    def further(self: KvCacheManager, seq: Sequence) -> None:
        prepared(self, seq)
        seq.num_prepared_tokens += 1

    patch.setattr(KvCacheManager, "_prepared", further)


def _same_as_the_last(patch: pytest.MonkeyPatch) -> None:
    """Steps of as many sequences are taken to have the same."""
    who = StepPacker._who

    def careless(self: StepPacker, seqs: list[Sequence]) -> Any:
        return (self._seq_ids, self._slots) if len(seqs) == len(self._ids) else who(self, seqs)

    patch.setattr(StepPacker, "_who", careless)


def _past_the_end(patch: pytest.MonkeyPatch) -> None:
    """A plain token that ends a sequence does not."""

    def take(self: Sequence, token_id: int, now: float) -> float | None:
        if self.status is not SequenceStatus.RUNNING or self.num_void_results or not self.output_token_ids:
            return None
        assert self.receive(sampled=True)
        self.commit([token_id])
        return self.stamp_tokens(now)

    patch.setattr(Sequence, "take_plain", take)


@pytest.mark.parametrize(
    "mutate",
    [_prepared_too_far, _same_as_the_last, _past_the_end],
    ids=lambda one: one.__name__,
)
def test_a_short_way_that_is_wrong_is_caught(
    mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = SEEDS[:12]
    right = told(seeds)
    mutate(monkeypatch)
    assert told(seeds) != right
