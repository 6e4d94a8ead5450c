"""The assignment of KV blocks to sequences. The engine's side of paged KV: ids and counts only; the executor has the tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np

from engine.block_table import TAKE, TURN, Way
from engine.kv.block_group import BlockGroup
from engine.kv.cache_points import cache_points
from engine.kv.hit import MISS, Hit, longest_prefix
from engine.kv.prefix_cache import block_key, own_root_key, root_key
from engine.kv.prefix_history import PrefixHistory
from engine.kv.seals import SealTable
from engine.kv.state_pool import StatePool
from engine.kv.strides import StrideFinder
from engine.kv.table_changes import TableChanges
from engine.request import StateStats
from engine.sequence import Sequence
from engine.story import Lost, Missed, PrefixMatch
from executors.contract import Int32Array, KvLayout, TableUpdates


class KvCacheManager:
    """Grows, shares and frees block tables; collects the changes for the next step.

    Decides on `Sequence.block_tables` and `.block_keys`. A sequence has a table for each group of the layout: all grow, or none
    does. With an executor that owns its KV (a layout without groups) there are no tables, every request for room succeeds,
    and nothing is shared.
    """

    def __init__(
        self,
        layout: KvLayout,
        model: str = "",
        prefix_caching: bool = True,
        most_granted: int = sys.maxsize,
    ) -> None:
        """`most_granted`: tokens of one sequence that steps in flight compute at most. A window group has room for these and for
        the window when a sequence is admitted, a full group for all its tokens."""
        self.layout = layout
        self.groups = [BlockGroup(index, one, layout.block_size) for index, one in enumerate(layout.groups)]
        self.states = (
            StatePool(layout.state, layout.block_size, bool(layout.fingerprint)) if layout.state else None
        )
        """Slots of states; None if layers have none."""
        sealable = [group.seals for group in self.groups]
        self.seals = SealTable(layout, sealable if self.states is None else [*sealable, self.states.seals])
        self.prefix_caching = prefix_caching and layout.paged
        self.changes = TableChanges()
        self._model = model
        self._most_granted = most_granted
        self._fetched: list[list[int]] = [[] for _ in self.groups]
        """Blocks of each group that are filled from files just now."""
        self._strides = StrideFinder(self.groups, layout.block_size)
        self._windows = [group for group in self.groups if group.window is not None]
        self._only = self.groups[0] if len(self.groups) == 1 and not self._windows else None
        """The group of a layout with a full one alone."""
        self._full = [group for group in self.groups if group.window is None]
        self._history = (self._full or self.groups)[0].cache.history if self.groups else PrefixHistory()
        """What followed each prefix, and what became of it: in a full group, if there is one."""
        if self.states is not None and self.groups:
            # A snapshot goes with the block that its key names.
            self.naming.cache.on_lost = self.states.forget

    @property
    def state_stats(self) -> StateStats:
        """Slots of states."""
        states = self.states
        return (
            StateStats()
            if states is None
            else StateStats(states.num_slots, states.num_used, states.num_snapshots)
        )

    @property
    def num_cached(self) -> int:
        """Number of free blocks whose KV may be found again."""
        return sum(group.pool.num_kept for group in self.groups)

    @property
    def num_available(self) -> int:
        """Number of blocks of all groups, but those that are withheld from sequences."""
        return sum(group.pool.num_available for group in self.groups)

    @property
    def num_used(self) -> int:
        """Number of blocks held by at least one table."""
        return sum(group.pool.num_used for group in self.groups)

    @property
    def num_with_memory(self) -> int:
        """Number of blocks that have been written and whose memory has not been released since."""
        return sum(group.pool.num_with_memory for group in self.groups)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1, in the group where it is highest: the first that has no room."""
        return max((group.pool.num_used / group.pool.num_available for group in self.groups), default=0.0)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that a sequence can have if it is alone. Where a window group is too small to slide, it has to hold them all."""
        size, slack = self.layout.block_size, 3 * self.layout.block_size
        capacity = self.layout.capacity_tokens
        for group in self.layout.groups:
            pool_tokens = group.num_blocks * size
            if group.window is not None and pool_tokens < group.window + self._most_granted + slack:
                capacity = min(capacity, pool_tokens)
        return capacity

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that hold this many tokens."""
        return -(-num_tokens // self.layout.block_size) if self.layout.paged else 0

    @property
    def naming(self) -> BlockGroup:
        """The group with whose blocks snapshots of states are found; there must be one."""
        return (self._full or self.groups)[0]

    # -- tables --------------------------------------------------------------------------------------------------------

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Make all tables of the sequence cover `num_tokens`. False, and no table has grown, if a pool has too few blocks.

        Blocks behind a window are freed first. The sequence must have its slot already.
        """
        begin, end = seq.num_table_blocks, self.blocks_for(num_tokens)
        if end <= begin:
            return True
        if self._only is not None:  # the usual layout, without the loops
            blocks = self._only.allocate(end - begin)
            if blocks is None:
                return False
            self._append(seq, self._only, begin, blocks)
        elif not (end == begin + 1 and self._step_on(seq, begin)) and not self._grow_all(seq, end):
            return False
        seq.cover(end)
        self._prepared(seq)
        return True

    def _step_on(self, seq: Sequence, begin: int) -> bool:
        """`_grow_all` by the block with index `begin` where the sequence goes on in its stride, as nearly all do that decode:
        without a search for what its windows leave. False, and nothing has changed, for others."""
        assert seq.slot is not None, "blocks are laid out for a slot"
        stride, settled, groups = seq.stride, seq.settled // self.layout.block_size, self.groups
        if stride is None or begin >= stride.end or settled != begin - stride.lag:
            stride = self._strides.find(seq, begin, settled)
            seq.go_in_stride(stride)
            if stride is None:
                return False
        if begin >= stride.until:
            self._strides.change_ways(stride, begin)
        ways, takers = stride.ways, stride.takers
        for index in takers:
            if not groups[index].pool.num_free:
                return False
        if self.seals.active:
            position = settled * self.layout.block_size
            if any(group.sealed_end(seq) < position for group in self._windows):
                return False
            self._drop_seals(seq, ways)
        blocks = [0] * len(groups)
        for index in takers:
            group, way = groups[index], ways[index]
            blocks[index] = group.take() if way is TAKE else group.exchange(seq, way)
        seq.step_tables(ways, blocks)
        self.changes.stepped.append((seq.slot, begin, *blocks))
        return True

    def _drop_seals(self, seq: Sequence, ways: SequenceOf[Way]) -> None:
        """Steps from now on write the blocks that tables take again."""
        for group, table, way in zip(self.groups, seq.block_tables, ways, strict=True):
            if way is TURN:
                group.seals.drop(table.blocks[:1])

    def _grow_all(self, seq: Sequence, end: int) -> bool:
        """Make the table of each group go up to index `end`, or none of them."""
        self.slide(seq)
        missing = self._missing(seq, end)
        if missing is None and self.seals.active:
            self.slide(seq, for_recovery=False)
            missing = self._missing(seq, end)
        if missing is None:
            return False
        for group, count in missing:
            blocks = group.allocate(count)
            assert blocks is not None, "enough of them are free"
            self._append(seq, group, end - count, blocks)
        return True

    def _missing(self, seq: Sequence, end: int) -> list[tuple[BlockGroup, int]] | None:
        """The groups whose table does not go up to index `end`, and how many blocks it lacks; None if a pool has too few."""
        missing = [
            (group, count)
            for group, table in zip(self.groups, seq.block_tables, strict=True)
            if (count := end - table.first - len(table.blocks)) > 0
        ]
        return None if any(count > group.pool.num_free for group, count in missing) else missing

    def slide(self, seq: Sequence, for_recovery: bool = True) -> None:
        """Free what the sequence has left behind: see `BlockGroup.slide`. `for_recovery`: keep what it needs if it goes on behind
        its last sealed block, after a failure."""
        size = self.layout.block_size
        position = seq.settled // size * size
        for group in self._windows:
            if for_recovery and self.seals.active:
                position = min(position, group.sealed_end(seq))
            group.slide(seq, position)

    def _prepared(self, seq: Sequence) -> None:
        """Record how far the sequence can grow in its blocks, before the next one is full."""
        size = self.layout.block_size
        end = seq.num_table_blocks * size if self.layout.groups else sys.maxsize
        full = (seq.num_keyed_blocks + 1) * size if self.prefix_caching or self.seals.active else sys.maxsize
        if self.states is None:
            seq.prepare(min(end, full - 1), min(end, full))
        elif self.states.is_shared(seq):
            seq.prepare(0, 0)
        else:  # at the end of a block a snapshot may be due, whether its last token is known or not
            seq.prepare(min(end, full - 1), min(end, full - 1))

    def room(self, seq: Sequence, kept_blocks: int) -> int:
        """Tokens by which the sequence can grow in its own blocks and in free ones, except `kept_blocks` of the latter in each
        group."""
        if not self.layout.paged:
            return seq.num_to_generate + seq.num_uncomputed_tokens
        blocks = min(
            table.end + max(0, group.pool.num_free - kept_blocks)
            for group, table in zip(self.groups, seq.block_tables, strict=True)
        )
        return blocks * self.layout.block_size - seq.num_computed_tokens

    def _append(self, seq: Sequence, group: BlockGroup, begin: int, blocks: list[int]) -> None:
        assert seq.slot is not None, "blocks are laid out for a slot"
        self.changes.grow(seq.slot, group.index, begin, blocks)
        seq.extend_table(group.index, blocks)

    def free(self, seq: Sequence) -> None:
        """Free all blocks of a sequence; steps submitted later may use them. The last blocks are freed first, so that a prefix
        is kept longest."""
        if self.states is not None:
            self.states.free(seq)
            self.states.begun(seq)
            if not self.prefix_caching:
                self._forget_own_snapshots(seq)
        if seq.block_tables:
            self.slide(seq)
            for group in self._windows:
                group.name_rest(seq)
        if tables := seq.free_tables():
            self.changes.drop(seq.slot)
            for group, table in zip(self.groups, tables, strict=True):
                group.release(reversed(table.blocks))

    def _forget_own_snapshots(self, seq: Sequence) -> None:
        """Without prefix caching a sequence's snapshots serve nothing but its own return after a failure, for which its blocks
        have keys by now, and that of the other choices of its call."""
        assert self.states is not None
        if any(other is not seq and not other.finished for other in seq.siblings):
            return
        for key in seq.block_keys:
            if self.naming.cache.block_of(key) is None:
                self.states.forget(key)

    # -- sharing -------------------------------------------------------------------------------------------------------

    def find(self, seq: Sequence) -> Hit:
        """KV with which a sequence without KV can begin: a sibling's prompt, or the longest prefix in the cache.

        At least one token is always left to compute, because it gives the logits.
        """
        if not self.layout.paged or seq.alone or seq.needs_whole_prompt:
            return MISS
        if self.seals.active and seq.suspected:
            return MISS  # its own KV of an earlier life, or what it shared with others, may be the cause
        forked = self._find_sibling(seq)
        if forked is not None:
            return forked
        if not (self.prefix_caching or any(group.cache.blocks for group in self.groups)):
            return MISS
        most = (seq.num_known_tokens - 1) // self.layout.block_size
        return longest_prefix(self.groups, self.keys_of(seq, most), self.layout.block_size, self.states)

    def _find_sibling(self, seq: Sequence) -> Hit | None:
        """KV of the prompt, without its last token, from another choice of the same call. None if no choice has or will have it.

        Each choice computes the last token again: it gives the logits from which the choice samples its own first token.
        """
        num_shared = seq.prompt_len - 1
        if not seq.siblings or not num_shared or seq.output_token_ids:
            return None
        to_come = {(group, destination) for group, _, destination in self.changes.copies}
        in_time = False
        for other in seq.siblings:
            if not other.block_tables or other.finished:
                continue
            if other.num_computed_tokens < num_shared:
                in_time = True  # where the prompt is being computed it is worth waiting for
                continue
            hit = self._fork(other, num_shared)
            if hit is None or (self.states is not None and hit.state is None):
                continue  # it has gone on
            if to_come.isdisjoint(enumerate(hit.copied)):
                return hit
            in_time = True  # the copy of a sequence admitted in this very step is itself still to be made
        return Hit(pending=True) if in_time else None

    def _fork(self, other: Sequence, num_shared: int) -> Hit | None:
        """The KV of another sequence's first `num_shared` tokens; None if it has gone on so far that a window has left them."""
        full, partial = divmod(num_shared, self.layout.block_size)
        lows = [group.lowest(num_shared) for group in self.groups]
        if any(low < table.first for low, table in zip(lows, other.block_tables, strict=True)):
            return None
        if self.seals.active and partial:
            # After a failure it goes on behind the full blocks, and needs the windows before their end.
            lows = [
                max(table.first, group.lowest(full * self.layout.block_size))
                for group, table in zip(self.groups, other.block_tables, strict=True)
            ]
        blocks = tuple(table.part(low, full) for low, table in zip(lows, other.block_tables, strict=True))
        copied = tuple(table.part(full, full + 1)[0] for table in other.block_tables) if partial else ()
        state = None if other.state is None else other.state.fork
        return Hit(num_shared, full, blocks, copied, keys=other.block_keys[:full], state=state)

    def until_fork(self, seq: Sequence, count: int) -> int:
        """How many of the next `count` tokens a step may compute of a sequence, for the sake of other choices."""
        return count if self.states is None else self.states.until_fork(seq, count)

    def fits(self, seq: Sequence, hit: Hit) -> bool:
        """True if every group has the room that it gives at admission, besides the shared blocks."""
        for group in self.groups:
            shared = hit.blocks[group.index] if hit.blocks else []
            missing = self._end_at_admission(seq, group, hit) - hit.num_blocks
            if missing > group.pool.num_free - group.pool.num_free_of(shared):
                return False
        return self.states is None or self.states.has_room(hit.state)

    def _end_at_admission(self, seq: Sequence, group: BlockGroup, hit: Hit) -> int:
        """Index up to which a sequence is given blocks at once: those of all known tokens, or as many as it will have in a window
        group, which slide on with it."""
        end = seq.num_known_tokens
        if group.window is not None:
            end = min(end, max(hit.num_tokens, group.window) + self._most_granted)
        return self.blocks_for(end)

    def begin(self, seq: Sequence, hit: Hit) -> None:
        """Give a sequence its first tables: the shared blocks, and the room for which `fits` has looked."""
        assert not seq.block_tables
        if self.states is not None:
            self.states.begin(seq, hit.state)
            self.states.begun(seq)
        shared = hit.blocks or tuple([] for _ in self.groups)
        seq.begin_tables(
            [hit.num_blocks - len(blocks) for blocks in shared], hit.num_tokens, hit.num_blocks, hit.keys
        )
        for group, blocks in zip(self.groups, shared, strict=True):
            if blocks:
                group.pool.share(blocks)
                self._append(seq, group, hit.num_blocks - len(blocks), list(blocks))
        for group, table in zip(self.groups, seq.block_tables, strict=True):
            own = group.allocate(self._end_at_admission(seq, group, hit) - table.end)
            assert own is not None, "what does not fit is not admitted"
            self._append(seq, group, table.end, own)
        seq.cover(min((table.end for table in seq.block_tables), default=0))
        if hit.copied:
            for index, source in enumerate(hit.copied):
                [copy] = seq.block_tables[index].part(hit.num_blocks, hit.num_blocks + 1)
                self.changes.copies.append((index, source, copy))
            seq.count_copied_block()
        takes_snapshots = self.states is not None and (self.prefix_caching or self.seals.active)
        if takes_snapshots or (self.prefix_caching and self._windows):
            size, state = self.layout.block_size, self.layout.state
            parted = hit.num_in_full_groups if hit.missed is not None or hit.missed_state else 0
            points = cache_points(seq, size, parted, state.interval if state else size)
            if self.prefix_caching:
                seq.set_cache_points(points)
            if self.states is not None and takes_snapshots:
                seq.take_snapshots(points)
                self.states.refresh(seq)
        self._prepared(seq)

    def begin_step(self) -> None:
        """Begin to assemble a new step, which can read the KV that earlier steps compute."""
        for group in self.groups:
            group.cache.fresh.clear()
        if self.states is not None:
            self.states.begin_step()

    def advance_state(self, seq: Sequence, end: int, num_drafts: int = 0) -> bool:
        """Let the step being assembled go on with the sequence's state up to position `end`, with `num_drafts` drafts before it.
        See `StatePool.advance` and `verify`."""
        if self.states is None:
            return True
        if num_drafts:
            return self.states.verify(seq)
        return self.states.advance(seq, seq.num_computed_tokens, end)

    def num_named(self, seq: Sequence, end: int, num_drafts: int) -> int:
        """How many of the first `end` tokens of a sequence may lie in blocks that get a key in the step being assembled. With
        states none that a step with drafts computes: they may have to be computed again."""
        return end if self.states is None or not num_drafts else seq.num_computed_tokens

    def allows_drafts(self, seq: Sequence, end: int) -> bool:
        """Whether drafts up to position `end` can be verified in the step being assembled."""
        states = self.states
        return states is None or (
            states.has_room(None) and not states.is_due(seq, seq.num_computed_tokens, end)
        )

    def register(self, seq: Sequence, num_computed: int) -> None:
        """Add the keys of the blocks that are full of known tokens once `num_computed` tokens of the sequence are computed, by
        the steps submitted so far and the one being assembled; this one is to seal these blocks."""
        if self.prefix_caching or self.seals.active:
            full = min(num_computed, seq.num_known_tokens) // self.layout.block_size
            if full > seq.num_keyed_blocks:
                if self.prefix_caching:
                    self._add_keys(seq, full)
                self.seals.request(seq.block_tables, seq.num_keyed_blocks, full)
                seq.name_blocks(full)
                if self.states is None:
                    self._prepared(seq)
        if self.states is not None:
            self._name_snapshots(self.states, seq)
            self._prepared(seq)

    def _name_snapshots(self, states: StatePool, seq: Sequence) -> None:
        if seq.state is None or not seq.state.unnamed:
            return
        if not self.prefix_caching:
            self.keys_of(seq, seq.num_keyed_blocks)
        for slot in states.name(seq):
            self.seals.request_snapshot(slot)

    def _add_keys(self, seq: Sequence, full: int) -> None:
        keys = seq.block_keys
        # Those of an output that windows will leave wait until then: most are not worth a key by that time.
        num_in_windows = seq.prompt_len // self.layout.block_size if self._windows else 0
        before = keys[seq.num_keyed_blocks - 1] if seq.num_keyed_blocks else self.root_of(seq)
        for index in range(seq.num_keyed_blocks, full):
            tokens = self._block_tokens(seq, index)
            if index == len(keys):
                seq.extend_keys((block_key(before, tokens),))
            if index < num_in_windows:
                self._name_in_all(seq, keys[index], index)
            else:
                for group in self._full:
                    group.cache.add(keys[index], seq.block_tables[group.index].blocks[index])
            self._history.add(before, keys[index], tokens)
            before = keys[index]

    def _name_in_all(self, seq: Sequence, key: bytes, index: int) -> None:
        """Let the block of each group at this index be found by its key."""
        for group, table in zip(self.groups, seq.block_tables, strict=True):
            if index >= table.first:  # a window may have left the block before its tokens were known
                group.cache.add(key, table.blocks[index - table.first])

    def withdraw(self, seq: Sequence) -> None:
        """Withdraw the blocks of a sequence whose computation failed: no sequence may find them, even if they are freed already.
        This includes its shared blocks: their writer may have ended without noticing the fault."""
        for group in self.groups:
            blocks = group.cache.withdraw(seq.block_keys)
            group.pool.forsake(blocks)
            group.seals.drop(blocks)
        for group, table in zip(self.groups, seq.block_tables, strict=False):
            group.seals.drop(table.blocks)
        if self.states is not None:
            self.states.withdraw(seq, seq.block_keys)
        seq.name_no_more()

    def keys_of(self, seq: Sequence, count: int) -> list[bytes]:
        """The keys of the sequence's first `count` blocks, whose tokens must be known; computed once each."""
        keys = seq.block_keys
        if len(keys) < count:
            new = []
            before = keys[-1] if keys else self.root_of(seq)
            for index in range(len(keys), count):
                before = block_key(before, self._block_tokens(seq, index))
                new.append(before)
            seq.extend_keys(new)
        return keys[:count] if len(keys) > count else keys

    def root_of(self, seq: Sequence) -> bytes:
        """The key before the sequence's first block."""
        if (
            not self.prefix_caching
        ):  # a sequence finds its own KV again, and that of the other choices of its call
            return own_root_key((seq.siblings[0] if seq.siblings else seq).seq_id)
        request = seq.request
        return root_key(self._model, request.adapter, seq.context.cache_salt, request.second_segment)

    def _block_tokens(self, seq: Sequence, index: int) -> Int32Array:
        """The known tokens of a full block."""
        size = self.layout.block_size
        end = (index + 1) * size
        if end <= seq.prompt_len:
            return seq.request.prompt_token_ids[end - size : end]
        return np.array(seq.token_ids(end - size, end), np.int32)

    # -- blocks from files ---------------------------------------------------------------------------------------------

    def hold_for_fetch(
        self, groups: SequenceOf[int], keys: SequenceOf[bytes], spare: int
    ) -> list[int] | None:
        """Take a block of each of these groups, or a slot of the states for the group of states, to be filled from files. None if
        fewer than `spare` blocks of a group would be free then. What has one of `keys` is not taken."""
        cached = [
            [block for key in keys if (block := group.cache.block_of(key)) is not None]
            for group in self.groups
        ]
        for group, present in zip(self.groups, cached, strict=True):
            if group.pool.num_free - group.pool.num_free_of(present) - groups.count(group.index) < spare:
                return None
        if groups.count(self.layout.state_group) and (self.states is None or not self.states.has_room(None)):
            return None
        for group, present in zip(self.groups, cached, strict=True):
            group.pool.share(present)
        blocks = []
        for index in groups:
            if index == self.layout.state_group:
                assert self.states is not None
                blocks.append(self.states.hold_for_fetch())
                continue
            block = self.groups[index].take()
            self._fetched[index].append(block)
            blocks.append(block)
        for group, present in zip(self.groups, cached, strict=True):
            group.release(reversed(present))
        return blocks

    def take_fetched(
        self, group: int, block: int, key: bytes, checksum: int | None, before: bytes, tokens: Int32Array
    ) -> None:
        """Free a block of `hold_for_fetch`. With a checksum it is sealed, and found from now on by its key. `before`: key of the
        block before it; `tokens`: its own."""
        if group == self.layout.state_group:
            assert self.states is not None
            is_found = self.naming.cache.block_of(key) is not None
            self.states.take_fetched(block, key, checksum if is_found else None)
            return
        one = self.groups[group]
        self._fetched[group].remove(block)
        if checksum is not None and one.cache.keep(key, block):
            one.seals.checksums[block] = checksum
            if one is self.naming:
                self._history.add(before, key, tokens)
        one.release((block,))

    def explain(self, seq: Sequence, hit: Hit) -> PrefixMatch:
        """Why the prefix cache gave a sequence no more than `hit`, for its story."""
        if not hit.looked_up:
            return PrefixMatch(hit.num_tokens, Missed.OFF)
        matched, most = hit.num_blocks, (seq.num_known_tokens - 1) // self.layout.block_size
        if hit.missed_state:
            gone = (hit.num_in_full_groups - matched) * self.layout.block_size
            return PrefixMatch(hit.num_tokens, Missed.EVICTED, None, gone, Lost.STATE)
        if self.states is not None and hit.missed is None:
            matched = hit.num_in_full_groups  # a snapshot lies at the nearest place before
        if matched == most:
            return PrefixMatch(hit.num_tokens, None if most else Missed.SHORT)
        keys = self.keys_of(seq, most)
        if hit.missed is not None:
            missed = self.groups[hit.missed]
            cause = missed.cache.history.cause(keys[matched])
            before = keys[matched - 1] if matched else self.root_of(seq)
            was_cached = self._history.followed(before, self._block_tokens(seq, matched))
            if cause is not None or was_cached or len(self._windows) < len(self.groups):
                gone = (hit.num_in_full_groups - matched) * self.layout.block_size
                return PrefixMatch(
                    hit.num_tokens, Missed.EVICTED, None, gone, cause or Lost.WINDOW, missed.window
                )
        before = keys[matched - 1] if matched else self.root_of(seq)
        tokens = self._block_tokens(seq, matched)
        return self._history.explain(before, keys[matched:], tokens, hit.num_tokens)

    def reset(self) -> None:
        """Reset after the executor's KV was emptied: nothing can be found, and no change is left to report."""
        self.forget_all()
        self.seals.clear()
        self.changes.clear()

    def forget_all(self) -> None:
        """Nothing can be found from now on."""
        self.forget_blocks()
        if self.states is not None:
            self.states.forget_all()

    def forget_blocks(self) -> None:
        """No block can be found from now on. Snapshots of states stay for the next failure, under keys of their sequences."""
        for group in self.groups:
            group.pool.forsake(group.cache.blocks)
            group.cache.clear()

    # -- for the next batch --------------------------------------------------------------------------------------------

    def take_copies(self) -> Int32Array:
        """int32 [m, 3] of (group, source, destination) blocks since the last call."""
        return self.changes.take_copies()

    def take_updates(self) -> TableUpdates:
        """Block-table deltas since the last call."""
        return self.changes.take_updates()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises RuntimeError unless in each group free + used = total, references equal the tables of these sequences, every
        block with a key is one of them, and no window has left a block that its sequence reads."""
        for _ in self.integrity(sequences):
            pass

    def integrity(self, sequences: Iterable[Sequence]) -> Iterator[None]:
        """`check_integrity` a slice at a time: nothing may change before it is exhausted."""
        sequences = list(sequences)
        if self.states is not None:
            self.states.check_integrity(sequences)
            yield
        holders = [seq for seq in sequences if seq.block_tables]
        for group in self.groups:
            tables = [seq.block_tables[group.index].blocks for seq in holders]
            yield from group.integrity([*tables, self._fetched[group.index]])
        for group in self._windows:
            for seq in holders:
                # A sequence that is cut at its end has gone on before.
                begin = min(seq.settled, seq.num_computed_tokens)
                if seq.block_tables[group.index].first > group.lowest(begin) and not seq.finished:
                    raise RuntimeError(
                        f"a window has left what sequence {seq.seq_id} reads in group {group.index}"
                    )
            yield
