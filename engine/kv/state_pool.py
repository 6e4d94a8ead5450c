"""`StatePool`: the states of layers in slots: which sequence has which, and which snapshots later sequences can begin with.

A state sums up all tokens before a position. Slots have references, as blocks have, from the sequences that begin or go on from
them and from the table of snapshots {key of the block that ends there: slot}. One rule serves hits, forks and snapshots:

    a step writes a state where it was read if no other refers to that slot, else into a slot of its own

So no state is ever copied, and a step that repeats nothing writes each slot once. Forwards run in the order of submission: a slot
that a step reads or writes is not given away before the next step is put together.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf

import numpy as np

from engine.kv.cache_points import rolling_interval
from engine.kv.seals import GroupSeals
from engine.sequence import Sequence
from engine.sequence_state import ZEROS, Kept, SequenceState
from executors.contract import Int32Array, StateLayout


class StatePool:
    """Owned by KvCacheManager, which calls it in step with the tables. Writes each `Sequence.state`.

    A slot is free, or held by sequences, by the table of snapshots, or by both. Snapshots that no sequence holds are evicted, the
    one that was used longest ago first: in a chain the newest and the deepest shared one go last.
    """

    def __init__(self, layout: StateLayout, block_size: int, outlives: bool = False) -> None:
        """`outlives`: whether slots outlive the executor."""
        # One more, to go on from after a failure before the latest one is sealed.
        self._num_rolling = 1 + outlives
        self.num_slots = layout.num_slots
        self._interval = layout.interval
        self._block_size = block_size
        self._free = list(range(layout.num_slots - 1, -1, -1))
        self._later: list[int] = []
        """Free slots that the step being assembled reads or writes."""
        self._in_step: set[int] = set()
        """Slots that this step reads or writes."""
        self.fresh: set[int] = set()
        """Those that it writes: they are not read in it."""
        self._references = [0] * layout.num_slots
        """Of sequences; the table of snapshots is not counted."""
        self._slot_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Slots of snapshots that no sequence holds, the one used longest ago first."""
        self._holders: dict[SequenceState, None] = {}
        """States that hold more slots than the one they go on from."""
        self._has_memory = [False] * layout.num_slots
        """Whether a slot was written since its memory was given back."""
        self._freed_at = [0] * layout.num_slots
        self._now = 0
        """Number of `grow_older` calls; the unit of age in `take_spare`."""
        self._fetched: list[int] = []
        """Slots that are filled from files just now."""
        self.seals = GroupSeals()
        """Of snapshots, as long as they can be found: a slot is written only where it has no key."""

    @property
    def num_snapshots(self) -> int:
        """Snapshots that a sequence can begin with."""
        return len(self._slot_of)

    @property
    def num_used(self) -> int:
        """Slots that sequences hold."""
        return self.num_slots - len(self._free) - len(self._later) - len(self._idle)

    def find(self, key: bytes) -> int | None:
        """The slot of the snapshot at the end of the block with this key."""
        return self._slot_of.get(key)

    def round_down(self, num_blocks: int) -> int:
        """The largest number of blocks up to `num_blocks` behind which there can be a snapshot, or 0."""
        return num_blocks - num_blocks % (self._interval // self._block_size)

    def deepest(self, keys: SequenceOf[bytes], num_blocks: int) -> int:
        """The largest n up to `num_blocks` behind which a sequence can begin: 0, or a snapshot is there. `keys`: of its first
        blocks."""
        for n in range(self.round_down(num_blocks), 0, -(self._interval // self._block_size)):
            if keys[n - 1] in self._slot_of:
                return n
        return 0

    def refresh(self, seq: Sequence) -> None:
        """Count the snapshots at the cache points before a sequence's beginning as used, the one nearest to the beginning of the
        prompt last: most prompts share it, although those that go on from this one begin behind it."""
        for block in reversed(seq.cache_points):
            if block <= len(seq.block_keys):
                slot = self._slot_of.get(seq.block_keys[block - 1])
                if slot is not None and slot in self._idle:
                    self._idle.move_to_end(slot)

    # -- a step --------------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin to assemble a new step, which runs after those submitted."""
        self._end_step()
        self.fresh.clear()

    def _end_step(self) -> None:
        """What is given up from here on is written by later steps only."""
        self._in_step.clear()
        self._free += self._later
        self._later.clear()

    def has_room(self, but: int | None) -> bool:
        """Whether a sequence can begin in this step, in a slot of its own and from slot `but`."""
        return bool(self._free) or any(slot != but and slot not in self._in_step for slot in self._idle)

    def begin(self, seq: Sequence, slot: int | None) -> None:
        """Give a sequence its state: that of `slot`, or zeros. Its first step takes a slot to write to."""
        seq.begin_state(SequenceState(ZEROS if slot is None else slot))
        if slot is not None:
            self._hold(slot)

    def is_shared(self, seq: Sequence) -> bool:
        """Whether the next step has to write the sequence's state to another slot than it reads."""
        assert seq.state is not None, "a sequence that runs has a state"
        slot = seq.state.slot
        return slot == ZEROS or self._references[slot] > 1 or slot in self._key_of

    def advance(self, seq: Sequence, begin: int, end: int) -> bool:
        """Choose where the step being assembled writes the state after positions begin .. end - 1 of a sequence, and which
        snapshots it leaves. False, and the sequence is as before, if no slot can be had in this step: it can in a later one."""
        state = seq.state
        assert state is not None, "a sequence that runs has a state"
        source, target = state.slot, state.slot
        # What another item of the step reads, or has begun from, is not overwritten in this step.
        if self.is_shared(seq) or source in self._in_step:
            slot = self._take()
            if slot is None:
                slot = self._reclaim(source)
            if slot is None:
                return False
            target = slot
        self._in_step.add(target)
        self.fresh.add(target)
        if source not in (ZEROS, target):
            self._in_step.add(source)
            self._drop(source)
        state.advance(target)
        self._leave_snapshots(seq, state, begin, end)
        if end == seq.prompt_len - 1 and _to_come(seq):
            self._references[target] += 1
            state.hold_fork(target)
        if state.holds_more:
            self._holders[state] = None
        return True

    def verify(self, seq: Sequence) -> bool:
        """Let the step being assembled verify drafts of a sequence: the state behind them goes to a second slot. False, and the
        sequence is as before, if none can be had."""
        state = seq.state
        assert state is not None, "a sequence that runs has a state"
        slot = None if state.slot == ZEROS else self._take()
        if slot is None:
            return False
        self._in_step |= {state.slot, slot}
        self.fresh.add(slot)
        state.verify(slot)
        return True

    def settle(self, seq: Sequence, accepted: bool) -> None:
        """Drafts are verified; `accepted`: all of them."""
        if seq.state is not None and (slot := seq.state.settle(accepted)) is not None:
            self._drop(slot)

    def is_due(self, seq: Sequence, begin: int, end: int) -> bool:
        """Whether a snapshot is to be taken in positions begin + 1 .. end: it is, by a step without drafts."""
        return seq.takes_snapshots and bool(self._points(seq, begin, end))

    def _leave_snapshots(self, seq: Sequence, state: SequenceState, begin: int, end: int) -> None:
        """Keep the state at the cache points of the chunk, as far as slots are to be had. At the chunk's end the slot that is
        written is the snapshot, and the next step writes another."""
        if not seq.takes_snapshots or seq.request.needs_whole_prompt:
            return
        for position in self._points(seq, begin, end):
            block, keys = position // self._block_size, seq.block_keys
            if block <= len(keys) and keys[block - 1] in self._slot_of:
                continue
            if position == end:
                self._references[state.slot] += 1
                state.keep(position, state.slot)
                continue
            slot = self._take()
            if slot is None:
                return
            self._in_step.add(slot)
            self.fresh.add(slot)
            state.snapshots.append(Kept(position, slot))
            state.keep(position, slot)

    def _points(self, seq: Sequence, begin: int, end: int) -> list[int]:
        """Positions in begin + 1 .. end at which a snapshot is to be taken, rising."""
        size = self._block_size
        points = [block * size for block in seq.cache_points if begin < block * size <= end]
        if end > seq.prompt_len:
            every = rolling_interval(self._interval)
            points += range((max(begin, seq.prompt_len) // every + 1) * every, end + 1, every)
        return points

    def name(self, seq: Sequence) -> list[int]:
        """Let the sequence's snapshots be found whose tokens are known: those behind blocks that have a key. Returns the slots of
        those that are found from now on."""
        state, findable = seq.state, list[int]()
        if state is None or not state.unnamed:
            return findable
        for position, slot in state.take_named(seq.num_keyed_blocks * self._block_size):
            key = seq.block_keys[position // self._block_size - 1]
            if key not in self._slot_of:
                self._slot_of[key], self._key_of[slot] = slot, key
                findable.append(slot)
                if position > seq.prompt_len and (oldest := state.roll(key, self._num_rolling)) is not None:
                    self.forget(oldest)
            self._drop(slot)
        self._settle(state)
        return [slot for slot in findable if slot in self._key_of]

    def free(self, seq: Sequence) -> None:
        """Give up all slots of a sequence; steps submitted later may write to them."""
        state = seq.end_state()
        if state is None:
            return
        if state.slot != ZEROS:
            self._drop(state.slot)
        if state.before not in (None, ZEROS):
            self._drop(state.before)
        if state.fork is not None:
            self._hand_on(seq, state.fork)
        self._give_up(state)

    # -- forks ---------------------------------------------------------------------------------------------------------

    def until_fork(self, seq: Sequence, count: int) -> int:
        """How many of the next `count` tokens a step computes of a sequence: it stops before the last one of its prompt where
        other choices are to begin."""
        last = seq.prompt_len - 1
        begin = seq.num_computed_tokens
        return last - begin if begin < last < begin + count and _to_come(seq) else count

    def begun(self, seq: Sequence) -> None:
        """A choice has begun to run, or has ended. Once all have, nothing is held for them any longer."""
        if not seq.siblings or _to_come(seq):
            return
        for other in seq.siblings:
            if other.state is not None and other.state.fork is not None:
                self._drop(other.state.fork)
                other.state.hold_fork(None)
                self._settle(other.state)

    def _hand_on(self, seq: Sequence, slot: int) -> None:
        """Let another choice that has KV of the prompt hold the state behind it, if one is still to begin."""
        if not _to_come(seq):
            return
        for other in seq.siblings:
            state = other.state
            if other is not seq and state is not None and other.num_computed_tokens >= seq.prompt_len - 1:
                if state.fork is None:
                    self._references[slot] += 1
                    state.hold_fork(slot)
                    self._holders[state] = None
                return

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def forget(self, key: bytes) -> None:
        """The snapshot with this key is found no more, if there is one."""
        slot = self._slot_of.pop(key, None)
        if slot is None:
            return
        del self._key_of[slot]
        self.seals.drop((slot,))  # from here on a step may write it
        if slot in self._idle:
            del self._idle[slot]
            self._release(slot)

    def withdraw(self, seq: Sequence, keys: Iterable[bytes]) -> None:
        """Forget the snapshots with these keys and those of the sequence that have none yet: their computation failed."""
        for key in keys:
            self.forget(key)
        if seq.state is not None:
            for _, slot in seq.state.take_named(seq.state.unnamed[-1].position if seq.state.unnamed else 0):
                self._drop(slot)
            self._settle(seq.state)

    def keep_sealed(self, is_found: Callable[[bytes], bool]) -> int:
        """The executor failed: forget the snapshots that are not sealed, and those whose block cannot be found by its key.
        Returns how many there were."""
        before = list(self._slot_of.items())
        for key, slot in before:
            if slot not in self.seals.checksums or not is_found(key):
                self.forget(key)
        return len(before)

    def keep(self, slots: Iterable[int]) -> None:
        """Forget the snapshots in all other slots."""
        remaining = set(slots)
        for key in [key for key, slot in self._slot_of.items() if slot not in remaining]:
            self.forget(key)

    def forget_all(self) -> None:
        """No snapshot can be found from now on."""
        for key in list(self._slot_of):
            self.forget(key)

    # -- from files ----------------------------------------------------------------------------------------------------

    def hold_for_fetch(self) -> int:
        """Take a slot that is filled from a file; `has_room` says that there is one. Between two steps."""
        slot = self._take()
        assert slot is not None, "there is room for it"
        self._fetched.append(slot)
        return slot

    def take_fetched(self, slot: int, key: bytes, checksum: int | None) -> None:
        """Free such a slot. With a checksum it is a snapshot from now on, unless there is one with this key."""
        self._fetched.remove(slot)
        if checksum is not None and key not in self._slot_of:
            self._slot_of[key], self._key_of[slot] = slot, key
            self.seals.checksums[slot] = checksum
        self._drop(slot)

    # -- slots ---------------------------------------------------------------------------------------------------------

    def _hold(self, slot: int) -> None:
        self._references[slot] += 1
        self._idle.pop(slot, None)

    def _drop(self, slot: int) -> None:
        self._references[slot] -= 1
        if self._references[slot]:
            return
        if slot in self._key_of:
            self._idle[slot] = None
        else:
            self._release(slot)

    def _release(self, slot: int) -> None:
        self._freed_at[slot] = self._now
        (self._later if slot in self._in_step else self._free).append(slot)

    def _take(self) -> int | None:
        """A slot with one reference: a free one, else that of the snapshot used longest ago. None if this step uses them all."""
        if self._free:
            slot = self._free.pop()
        else:
            oldest = next((slot for slot in self._idle if slot not in self._in_step), None)
            if oldest is None:
                return None
            self.forget(self._key_of[oldest])
            slot = self._free.pop()
        self._references[slot] = 1
        self._has_memory[slot] = True
        return slot

    def _reclaim(self, source: int) -> int | None:
        """A slot for a sequence that reads `source` where none can be had: what sequences hold for others and for later is given
        up, which is computed again then. There are as many slots as sequences, so the first of a step always gets one."""
        for state in list(self._holders):
            self._give_up(state)
        if source != ZEROS and self._references[source] == 1 and source not in self._in_step:
            if (key := self._key_of.get(source)) is not None:
                self.forget(key)
            return source
        return self._take()

    def _give_up(self, state: SequenceState) -> None:
        """Hold nothing beside the state itself."""
        if state.fork is not None:
            self._drop(state.fork)
            state.hold_fork(None)
        if state.unnamed:
            for _, slot in state.take_named(state.unnamed[-1].position):
                self._drop(slot)
        self._settle(state)

    def _settle(self, state: SequenceState) -> None:
        if not state.holds_more:
            self._holders.pop(state, None)

    # -- memory --------------------------------------------------------------------------------------------------------

    def grow_older(self) -> None:
        """A round is over in which a slot can be unused."""
        self._now += 1

    def take_spare(self, keep: int, min_age: int, most: int) -> Int32Array:
        """Slots whose memory can be released, int32 in rising order, at most so many: free ones with memory but for the `keep`
        that are taken next, none that was freed within the last `min_age` rounds."""
        with_memory = [slot for slot in self._free if self._has_memory[slot]]  # the last one is taken next
        spare = [
            slot
            for slot in with_memory[: max(0, len(with_memory) - keep)]
            if self._now - self._freed_at[slot] >= min_age
        ][:most]
        for slot in spare:
            self._has_memory[slot] = False
        return np.array(sorted(spare), np.int32)

    # -- for the next batch --------------------------------------------------------------------------------------------

    def pack(self, seqs: SequenceOf[Sequence]) -> tuple[Int32Array, Int32Array, Int32Array]:
        """`state_src`, `state_dst` and `snapshots` of a step with these items."""
        sources: list[int] = []
        targets: list[int] = []
        snapshots: list[tuple[int, int, int]] = []
        for i, seq in enumerate(seqs):
            state = seq.state
            assert state is not None, "a sequence in a step has a state"
            sources.append(state.source)
            targets.append(state.slot)
            snapshots += [(i, position, slot) for position, slot in state.packed()]
        self._end_step()
        return (
            np.array(sources, np.int32),
            np.array(targets, np.int32),
            np.array(snapshots, np.int32).reshape(-1, 3),
        )

    # -- books ---------------------------------------------------------------------------------------------------------

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises RuntimeError unless references are those of these sequences, each slot is free or held, snapshots and their keys
        correspond one to one, and no block has a key that is to be computed again."""
        references: Counter[int] = Counter()
        for seq in sequences:
            if (state := seq.state) is not None:
                if (
                    seq.num_replayed_tokens
                    and seq.num_keyed_blocks * self._block_size > seq.num_computed_tokens
                ):
                    raise RuntimeError(f"sequence {seq.seq_id} writes again to blocks that can be found")
                if (state.holds_more) != (state in self._holders):
                    raise RuntimeError(f"what sequence {seq.seq_id} holds of states is not known")
                references.update(
                    slot for slot in (state.slot, state.before, state.fork) if slot not in (None, ZEROS)
                )
                references.update(slot for _, slot in state.unnamed)
        references.update(self._fetched)
        wrong = [slot for slot, count in enumerate(self._references) if count != references[slot]]
        if wrong:
            raise RuntimeError(f"references differ from states at slots {wrong[:8]}")
        if {slot: key for key, slot in self._slot_of.items()} != self._key_of:
            raise RuntimeError("keys and slots of snapshots differ")
        if not self._key_of.keys() >= self.seals.checksums.keys() | self.seals.requests.keys():
            raise RuntimeError("the slot of a snapshot that is found no more is sealed")
        idle = {slot for slot in self._key_of if not references[slot]}
        if idle != set(self._idle):
            raise RuntimeError("a snapshot that no sequence holds cannot be evicted, or the other way round")
        free = [*self._free, *self._later]
        others = set(self._idle) | set(+references)
        if len(set(free)) != len(free) or others & set(free) or len(free) + len(others) != self.num_slots:
            raise RuntimeError("the slot of a state is free twice, or lost")


def _to_come(seq: Sequence) -> bool:
    """Whether another choice of the sequence's call is still to begin, and can do so from the state behind the prompt."""
    return any(
        other is not seq
        and other.state is None
        and not (
            other.finished
            or other.output_token_ids
            or other.alone
            or other.needs_whole_prompt
            or other.suspected
        )
        for other in seq.siblings
    )
