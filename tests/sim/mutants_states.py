"""Mistakes with the states of layers that the simulation must notice, each put into the engine for a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.kv import kv_cache_manager as managing
from engine.kv.hit import Hit, longest_prefix
from engine.kv.kv_cache_manager import KvCacheManager
from engine.kv.state_pool import StatePool
from engine.sequence import Sequence
from engine.sequence_state import ZEROS, Kept, SequenceState
from executors.testing.fakes.state import StateFakeExecutor

Mutate = Callable[[pytest.MonkeyPatch], None]


def _hit_without_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A sequence begins where the blocks are, with a state of zeros where there is no snapshot."""

    def careless(groups: Any, keys: Any, block_size: int, states: StatePool | None = None) -> Hit:
        hit = longest_prefix(groups, keys, block_size)
        return replace(
            hit, state=states.find(keys[hit.num_blocks - 1]) if states and hit.num_blocks else None
        )

    patch.setattr(managing, "longest_prefix", careless)


def _hit_with_another_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A sequence begins with the snapshot that was taken first, whatever its key."""
    find = StatePool.find

    def other(self: StatePool, key: bytes) -> int | None:
        return None if find(self, key) is None else next(iter(self._key_of))

    patch.setattr(StatePool, "find", other)


def _step_repeated(patch: pytest.MonkeyPatch) -> None:
    """The executor runs a forward again that has written its states in place."""
    forward = StateFakeExecutor._forward

    def twice(self: StateFakeExecutor, work: Any) -> Any:
        forward(self, work)
        return forward(self, work)

    patch.setattr(StateFakeExecutor, "_forward", twice)


def _snapshot_one_token_late(patch: pytest.MonkeyPatch) -> None:
    """The slot that is kept as a snapshot is written by the next step of its sequence."""

    def late(self: StatePool, seq: Sequence) -> bool:
        assert seq.state is not None
        slot = seq.state.slot
        return slot == ZEROS or self._references[slot] > 1 + len(seq.state.unnamed)

    patch.setattr(StatePool, "is_shared", late)
    patch.setattr(StatePool, "check_integrity", lambda self, sequences: None)


def _executors_snapshot_late(patch: pytest.MonkeyPatch) -> None:
    """The executor keeps a snapshot one token behind its place."""
    write = StateFakeExecutor._write

    def late(self: StateFakeExecutor, work: Any, computed: Any) -> None:
        write(self, work, computed)
        for item, position, slot in work.snapshots if work.snapshots is not None else ():
            self.states[slot] = computed.prefix[work.starts[item] + position - work.pos[item]]

    patch.setattr(StateFakeExecutor, "_write", late)


def _snapshot_of_the_block_before(patch: pytest.MonkeyPatch) -> None:
    """A snapshot gets the key of the block before the one that ends there."""
    take_named = SequenceState.take_named

    def early(self: SequenceState, num_tokens: int) -> list[Kept]:
        return [Kept(position - 1, slot) for position, slot in take_named(self, num_tokens)]

    patch.setattr(SequenceState, "take_named", early)


def _source_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    """A step reads the slot that the step before it has read."""
    packed = SequenceState.packed

    def stale(self: SequenceState) -> Any:
        source = self.source
        snapshots = packed(self)
        if source != ZEROS:
            self.source = source
        return snapshots

    patch.setattr(SequenceState, "packed", stale)
    patch.setattr(SequenceState, "advance", lambda self, slot: setattr(self, "slot", slot))


def _zeros_instead_of_the_source(patch: pytest.MonkeyPatch) -> None:
    """A sequence that begins with a snapshot begins with zeros."""
    begin = StatePool.begin

    def forgetful(self: StatePool, seq: Sequence, slot: int | None) -> None:
        begin(self, seq, slot)
        if seq.state is not None and slot is not None:
            self._drop(slot)
            seq.begin_state(SequenceState(ZEROS))

    patch.setattr(StatePool, "begin", forgetful)


def _sibling_from_a_moved_slot(patch: pytest.MonkeyPatch) -> None:
    """A choice begins from the slot where the state of another one is by now."""
    fork = KvCacheManager._fork

    def moved(self: KvCacheManager, other: Sequence, num_shared: int) -> Hit | None:
        hit = fork(self, other, num_shared)
        return hit and replace(
            hit, state=other.state.slot if other.state and other.state.slot != ZEROS else None
        )

    patch.setattr(KvCacheManager, "_fork", moved)


def _sibling_whatever_was_held(patch: pytest.MonkeyPatch) -> None:
    """The slot for the other choices is not held: the choice that computed the prompt writes to it."""
    hold_fork, advance = SequenceState.hold_fork, StatePool.advance

    def unheld(self: StatePool, seq: Sequence, begin: int, end: int) -> bool:
        done = advance(self, seq, begin, end)
        if done and seq.state is not None and seq.state.fork is not None and end == seq.prompt_len - 1:
            self._references[seq.state.fork] -= 1
            self._holders.pop(seq.state, None)
        return done

    def drop_nothing(self: SequenceState, slot: int | None) -> None:
        hold_fork(self, slot)

    patch.setattr(StatePool, "advance", unheld)
    patch.setattr(SequenceState, "hold_fork", drop_nothing)
    patch.setattr(SequenceState, "holds_more", property(lambda self: bool(self.unnamed)))
    patch.setattr(StatePool, "check_integrity", lambda self, sequences: None)
    patch.setattr(StatePool, "begun", lambda self, seq: None)
    patch.setattr(StatePool, "_hand_on", lambda self, seq, slot: self._hold(slot))


def _slot_of_this_step_given_away(patch: pytest.MonkeyPatch) -> None:
    """A slot is written by the step that reads it for another sequence."""

    def at_once(self: StatePool, slot: int) -> None:
        self._free.append(slot)

    def take(self: StatePool) -> int | None:
        if not self._free:
            oldest = next(iter(self._idle), None)
            if oldest is None:
                return None
            self.forget(self._key_of[oldest])
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    patch.setattr(StatePool, "_release", at_once)
    patch.setattr(StatePool, "_take", take)
    # What the executor refuses at once would hide whether tokens tell.
    patch.setattr("executors.contract.checks.check_states", lambda batch, layout: None)


def _read_in_the_same_step(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that this very step takes counts as there."""
    begin_step, advance = StatePool.begin_step, StatePool.advance

    def unnoticed(self: StatePool, seq: Sequence, begin: int, end: int) -> bool:
        done = advance(self, seq, begin, end)
        self.fresh.clear()
        return done

    patch.setattr(StatePool, "begin_step", begin_step)
    patch.setattr(StatePool, "advance", unnoticed)
    patch.setattr("executors.contract.checks.check_states", lambda batch, layout: None)
    find = KvCacheManager.find

    def at_once(self: KvCacheManager, seq: Sequence) -> Hit:
        fresh = [set(group.cache.fresh) for group in self.groups]
        for group in self.groups:
            group.cache.fresh.clear()
        try:
            return find(self, seq)
        finally:
            for group, blocks in zip(self.groups, fresh, strict=True):
                group.cache.fresh |= blocks

    patch.setattr(KvCacheManager, "find", at_once)


def _failed_life_keeps_snapshots(patch: pytest.MonkeyPatch) -> None:
    """Snapshots of a failed life are found in the next one."""
    patch.setattr(StatePool, "forget_all", lambda self: None)


def _slot_leaks(patch: pytest.MonkeyPatch) -> None:
    """A sequence that ends keeps the slot of its state."""
    patch.setattr(StatePool, "free", lambda self, seq: seq.end_state())


def _overwritten_beside_a_reader(patch: pytest.MonkeyPatch) -> None:
    """A sequence writes to its slot in the step in which another one begins from it."""
    advance = StatePool.advance

    def careless(self: StatePool, seq: Sequence, begin: int, end: int) -> bool:
        if seq.state is not None:
            self._in_step.discard(seq.state.slot)
        return advance(self, seq, begin, end)

    patch.setattr(StatePool, "advance", careless)


def _sources_swapped(patch: pytest.MonkeyPatch) -> None:
    """The states of a step's items are packed in another order than the items."""
    pack = StatePool.pack

    def reverse(self: StatePool, seqs: Any) -> Any:
        source, target, snapshots = pack(self, seqs)
        return (np.ascontiguousarray(source[::-1]), np.ascontiguousarray(target[::-1]), snapshots)

    patch.setattr(StatePool, "pack", reverse)


def _replay_from_the_wrong_slot(patch: pytest.MonkeyPatch) -> None:
    """After rejected drafts a sequence goes on from the state behind them."""
    settle = SequenceState.settle
    patch.setattr(SequenceState, "settle", lambda self, accepted: settle(self, True))


def _nothing_replayed(patch: pytest.MonkeyPatch) -> None:
    """After rejected drafts a sequence goes on behind the accepted ones, with the state before them."""
    patch.setattr(Sequence, "replay_from", lambda self, position: None)


def _drafts_in_place(patch: pytest.MonkeyPatch) -> None:
    """A step with drafts writes the state where it reads it."""

    def in_place(self: StatePool, seq: Sequence) -> bool:
        return self.advance(seq, seq.num_computed_tokens, seq.num_computed_tokens)

    patch.setattr(StatePool, "verify", in_place)


STATE_MUTANTS: dict[str, Mutate] = {
    mutate.__name__.strip("_"): mutate
    for mutate in (
        _hit_without_the_snapshot,
        _hit_with_another_snapshot,
        _step_repeated,
        _snapshot_one_token_late,
        _executors_snapshot_late,
        _snapshot_of_the_block_before,
        _source_of_the_step_before,
        _zeros_instead_of_the_source,
        _sibling_from_a_moved_slot,
        _sibling_whatever_was_held,
        _slot_of_this_step_given_away,
        _read_in_the_same_step,
        _failed_life_keeps_snapshots,
        _slot_leaks,
        _overwritten_beside_a_reader,
        _sources_swapped,
        _replay_from_the_wrong_slot,
        _nothing_replayed,
        _drafts_in_place,
    )
}
